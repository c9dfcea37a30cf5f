from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from aiomailbox import BackpressureLevel

Load = Callable[[str], ModuleType]


def phase(samples: list[Any], number: int, *, settled: int = 0) -> list[Any]:
    """Return the samples of a phase, without as many at its beginning."""
    return samples[20 * number + settled : 20 * (number + 1)]


async def test_the_producer_follows_its_consumer_down_and_up(
    load_example: Load,
) -> None:
    example = load_example("backpressure")
    loop = asyncio.get_running_loop()
    began = loop.time()
    samples = await example.Experiment().run()
    assert loop.time() - began == pytest.approx(30)
    assert len(samples) == 60
    for each in samples:
        for task in (each.producer, each.consumer):
            total = task.busy_ms + task.idle_ms + task.backpressured_ms
            assert total == pytest.approx(1000)
    producer, consumer = "arrive -> produce (1/1)", "consume -> write (1/1)"

    # At 60 % there is room: both keep up, and wait for more.
    for each in phase(samples, 0, settled=1):
        assert each.produced == pytest.approx(0.6, abs=0.01)
        assert each.consumed == pytest.approx(0.6, abs=0.01)
        assert each.pool_usage <= 0.2
        assert each.producer.busy_ms == pytest.approx(600, abs=10)
        assert each.producer.idle_ms == pytest.approx(400, abs=10)
        assert each.producer.backpressured_ms == 0
        assert each.consumer.busy_ms == pytest.approx(500, abs=10)
        # Its source waits for what arrives.
        assert each.bottleneck == producer

    # The consumer at 30 %: at once there, and two seconds later in the producer.
    assert phase(samples, 1)[0].consumed == pytest.approx(0.3, abs=0.01)
    for each in phase(samples, 1, settled=4):
        assert each.produced == pytest.approx(0.3, abs=0.01)
        assert each.consumed == pytest.approx(0.3, abs=0.01)
        assert each.pool_usage >= 0.9
        assert each.bottleneck == consumer
    throttled = phase(samples, 1)[-1]
    assert throttled.producer.backpressured_ms == pytest.approx(700, abs=10)
    assert throttled.producer.busy_ms == pytest.approx(300, abs=10)
    assert throttled.producer.level is BackpressureLevel.HIGH
    assert throttled.consumer.busy_ms == pytest.approx(1000, abs=1)
    assert throttled.consumer.level is BackpressureLevel.OK

    # Released: the producer at its full rate, the consumer above it until the queue
    # has drained, and then at the same rate.
    first = phase(samples, 2)[0]
    assert first.produced >= 0.95
    assert first.consumed == pytest.approx(1.2, abs=0.02)
    for each in phase(samples, 2, settled=1):
        assert each.produced == pytest.approx(1.0, abs=0.01)
    for each in phase(samples, 2, settled=4):
        assert each.consumed == pytest.approx(1.0, abs=0.02)
        assert each.pool_usage <= 0.2
    # The throttled time has left the window of the numbers.
    for each in phase(samples, 2, settled=12):
        assert each.producer.busy_ms == pytest.approx(1000, abs=5)
        # Who works all the time.
        assert each.bottleneck == producer


def test_it_prints_a_table_and_writes_a_picture(
    load_example: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "backpressure.png"
    load_example("backpressure").main(["--picture", str(picture)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("ms/s")[-1].strip() for line in lines[1:4]] == [
        "arrive -> produce (1/1)",
        "consume -> write (1/1)",
        "arrive -> produce (1/1)",
    ]
    assert lines[1].split()[4:6] == ["60%", "60%"]
    assert lines[2].split()[5:8] == ["30%", "30%", "100%"]
    assert lines[3].split()[1] == "100%"
    assert lines[4] == f"wrote {picture}"
    header = picture.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", header[16:])
    assert width >= 1000
    assert height >= 800
