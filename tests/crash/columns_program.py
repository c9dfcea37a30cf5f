"""A job by field names that is killed: its windows and joins are kept in columns.

Run as a program: ``python -m tests.crash.columns_program DIRECTORY BATCH_ROWS``.
Its input is a Parquet file; each result goes into Parquet files of its own.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

import aiomailbox as am

SIZE_MS, SLIDE_MS, GAP_MS, NEAR_MS, JITTER_MS = 1000, 250, 60, 40, 200
SUBTASKS = 2


class Held(am.FileSource[Any]):
    """The rows of a file, the later ones once another file is there.

    A program that is to be killed does not end before; checkpoints complete meanwhile.
    """

    gate: Path
    after: int

    def create_reader(self, context: Any) -> Any:
        """Create a reader that holds back what comes after some runs."""
        reader = super().create_reader(context)
        poll, left = reader.poll_next, self.after

        def poll_held(output: Any) -> am.InputStatus:
            nonlocal left
            if left or self.gate.exists():
                left = max(0, left - 1)
                return poll(output)
            reader.availability.reset()
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, reader.availability.set_available)
            return am.InputStatus.NOTHING_AVAILABLE

        reader.poll_next = poll_held  # type: ignore[method-assign]
        return reader


async def pace(batch: Any) -> Any:
    """Take a moment for each batch, so that there are checkpoints between them."""
    await asyncio.sleep(0.03)
    return batch


def results(env: am.StreamExecutionEnvironment, source: Any) -> dict[str, Any]:
    """Describe the job: return its results by name."""
    strategy = am.WatermarkStrategy.for_bounded_out_of_orderness(am.millis(JITTER_MS))
    rows: Any = (
        env.from_source(source, strategy.with_timestamp_assigner("ms"), name="rows")
        .uid("rows")
        .map_batches(pace)
        .set_parallelism(1)
        .with_columns(net=pc.field("price") - pc.field("tax"))
        # In order up to the keys: running results depend on it.
        .set_parallelism(1)
    )
    both = am.aggregates(n=am.count(), net=am.sum_("net"), most=am.max_("price"))
    windows = {
        "tumbling": am.TumblingEventTimeWindows.of(am.millis(SIZE_MS)),
        "sliding": am.SlidingEventTimeWindows.of(
            am.millis(SIZE_MS), am.millis(SLIDE_MS)
        ),
        "sessions": am.EventTimeSessionWindows.with_gap(am.millis(GAP_MS)),
    }
    made = {
        name: rows.key_by("user").window(assigner).aggregate(both).uid(name)
        for name, assigner in windows.items()
    }
    made["running"] = rows.key_by("user").aggregate(both).uid("running")
    made["distinct"] = rows.key_by("user", "tax").deduplicate().uid("distinct")
    cheap, dear = rows.filter(pc.field("tax") == 0), rows.filter(pc.field("tax") > 0)
    what = {"id2": "right.id", "gain": pc.field("right.net") - pc.field("left.net")}
    made["near"] = (
        cheap.key_by("user")
        .interval_join(dear.key_by("user"))
        .between(am.millis(-NEAR_MS), am.millis(NEAR_MS))
        .select("user", "left.id", **what)
        .uid("near")
    )
    made["joined"] = (
        cheap.join(dear)
        .where("user")
        .equal_to("user")
        .window(windows["tumbling"])
        .select("user", "left.id", **what)
        .uid("joined")
    )
    return made


async def main(directory: Path, batch_rows: int) -> None:
    """Run the job, from the newest checkpoint if there is one."""
    env = am.StreamExecutionEnvironment(parallelism=SUBTASKS)
    env.enable_checkpointing(am.seconds(0.1), directory=directory / "checkpoints")
    source = Held(directory / "in.parquet", batch_rows=batch_rows)
    source.gate, source.after = directory / "gate", 20
    for name, stream in results(env, source).items():
        stream.sink_to(am.ParquetSink(directory / name)).uid(f"{name}-sink")
    assert "rows:" not in env.explain(), env.explain()
    async with env.start("columns", restore_from="latest") as job:
        await job.result()


if __name__ == "__main__":
    _, place, batch_rows = sys.argv
    asyncio.run(main(Path(place), int(batch_rows)))
