"""Inputs and outputs of operators that are watched for changes of records."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from types import GeneratorType
from typing import Any, Final, cast

from aiomailbox.errors import named_operator
from aiomailbox.operators.core.collector import Collector, NotingCollector
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.mutations import MutationCheck, RepeatedObjects
from aiomailbox.operators.core.operator import Input, Operator, Output, Pending
from aiomailbox.operators.core.user_code import describe
from aiomailbox.records.events import OutputTag
from aiomailbox.records.run import ListRun, Run


class WatchedInput:
    """An operator's input that is watched; everything else is as it was.

    Args:
        target: The input.
        check: The operator's.
    """

    def __init__(self, target: Input, check: MutationCheck) -> None:
        self._target = target
        self._check = check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def process_run(self, run: Run) -> Pending:
        """Process records, and see what becomes of them."""
        # Columns can't be changed by those that get rows of them.
        if type(run) is ListRun:
            self._check.note(run.values)
        return self._work(self._target.process_run, run)

    def process_watermark(self, timestamp_ms: int) -> Pending:
        """Advance event time, and see what becomes of records that are kept."""
        return self._work(self._target.process_watermark, timestamp_ms)

    def _work(self, method: Callable[[Any], Pending], argument: Any) -> Pending:
        self._check.enter()
        try:
            pending = method(argument)
        except BaseException:
            self._check.leave_failed()
            raise
        if pending is not None:
            return self._finish(pending)
        self._check.leave()
        return None

    async def _finish(self, pending: Awaitable[None]) -> None:
        try:
            await pending
        except BaseException:
            self._check.leave_failed()
            raise
        self._check.leave()


def watched_input(operator: Operator, index: int) -> Input:
    """Return an input of an operator, watched if its records are."""
    target, check = operator.inputs[index], operator.context.mutations
    # It has all that an input has.
    return target if check is None else cast("Input", WatchedInput(target, check))


class WatchedOutput:
    """An operator's output that notes what is emitted; everything else is as it was.

    Args:
        output: The output.
        check: The operator's.
        is_source: Whether the operator has no input, so that it is always at work.

    Attributes:
        output: As given.
    """

    def __init__(
        self, output: Output, check: MutationCheck, *, is_source: bool
    ) -> None:
        self.output = output
        self._check = check
        self._is_source = is_source

    def __getattr__(self, name: str) -> Any:
        return getattr(self.output, name)

    def emit_run(self, run: Run) -> Pending:
        """Note the records and pass them on."""
        self._note(run)
        return self.output.emit_run(run)

    def emit_side(self, tag: OutputTag, run: Run) -> Pending:
        """Note the records and pass them on to a side output."""
        self._note(run)
        return self.output.emit_side(tag, run)

    def _note(self, run: Run) -> None:
        if type(run) is not ListRun:
            return
        # A source that emits one object again and again may have changed it in between.
        if self._is_source:
            self._check.repeated(run.values)
        self._check.note(run.values)


class WatchedCollector(Collector):
    """A collector that notes each result when it is collected, not when it goes out.

    Args:
        output: The operator's output, below what notes what is emitted.
        place: The operator, as errors name it.
        check: The operator's.
    """

    def __init__(self, output: Output, place: str, check: MutationCheck) -> None:
        super().__init__(output, place)
        self._check = check

    def _rest(self) -> None:
        """Stay awake: jobs that are not watched say what comes late."""

    def collect(self, value: Any) -> None:
        """Note a result and take it."""
        self._check.note((value,))
        super().collect(value)

    def collect_side(self, tag: OutputTag, value: Any) -> None:
        """Note a result for a side output and take it."""
        self._check.note((value,))
        super().collect_side(tag, value)


def collector_for(context: RuntimeContext, output: Output) -> Collector:
    """Return a collector of an operator, watched if its records are."""
    check, place = context.mutations, named_operator(context.operator_name, context.uid)
    if check is None:

        def warn(change: str) -> None:
            context.log.warning(
                "a function changes a result that it has emitted: it goes on with its "
                "last contents",
                change=change,
                line=context.line,
                remedy="emit a new object each time, such as out.collect(list(batch)), "
                "before the old one is cleared or filled again",
            )

        return NotingCollector(output, place, warn)
    # It would note each record twice: once when it is collected, once when it goes out.
    if isinstance(output, WatchedOutput):
        output = output.output
    return WatchedCollector(output, place, check)


def watched_function(
    function: Callable[[Any], Any], check: MutationCheck
) -> Callable[[Any], Any]:
    """Return a function whose items, if it gives them one by one, are noted at once."""

    @functools.wraps(function)
    def call(record: Any) -> Any:
        items = function(record)
        return noted(items, check) if isinstance(items, Iterator) else items

    return call


def repeated_objects(
    context: RuntimeContext, function: Callable[..., Any]
) -> RepeatedObjects | None:
    """Return what looks at a function's first results; None if all are watched."""
    if context.mutations is not None:
        return None

    def warn(change: str) -> None:
        context.log.warning(
            "a function returns an object again that has changed since: all its records "
            "are that object, with its last contents",
            change=change,
            function=describe(function),
            line=context.line,
            remedy="return a new object each time, such as list(batch) or dict(row); a "
            "function behind it that changes its record gets a copy the same way",
        )

    return RepeatedObjects(warn)


