"""Draws the pictures of the page on backpressure: ``python docs/pictures/backpressure.py``.

What is in them is not drawn by hand: one asks a partition of the library, step by step; the
other one runs the example on virtual time.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from schemes import in_both_schemes

from aiomailbox.exchange import InputGate, LocalInputChannel, ResultPartition
from aiomailbox.exchange.gate import PartitionRegistry
from aiomailbox.ids import PartitionId, TaskId, VertexId
from aiomailbox.memory import NetworkBufferPool
from aiomailbox.records import RUN_LENGTH_MAX, ListRun
from aiomailbox.testing import VirtualTimeLoop

HERE = Path(__file__).parent
WIDTH = 720
INK, SOFT, MARK, LATE = "#334155", "#cbd5e1", "#0d9488", "#dc2626"
PERMITS = 4
LEFT, RIGHT = 70, 560


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return a label."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{words}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, edge: str) -> str:
    """Return a rectangle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" '
        f'fill="{fill}" stroke="{edge}"/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, colour: str = SOFT) -> str:
    """Return a line."""
    ends = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
    return f'<line {ends} stroke="{colour}" stroke-width="1"/>'


def curve(points: Sequence[tuple[float, float]], colour: str, dashes: str = "") -> str:
    """Return a line through points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" '
        f'stroke-width="2"{dashed}/>'
    )


def picture(height: int, title: str, *parts: str) -> str:
    """Return a whole picture."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="13" fill="{INK}">\n<title>{title}</title>\n'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def channel() -> str:
    """Draw what becomes of the permits of a partition as its consumer stops and goes on."""
    memory = NetworkBufferPool(PERMITS)
    pool = memory.create_local_pool(PERMITS, PERMITS, subpartitions=1)
    partition = ResultPartition(PartitionId(TaskId(VertexId(0), 0, 0), 0), pool, 1)
    registry = PartitionRegistry()
    registry.register(partition)
    gate = InputGate([LocalInputChannel(registry, partition.partition_id, 0)])
    gate.request_partitions()
    run = ListRun(list(range(RUN_LENGTH_MAX)))
    rows: list[str] = []

    def show(words: str) -> None:
        y = 44 + 56 * len(rows)
        lent = pool.outstanding
        go = partition.availability.available
        parts = [
            text(8, y + 20, words),
            text(340, y + 20, "producer runs" if go else "producer waits", "end"),
        ]
        for permit in range(PERMITS):
            fill = MARK if permit < lent else "white"
            parts.append(box(360 + 44 * permit, y, 36, 30, fill, INK))
        parts.append(text(550, y + 20, f"{lent} of {PERMITS} permits lent"))
        rows.append("\n".join(parts))

    show("nothing is queued")
    partition.emit_run(run, 0)
    partition.emit_run(run, 0)
    show("the consumer falls behind")
    while partition.availability.available:
        partition.emit_run(run, 0)
    show("all permits are lent")
    polled = gate.poll_next()
    assert polled is not None, "something is queued"
    polled[1].recycle()
    show("one buffer is recycled")
    gate.close()
    partition.release()
    memory.destroy()
    heads = text(378 + 22 * (PERMITS - 1), 24, "buffers of the pool", "middle")
    return picture(
        50 + 56 * len(rows), "A producer waits while all permits are lent", heads, *rows
    )


@cache
def samples() -> list[Any]:
    """Run the example and return what it saw."""
    path = HERE.parents[1] / "examples" / "backpressure.py"
    spec = importlib.util.spec_from_file_location("backpressure_experiment", path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            return list(runner.run(module.Experiment().run()))
    finally:
        del sys.modules[spec.name]


def experiment() -> str:
    """Draw the rates of the example, and how full its channel was."""
    seen = samples()
    end = seen[-1].time_s

    def at(time_s: float) -> float:
        return LEFT + (RIGHT - LEFT) * time_s / end

    def rate(share: float) -> float:
        return 200 - 125 * share

    def fill(share: float) -> float:
        return 300 - 60 * share

    throttled = [each.time_s for each in seen if each.phase.consumer is not None]
    start = throttled[0] - 0.5
    shade = box(at(start), 40, at(throttled[-1]) - at(start), 260, "#f4e3c1", "none")
    parts = [shade]
    for share in (0.3, 0.6, 1.0):
        parts.append(line(LEFT, rate(share), RIGHT, rate(share)))
        parts.append(text(LEFT - 8, rate(share) + 4, f"{100 * share:.0f} %", "end"))
    for share in (0.0, 1.0):
        parts.append(
            line(LEFT, fill(share), RIGHT, fill(share), INK if not share else SOFT)
        )
        parts.append(text(LEFT - 8, fill(share) + 4, f"{100 * share:.0f} %", "end"))
    parts.append(line(LEFT, rate(0), RIGHT, rate(0), INK))
    for time in range(0, round(end) + 1, 5):
        parts.append(text(at(time), 320, f"{time} s", "middle"))
    names = {each.phase.name: each.time_s for each in seen}
    begin = 0.0
    for name, until in names.items():
        parts.append(text(at((begin + until) / 2), 24, name, "middle"))
        begin = until
    parts += [
        curve([(at(s.time_s), rate(s.consumed)) for s in seen], "#f97316", "5 3"),
        curve([(at(s.time_s), rate(s.produced)) for s in seen], MARK),
        curve([(at(s.time_s), fill(s.pool_usage)) for s in seen], LATE),
        curve([(580, 78), (606, 78)], MARK),
        text(612, 82, "producer"),
        curve([(580, 100), (606, 100)], "#f97316", "5 3"),
        text(612, 104, "consumer"),
        text(580, 60, "records, rate"),
        curve([(580, 262), (606, 262)], LATE),
        text(612, 266, "permits lent"),
    ]
    return picture(336, "A producer slows down with its consumer", *parts)


PICTURES = in_both_schemes({"channel": channel, "experiment": experiment})


def main() -> None:
    """Write all pictures."""
    for name, draw in PICTURES.items():
        (HERE / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
