"""Asynchronous iterables, generators above all, as sources."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Final

from aiomailbox.availability import Availability
from aiomailbox.connectors.collection import Reopenable
from aiomailbox.errors import (
    CancelTimeoutError,
    WrongTypeError,
    named_operator,
    safe_repr,
)
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.mutations import difference, is_watchable, structure
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.core.user_code import check_function
from aiomailbox.operators.sources.source import (
    Boundedness,
    EnumeratorContext,
    InputStatus,
    ReaderContext,
    ReaderOutput,
    SplitReader,
    StaticEnumerator,
)
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun
from aiomailbox.signatures import check_count
from aiomailbox.state.serializers import kept_in_state
from aiomailbox.supervision import end_tasks, frames_of
from aiomailbox.task.stream_task import place_of

# A sixth of the time that a job has by default to end.
_INTERRUPT_EVERY_S: Final = 5.0
# How many elements are looked at: a function that gives one object does so at once.
_LOOKS_MAX: Final = 16
_ORDERED: Final = (int, float, datetime)


@kept_in_state("AsyncSplit")
@dataclass(frozen=True, slots=True)
class AsyncSplit:
    """The rest of an asynchronous iterable.

    Attributes:
        split_id: The split's name.
        offset: What the user calls the position of the last element that was emitted;
            None if there is none.
    """

    split_id: str
    offset: Any = None


class AsyncIterableSource:
    """Reads the elements of an asynchronous iterable as soon as they arrive.

    A helper task awaits them, a bounded number ahead of the pipeline; all elements that
    have arrived when the pipeline polls form one run. An early end closes the generator.

    With ``offset=`` it is replayable: a snapshot has the offset of the last element
    that was emitted, and the function is called with it to resume. Without it, a
    restored job reads the function's new iterable from its start: a queue or a web
    socket gives new elements only, an iterable that starts anew gives all elements
    again.

    Args:
        iterable: An asynchronous iterable, or a function without arguments that
            returns one: an ``async def`` function with ``yield`` as it is. With
            ``offset=``, a function of the offset after which to resume, None at the start.
        bounded: Whether it ends by itself.
        buffered_max: How many elements may wait for the pipeline, at least 1.
        offset: A field of the elements, or a function of one, that gives its offset:
            a plain value such as an int, a str or a tuple.

    Attributes:
        replayable: Whether ``offset`` was given.

    Raises:
        WrongTypeError: If it is neither; or, with ``offset=``, not a function of one
            argument.
        InvalidArgumentError: If ``buffered_max`` is less than 1.

    Example:
        >>> async def numbers():
        ...     for number in range(3):
        ...         yield number
        >>> source = AsyncIterableSource(numbers)
        >>> async def numbers_after(offset):
        ...     for number in range(0 if offset is None else offset + 1, 3):
        ...         yield number
        >>> source = AsyncIterableSource(numbers_after, offset=lambda number: number)
    """

    # An iterator has one place in it where to go on: there is one reader.
    parallelism_max = 1
    position_types: ClassVar[tuple[type[Any], ...]] = (AsyncSplit,)
    # What it awaits belongs to the loop that starts the job.
    stays_in_parent = True
    replays = "after the offset of the last element that counts"

    def __init__(
        self,
        iterable: AsyncIterable[Any] | Callable[..., AsyncIterable[Any]],
        *,
        bounded: bool = True,
        buffered_max: int = RUN_LENGTH_MAX,
        offset: str | Callable[[Any], Any] | None = None,
    ) -> None:
        self._iterable = Reopenable(
            iterable, "__aiter__", "__anext__", "an async iterable"
        )
        self.replayable: bool = offset is not None
        self._offset = None if offset is None else field_or_function(offset, "offset")
        if offset is not None:
            if not self._iterable.is_factory:
                raise WrongTypeError(
                    "iterable",
                    "an iterable cannot resume after an offset=",
                    "Give a function of the offset, which is None at the start.",
                )
            check_function(iterable, "iterable", arity=1)
        elif self._iterable.is_factory:
            check_function(iterable, "iterable", arity=0)
        check_count(buffered_max, "buffered_max")
        self._buffered_max = buffered_max
        self.boundedness = Boundedness.BOUNDED if bounded else Boundedness.UNBOUNDED

    def create_enumerator(
        self, context: EnumeratorContext[AsyncSplit], state: list[Any] | None = None
    ) -> StaticEnumerator[AsyncSplit]:
        """Create the enumerator: one split."""
        return StaticEnumerator(
            context, [AsyncSplit("all")] if state is None else state
        )

    def create_reader(self, context: ReaderContext) -> _AsyncReader:
        """Create a reader."""
        return _AsyncReader(
            context, self._open, self._offset, self._buffered_max, self._rest
        )

    def _rest(self) -> Iterable[Any]:
        """Return what has come already and is not awaited any more after a stop."""
        return ()

    def _open(self, split: AsyncSplit) -> AsyncIterator[Any]:
        if self._offset is None:
            made = self._iterable.open(0)
        else:
            made = self._iterable.open_after(split.offset)
        if not hasattr(made, "__aiter__"):
            close = getattr(made, "close", None)
            if close is not None:
                close()
            raise WrongTypeError(
                "iterable",
                f"the function returned {type(made).__name__}, not an async iterable",
                "Write an async def function with yield.",
            )
        return made.__aiter__()


class _FirstValues:
    """Looks whether an iterable gives one object again and again, or begins too early.

    Args:
        context: The reader's.

    Attributes:
        offset: The offset of an element, None for an iterable without offsets.
        after: That behind which the iterable was to begin, None for the beginning.
    """

    def __init__(self, context: ReaderContext) -> None:
        self.offset: Callable[[Any], Any] | None = None
        self.after: Any = None
        self._context = context
        self._last: Any = None
        self._before: Any = None
        self._left = _LOOKS_MAX

    def look(self, value: Any) -> bool:
        """Look at the next element, and say whether that is all."""
        if self.after is not None:
            self._look_at_offset(value)
        change = ""
        if value is self._last and self._before is not None:
            change = difference(self._before, structure(value))
        if change:
            self._context.log.warning(
                "a source yields an object again that it has changed: all its records "
                "are that object, with its last contents",
                source=self._context.operator_name,
                change=change,
                remedy="yield a new object for each record, such as dict(row)",
            )
        self._left -= 1
        self._last = value
        self._before = structure(value) if is_watchable(value) else None
        return bool(change) or self._left <= 0

    def _look_at_offset(self, value: Any) -> None:
        after, self.after = self.after, None
        offset: Any = self.offset and self.offset(value)
        # Other kinds of offsets may have no order, such as random ids.
        has_order = type(offset) is type(after) and type(offset) in _ORDERED
        if offset == after or (has_order and offset < after):
            self._context.log.warning(
                "a source begins with an element that it has given before: its function "
                "does not begin behind the offset that it gets",
                source=self._context.operator_name,
                offset=after,
                first=offset,
                remedy="let the function yield what follows its argument; None is the "
                "beginning",
            )


class _AsyncReader(SplitReader[AsyncSplit]):
    """Takes what the helper task has collected."""

    def __init__(
        self,
        context: ReaderContext,
        open_at: Callable[[AsyncSplit], AsyncIterator[Any]],
        offset: Callable[[Any], Any] | None,
        buffered_max: int,
        rest: Callable[[], Iterable[Any]],
    ) -> None:
        super().__init__()
        self._context = context
        self._open_at = open_at
        self._offset = offset
        self._buffered_max = buffered_max
        self._rest = rest
        self._room = Availability(available=True)
        # Filled by the helper task and emptied by polls, both on the loop: no lock.
        self._values: deque[Any] = deque()
        # The element that was emitted last, if offsets are asked for.
        self._last: list[Any] = []
        self._is_started = False
        self._task: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._ended = False
        self._is_ending = False
        self._is_closed = False
        self._error: BaseException | None = None

    def start(self) -> None:
        """Begin to await elements, if there is a split already."""
        self._is_started = True
        self._start_task()

    def add_splits(self, splits: list[AsyncSplit]) -> None:
        """Take the split over, at its offset."""
        super().add_splits(splits)
        self._start_task()

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit what has come, at most one run."""
        values = self._values
        if not self._splits:
            if self._ended:
                return InputStatus.END_OF_INPUT
        elif values:
            count = min(len(values), output.records_max)
            run = [values.popleft() for _ in range(count)]
            if self._offset is not None:
                if not self._last:
                    # A wrong name fails at once, and not with the first checkpoint.
                    self._offset(run[0])
                self._last = run[-1:]
            self._room.set_available()
            output.for_split(self._splits[0].split_id).emit_run(ListRun(run))
            return InputStatus.MORE_AVAILABLE
        elif self._error is not None:
            raise self._error
        elif self._ended:
            # Stopped, and not read to its end: a restored reader resumes here.
            if not self._is_ending:
                self._finish_split(output)
                self._no_more_splits = True
            return InputStatus.END_OF_INPUT
        return self._nothing()

    def snapshot(self) -> list[AsyncSplit]:
        """Return the split, after the last element that was emitted."""
        if self._offset is None or not self._last:
            return super().snapshot()
        offset = self._offset(self._last[0])
        return [replace(split, offset=offset) for split in self._splits]

    def stop(self) -> None:
        """Await no more elements; those that have come are still emitted, then it ends."""
        # Before the values are looked at: the helper task takes nothing more from now
        # on.
        self._is_ending = True
        if self._task is not None:
            # Whatever the helper task has taken is in the values: it waits behind them.
            self._values.extend(self._rest())
            self.availability.set_available()
            ending = self._end(self._task)
            self._stopping = self._context.spawn(ending, name="async iterable stops")
        else:
            self._ended = True
            self.availability.set_available()

    async def _end(self, task: asyncio.Task[None]) -> None:
        """End the helper task; one that ignores its cancellation fails the job."""
        timeout_s = self._context.cancel_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await end_tasks([task], every_s=_INTERRUPT_EVERY_S)
        except TimeoutError:
            context = self._context
            owner = f"{named_operator(context.operator_name, context.uid)}"
            self._error = CancelTimeoutError(
                "an asynchronous iterable that was stopped",
                timeout_s,
                place_of(frames_of(task), owner),
            )
            self.availability.set_available()

    def close(self) -> Pending:
        """End the helper task, which closes the generator; its owner waits for it."""
        self._is_ending = self._is_closed = True
        self._values.clear()
        if self._task is not None and not self._task.cancelling():
            self._task.cancel()
        return None

    def _start_task(self) -> None:
        if self._is_ending or self._task is not None:
            return
        if self._is_started and self._splits:
            self._task = self._context.spawn(self._collect(), name="async iterable")
            self._task.add_done_callback(self._on_collected)

    def _on_collected(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before it has begun cannot say so itself.
        if task.cancelled() and not self._is_ending:
            self._error = asyncio.CancelledError()
        self._ended = True
        self.availability.set_available()

    async def _collect(self) -> None:
        try:
            iterator = self._open_at(self._splits[0])
            try:
                # A generator that is not closed here is closed by the loop's hook, at
                # any time later.
                await self._collect_from(iterator)
            finally:
                close = getattr(iterator, "aclose", None)
                if close is not None:
                    await close()
        except BaseException as error:  # noqa: BLE001 -- poll_next raises it
            # A cancellation is this reader's own only if it ends.
            if not (self._is_ending and isinstance(error, asyncio.CancelledError)):
                self._error = error
                if self._is_closed:
                    # Nobody polls any more.
                    self._context.log.warning(
                        "source failed while closing", error=safe_repr(error)
                    )
        self._ended = True
        self.availability.set_available()

    async def _collect_from(self, iterator: AsyncIterator[Any]) -> None:
        check = self._context.mutations
        first = None if check is not None else _FirstValues(self._context)
        if first is not None and self._offset is not None:
            first.offset, first.after = self._offset, self._splits[0].offset
        async for value in iterator:
            if first is not None and first.look(value):
                first = None
            if check is not None:
                # Now: by the time it is emitted, the next ones have changed it.
                check.repeated((value,))
                check.note((value,))
            self._values.append(value)
            # Mostly there are more in a row: one flag spares a wake-up each.
            if not self.availability.available:
                self.availability.set_available()
            if self._is_ending:
                # It caught its cancellation, and has given what it had.
                return
            if len(self._values) >= self._buffered_max:
                self._room.reset()
                await self._room.wait()
