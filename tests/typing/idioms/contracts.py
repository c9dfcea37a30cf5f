"""What users write for the library to call, with names of their own. Never run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import aiomailbox as am
from aiomailbox.records.run import Run
from tests.typing.idioms.streams import Order

FIRST = am.ValueStateDescriptor("first", int)


class Lines:
    """Appends records to a file, and shows it at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create_writer(self, ctx: am.RuntimeContext) -> LineWriter:
        return LineWriter(self.path / f"{ctx.subtask_index}.txt")

    def create_committer(self, ctx: am.CommitterContext) -> Shown:
        return Shown()


class LineWriter:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[str] = []

    def write_run(self, records: Run) -> None:
        self.lines.extend(map(str, records.values))

    async def flush(self, *, end_of_input: bool) -> None:
        self.path.write_text("\n".join(self.lines))

    def prepare_commit(self) -> list[Path]:
        return [self.path]

    def snapshot(self) -> list[str]:
        return self.lines

    def restore(self, lines: list[str]) -> None:
        self.lines = lines

    def close(self) -> None: ...


class Shown:
    def begin(self, *, restored: bool) -> None: ...

    async def commit(
        self, paths: list[Path], *, checkpoint_id: int, is_final: bool
    ) -> None:
        print(paths)

    def end(self, *, succeeded: bool) -> None: ...


class OneOf:
    def __init__(self, split_id: str) -> None:
        self.split_id = split_id


class Three:
    """Reads the number three."""

    boundedness = am.Boundedness.BOUNDED

    def create_enumerator(
        self, ctx: Any, restored: list[Any] | None = None
    ) -> am.StaticEnumerator[OneOf]:
        return am.StaticEnumerator(ctx, [OneOf("three")])

    def create_reader(self, ctx: Any) -> ThreeReader:
        return ThreeReader()


class ThreeReader:
    def __init__(self) -> None:
        self.availability = am.Availability(available=True)

    def start(self) -> None: ...

    def poll_next(self, out: Any) -> am.InputStatus:
        out.emit_run(am.ListRun([3]))
        return am.InputStatus.END_OF_DATA

    def add_splits(self, given: list[OneOf]) -> None: ...

    def notify_no_more_splits(self) -> None: ...

    def snapshot(self) -> list[OneOf]:
        return []

    def close(self) -> None: ...


class Counted(am.ProcessFunction[Order, int]):
    """Counts what it has seen, in its own state."""

    def initialize_state(self, ctx: am.FunctionStateContext) -> None:
        self.seen = 0

    def snapshot_state(self, ctx: am.FunctionStateContext) -> None: ...

    def process_element(
        self, order: Order, ctx: am.ProcessContext, out: am.Collector[int]
    ) -> None:
        self.seen += 1
        out.collect(self.seen)


class OnFirst(am.Trigger):
    def on_element(
        self,
        order: Any,
        at: int | None,
        span: am.TimeWindow | am.GlobalWindow,
        ctx: am.TriggerContext,
    ) -> am.TriggerResult:
        first = ctx.get_value(FIRST)
        assert_type(first, am.ValueState[int | None])
        return am.TriggerResult.FIRE


def uses(env: am.StreamExecutionEnvironment, stream: am.DataStream[Order]) -> None:
    assert_type(env.from_source(Three(), output_type=int), am.DataStream[int])
    assert_type(stream.sink_to(Lines(Path("out"))), am.DataStream[Order])
    assert_type(stream.process(Counted()), am.DataStream[int])
    windows = stream.window_all(am.TumblingEventTimeWindows.of(am.hours(1)))
    assert_type(windows.trigger(OnFirst()).aggregate(am.count()), am.DataStream[int])


def runs(run: am.ListRun) -> Run:
    return run