class LookedAtOperator(Operator):
    """The base of operators whose first results are looked at, if they are not watched."""

    _seen: RepeatedObjects | None = None

    def close(self) -> Pending:
        if self._seen is not None:
            self._seen.end()
        return None


class Verdicts:
    """The first verdicts of a filter, to see whether one is the text "false".

    Args:
        context: The operator's.
        function: The filter's.

    Attributes:
        is_over: Whether no more are looked at.
    """

    def __init__(self, context: RuntimeContext, function: Callable[..., Any]) -> None:
        self.is_over: bool = False
        self._context = context
        self._function = function
        self._left = _VERDICTS_MAX

    def look(self, verdict: Any) -> None:
        """Look at the next verdict."""
        self._left -= 1
        self.is_over = self._left <= 0
        if type(verdict) is str and verdict.lower() == "false":
            self.is_over = True
            self._context.log.warning(
                "the verdict of a filter is the text 'false', which keeps the record, as any "
                "text does that is not empty",
                verdict=verdict,
                function=describe(self._function),
                line=self._context.line,
                remedy="compare it, as record['ok'] == 'true', or declare the type where it "
                'is read: am.FileSource(..., records={"ok": bool})',
            )


_VERDICTS_MAX: Final = 256
# Calls after which a function that hardly gives anything is looked at no more.
_CALLS_MAX: Final = 4096


def looked_at(
    function: Callable[[Any], Any],
    seen: RepeatedObjects | Verdicts,
    at_end: Callable[[], None],
    *,
    expands: bool,
) -> Callable[[Any], Any]:
    """Return a function whose first results are looked at, or the items of these.

    Args:
        function: Of one record.
        seen: Looks at them.
        at_end: Called at each call once that is over, to let the function be itself.
        expands: Whether its result are the items.
    """
    left = _CALLS_MAX

    def call(record: Any) -> Any:
        nonlocal left
        left -= 1
        result = function(record)
        if seen.is_over or not left:
            seen.is_over = True
            at_end()
        elif not expands or isinstance(seen, Verdicts):
            seen.look(result)
        elif isinstance(result, list | tuple):
            seen.look_at(result)
        elif isinstance(result, GeneratorType):
            return _looked_at(result, seen)
        return result

    return call


def _looked_at(items: Iterator[Any], seen: RepeatedObjects) -> Iterator[Any]:
    for item in items:
        seen.look(item)
        yield item
        if seen.is_over:
            break
    yield from items


def watched_write(
    write: Callable[[Run], None], partitioner: str, uid: str | None
) -> Callable[[Run], None]:
    """Return what writes records and raises if a partitioner changes one of them.

    Args:
        write: Of a writer.
        partitioner: Its name.
        uid: Of the operator before it, or None.
    """
    check = MutationCheck(partitioner, uid)

    def call(run: Run) -> None:
        records = run.values if type(run) is ListRun else ()
        check.calling(records, write, run)

    return call


def noted(items: Iterator[Any], check: MutationCheck) -> Iterator[Any]:
    """Yield items, each of which is noted at once."""
    for item in items:
        check.note((item,))
        yield item
