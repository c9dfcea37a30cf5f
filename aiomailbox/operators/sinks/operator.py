"""The tail of a stream: gives records to a sink's writer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from aiomailbox.errors import RecordsRefusedError
from aiomailbox.operators.core.contract import Operator, Pending, then
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.hooks import call_hook, naming_hook
from aiomailbox.operators.core.on_error import OnError, check_on_error, fail
from aiomailbox.operators.sinks.sink import Sink, SinkWriter
from aiomailbox.records.run import Run
from aiomailbox.state.rescale import OperatorStateSnapshot, RedistributionMode


class SinkOperator(Operator):
    """Writes records with a sink's writer and hands over what is to be committed.

    Before each barrier, and at the end of input, the writer is flushed and what it
    prepared goes to the job, which commits it.

    Args:
        sink: The sink; this operator makes its writer.
        on_error: What to do with a record that the writer refuses.

    Raises:
        WrongTypeError: If ``on_error`` is not an `OnError`.

    Concept:
        Flink, ``SinkWriterOperator``.

    Example:
        >>> from aiomailbox.testing import OneInputHarness
        >>> class Printer:
        ...     def create_writer(self, context):
        ...         return self
        ...
        ...     def write_run(self, run):
        ...         print(run.values)
        ...
        ...     def close(self): ...
        >>> with OneInputHarness(SinkOperator(Printer())) as harness:
        ...     harness.process_run([1, 2])
        [1, 2]
    """

    def __init__(self, sink: Sink, *, on_error: OnError = fail) -> None:
        self.sink = sink
        self.takes_columns = getattr(sink, "takes_columns", False)
        self.on_error: OnError = check_on_error(on_error)
        self._writer: SinkWriter | None = None
        self._restored: list[Any] = []
        self._ended = False

    @property
    def writer(self) -> SinkWriter:
        """The writer, from `open` on."""
        assert self._writer is not None, "a sink has no writer before open()"
        return self._writer

    def restore_own(self, own: OperatorStateSnapshot) -> None:
        """Keep the state for the writer."""
        self._restored = own.elements("writer")
        ended = own.elements("ended")
        # All: one subtask may stand for several now, of which some had more to write.
        self._ended = bool(ended) and all(ended)

    def open(self) -> Pending:
        """Make the writer."""
        function = getattr(self.sink, "function", type(self.sink))
        self._failures = RecordFailures(
            self.on_error, function, self.context, self.output
        )
        self._writer = self._call(
            "create_writer", self.sink.create_writer, self.context
        )
        # The writer looks around while it awaits, so it needs what the operator was
        # given.
        if self.may_leave_rest(0):
            awaiting: Any = self._writer
            awaiting.interruption = self.interruption
        self.accepts = getattr(self._writer, "accepts", None)
        restored, self._restored = self._restored, []
        if restored:
            self._call("restore", self._writer.restore, restored)
        return None

    def may_leave_rest(self, index: int) -> bool:
        """Whether it may leave the rest of a run: if its writer awaits each record."""
        return getattr(self.sink, "may_leave_rest", False)

    def process_run(self, run: Run) -> Pending:
        """Write records; those that the writer refuses go where ``on_error`` says."""
        rest, pending = self._write(run)
        if pending is not None:
            return self._write_on(rest, pending)
        return self._failures.report() if self._failures.waiting else None

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Pending:
        """Flush the writer and hand over what it prepared."""
        return self.settle()

    def settle(self) -> Pending:
        """Flush the writer and hand over what it prepared, without a checkpoint."""
        if self._ended:
            return None
        return self._flush(end_of_input=False)

    def finish(self) -> Pending:
        """Write out everything and hand it over; done once, also across restarts."""
        if self._ended:
            return None
        self._ended = True
        return self._flush(end_of_input=True)

    def snapshot_own(self) -> OperatorStateSnapshot:
        """Return the writer's state and whether all is written and handed over."""
        mode = RedistributionMode.MERGE
        own = super().snapshot_own().with_list("ended", [self._ended], mode)
        return own.with_list("writer", self._call("snapshot", self.writer.snapshot))

    def close(self) -> Pending:
        """Close the writer."""
        writer = self._writer
        return None if writer is None else self._guard("close", writer.close)

    def _write(self, run: Run) -> tuple[Run, Pending]:
        """Write records until there is something to await; return what it is about."""
        # In a loop: each call may refuse some, and those after them are still
        # unwritten.
        while True:
            try:
                return run, self.writer.write_run(run)
            except RecordsRefusedError as refused:
                run = self._without_refused(run, refused)
                if not len(run):
                    return run, None
            except BaseException:
                # Only here: one context manager a run would be felt.
                with self._naming("write_run"):
                    raise

    async def _write_on(self, rest: Run, pending: Pending) -> None:
        while pending is not None:
            try:
                await self._guarded("write_run", pending)
                pending = None
            except RecordsRefusedError as refused:
                rest = self._without_refused(rest, refused)
                rest, pending = self._write(rest) if len(rest) else (rest, None)
        if self._failures.waiting:
            reported = self._failures.report()
            if reported is not None:
                await reported

    def _without_refused(self, run: Run, refused: RecordsRefusedError) -> Run:
        """Do with refused records what ``on_error`` says; return what is to be written.

        Raises:
            UserFunctionError: If no record may be refused.
        """
        values, timestamps = run.values, run.timestamps
        with self._naming("write_run"):
            for index, error in sorted(refused.errors.items()):
                timestamp = None if timestamps is None else timestamps[index]
                self._failures.take(values[index], timestamp, error)
        return run.slice(refused.seen, len(run))

    def _flush(self, *, end_of_input: bool) -> Pending:
        flush = partial(self.writer.flush, end_of_input=end_of_input)
        pending = self._guard("flush", flush)
        return then(pending, self._hand_over)

    def _hand_over(self) -> Pending:
        committables = self._call("prepare_commit", self.writer.prepare_commit)
        if committables:
            self._call("prepare_commit", self.context.commit_later, committables)
        return None

    def _guard(self, hook: str, call: Callable[..., Pending], *args: Any) -> Pending:
        pending = self._call(hook, call, *args)
        return None if pending is None else self._guarded(hook, pending)

    async def _guarded(self, hook: str, pending: Awaitable[None]) -> None:
        with self._naming(hook):
            await pending

    def _call(self, hook: str, call: Callable[..., Any], *args: Any) -> Any:
        context = self.context
        return call_hook(hook, context.operator_name, context.uid, call, *args)

    def _naming(self, hook: str) -> AbstractContextManager[None]:
        context = self.context
        return naming_hook(hook, context.operator_name, context.uid)
