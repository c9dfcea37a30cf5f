"""Buffer sizes follow the throughput, slowly and in steps worth a message."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.memory.debloat import (
    BufferDebloater,
    BufferSizeEma,
    DebloatOptions,
    ThroughputMeter,
)


def debloater(**options: int) -> BufferDebloater:
    defaults = {
        "samples": 1,
        "size_bytes_min": 200,
        "size_bytes_max": 32_768,
        "threshold_percent": 1,
    }
    return BufferDebloater(DebloatOptions(**(defaults | options)))


def test_no_buffer_in_use_counts_as_one() -> None:
    """NET-184."""
    assert debloater().recalculate(1_200, 0) == 1_200


def test_the_share_of_each_buffer_is_rounded() -> None:
    """NET-185."""
    assert debloater(target_ms=1_200).recalculate(3_333, 16) == 250


@pytest.mark.parametrize(
    ("target_ms", "bytes_per_s", "in_use"),
    [(1_200, 3_000, 30), (1_000, 0, 1), (1, 2, 1)],
)
def test_too_little_is_the_least_size(
    target_ms: int, bytes_per_s: int, in_use: int
) -> None:
    """NET-186."""
    assert debloater(target_ms=target_ms).recalculate(bytes_per_s, in_use) == 200


def test_more_than_the_largest_size_is_no_news() -> None:
    """NET-186."""
    assert debloater(size_bytes_max=248).recalculate(3_333, 1) is None


@pytest.mark.parametrize(("change", "is_news"), [(4_915, True), (4_914, False)])
def test_changes_below_the_threshold_are_kept(change: int, is_news: bool) -> None:
    """NET-187."""
    for wished in (16_384 + change, 16_384 - change):
        gate = debloater(threshold_percent=30)
        assert gate.recalculate(16_384, 1) == 16_384
        assert (gate.recalculate(wished, 1) is not None) == is_news


def test_reaching_a_limit_is_always_news() -> None:
    """NET-188."""
    gate = debloater(threshold_percent=50, size_bytes_min=300, size_bytes_max=1_100)
    assert gate.recalculate(500, 1) == 500
    assert gate.recalculate(1_000, 1) == 1_000
    assert gate.recalculate(2_000, 1) == 1_100
    assert gate.recalculate(2_000, 1) is None
    assert gate.recalculate(333, 1) == 333
    assert gate.recalculate(1, 1) == 300
    assert gate.recalculate(1, 1) is None


def test_the_average_of_flinks_example() -> None:
    ema = BufferSizeEma(200, 10, 200, samples=3)
    assert [ema.calculate(total, share) for total, share in [(111, 13), *[(107, 7)] * 5]] == [
        104, 60, 38, 26, 21, 18,
    ]  # fmt: skip
    assert [ema.calculate(107, 13) for _ in range(3)] == [13, 11, 10]
    assert [ema.calculate(333, 1) for _ in range(6)] == [15, 23, 34, 51, 76, 114]


def test_growing_is_as_fast_as_shrinking() -> None:
    """NET-189."""
    ema = BufferSizeEma(32_768, 1, 32_768, samples=20)
    down = [ema.calculate(0, 1) for _ in range(5)]
    assert down == [29_647, 26_824, 24_269, 21_958, 19_867]
    up = [ema.calculate(10**9, 1) for _ in range(2)]
    assert [
        after - before for before, after in zip(down[-1:] + up, up, strict=False)
    ] == [
        1_892,
        2_072,
    ]


def test_the_average_does_not_get_stuck_at_small_sizes() -> None:
    ema = BufferSizeEma(16, 16, 32_768, samples=10_000)
    for _ in range(10_000):
        ema.calculate(20_000, 10)
    assert ema.calculate(10_000, 10) > 16


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**4))))
def test_sizes_stay_within_their_limits(measurements: list[tuple[int, int]]) -> None:
    gate = debloater(samples=20)
    for bytes_per_s, in_use in measurements:
        size_bytes = gate.recalculate(bytes_per_s, in_use)
        assert size_bytes is None or 200 <= size_bytes <= 32_768


def test_bad_options_are_named() -> None:
    with pytest.raises(InvalidArgumentError, match="size_bytes_max"):
        DebloatOptions(size_bytes_min=10, size_bytes_max=9)
    with pytest.raises(InvalidArgumentError, match="samples"):
        DebloatOptions(samples=0)
    with pytest.raises(InvalidArgumentError, match="threshold_percent"):
        DebloatOptions(threshold_percent=101)
    with pytest.raises(InvalidArgumentError, match="bytes_per_s"):
        debloater().recalculate(-1, 1)


def test_throughput_without_any_time_is_the_last_one() -> None:
    meter = ThroughputMeter()
    assert meter.calculate(0) == 0
    meter.resume(0)
    meter.add(1_000)
    assert meter.calculate(500) == 2_000
    assert meter.calculate(500) == 2_000
    meter.pause(500)
    meter.pause(700)
    assert meter.calculate(9_000) == 2_000
