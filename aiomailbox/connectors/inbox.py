"""Sources that other code of the program puts into, and sinks that it reads from.

Theory of operation: all of it lives on the loop that starts the job, in the process that
does: what is put waits in a bounded queue, and further callers of `put` wait for room.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from aiomailbox.availability import Availability
from aiomailbox.connectors.async_iterable import AsyncIterableSource
from aiomailbox.connectors.immediate_writer import ImmediateWriter
from aiomailbox.errors import IllegalStateError, InvalidArgumentError, WrongTypeError
from aiomailbox.operators import CommitterContext, Pending, RuntimeContext
from aiomailbox.records import RUN_LENGTH_MAX, Answer, Question, Run

__all__ = ["Answers", "Inbox", "Publication", "Questions", "Subscription"]

T = TypeVar("T")

_SIZE: Final = 1024


class Inbox(AsyncIterableSource, Generic[T]):
    """A source that other code of the program puts records into.

    Not replayable: records that a failed job has read are not read again. One job at a time
    reads it; without a job, records wait in it. A job that is stopped processes all
    records that were put before.

    Args:
        size: How many records may wait in it; the pipeline holds as many again.

    Raises:
        InvalidArgumentError: If ``size`` is less than 1.

    Example:
        >>> import aiomailbox as am
        >>> async def main() -> None:
        ...     inbox = am.Inbox(size=10)
        ...     env = am.StreamExecutionEnvironment()
        ...     env.from_source(inbox).map(lambda n: n * 2).sink_to(print)
        ...     async with env.start() as job:
        ...         await inbox.put(21)
        ...         inbox.close()
        ...         await job.result()
        >>> am.run(main())
        42
    """

    def __init__(self, size: int = _SIZE) -> None:
        if size < 1:
            raise InvalidArgumentError("size", f"{size} is too few", "Use 1 or more.")
        super().__init__(
            self._records, bounded=False, buffered_max=min(size, RUN_LENGTH_MAX)
        )
        self._size = size
        self._waiting: deque[T] = deque()
        self._has_room = Availability(available=True)
        self._has_some = Availability(available=False)
        self._is_closed = False

    def __len__(self) -> int:
        """Return how many records wait in it."""
        return len(self._waiting)

    async def put(self, record: T) -> None:
        """Put a record in, and wait for room before; cancelling puts nothing.

        Raises:
            IllegalStateError: If it is closed.
        """
        # Tried again: of many waiters, others may have been quicker.
        while not self.try_put(record):
            await self._has_room.wait()

    def try_put(self, record: T) -> bool:
        """Put a record in if there is room, and say whether.

        Raises:
            IllegalStateError: If it is closed.
        """
        if self._is_closed:
            raise IllegalStateError("the inbox is closed: its stream has ended")
        if len(self._waiting) >= self._size:
            self._has_room.reset()
            return False
        self._waiting.append(record)
        self._has_some.set_available()
        return True

    def close(self) -> None:
        """End the stream after what was put; again is a no-op."""
        self._is_closed = True
        self._has_some.set_available()
        self._has_room.set_available()

    def _rest(self) -> Iterable[T]:
        # Its producer was notified that it was accepted: a stop does not drop it.
        rest = list(self._waiting)
        self._waiting.clear()
        self._has_room.set_available()
        return rest

    def _records(self) -> AsyncIterator[T]:
        return self._taken_out()

    async def _taken_out(self) -> AsyncIterator[T]:
        waiting = self._waiting
        while True:
            while waiting:
                record = waiting.popleft()
                # Before it is handed on: its place is free as soon as it has left.
                self._has_room.set_available()
                yield record
            if self._is_closed:
                return
            # Reset, then wait, with nothing awaited in between: no record can be
            # missed.
            self._has_some.reset()
            await self._has_some.wait()


class Questions(Inbox[Question[Any]]):
    """The source of the questions that are put to a job with ``job.ask``.

    A job that is restarted gets the questions again that it has read and not answered.

    Args:
        size: How many questions may be open at once; further callers wait.
    """

    def __init__(self, size: int = _SIZE) -> None:
        super().__init__(size)
        self._desk = next(_numbers)
        self._next = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        # Of these, what has been put in.
        self._given: dict[int, Question[Any]] = {}
        self._room = Availability(available=True)
        self._ended = False
        _desks[self._desk] = self

    @property
    def open_count(self) -> int:
        """How many questions have no answer yet."""
        return len(self._asked)

    async def ask(self, value: Any) -> Any:
        """Put a question in and return its answer; cancelling forgets the question.

        Raises:
            IllegalStateError: If questions are no longer answered.
        """
        while len(self._asked) >= self._size:
            self._check_open()
            self._room.reset()
            await self._room.wait()
        self._check_open()
        number = next(self._next)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # In `_asked` before it is put in: an answer may come while the put still waits.
        self._asked[number] = answer
        try:
            question = Question(self._desk, number, value)
            await self.put(question)
            # Only now: a new attempt of the job must not be given what is not taken
            # yet.
            self._given[number] = question
            return await answer
        finally:
            del self._asked[number]
            self._given.pop(number, None)
            self._room.set_available()

    def _records(self) -> AsyncIterator[Question[Any]]:
        """Give, to each attempt of the job, what no attempt has answered."""
        waiting = {question.number for question in self._waiting}
        # An attempt that failed has taken them, and never answered.
        taken = [one for one in self._given.values() if one.number not in waiting]
        self._waiting.extendleft(reversed(taken))
        return super()._records()

    def settle(self, answer: Answer) -> None:
        """Return an answer to its asker; one that is not waited for is dropped."""
        waiting = self._asked.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer.value)

    def end(self) -> None:
        """Fail all that wait for an answer: the job is over."""
        self._ended = True
        self._room.set_available()
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(_no_answer())
        self.close()

    def _check_open(self) -> None:
        if self._ended:
            raise _no_answer()


def _no_answer() -> IllegalStateError:
    return IllegalStateError("there will be no answer: the job has ended")


# By number, and weakly: a question travels through pickles, its asker does not.
_numbers = itertools.count()
_desks: WeakValueDictionary[int, Questions] = WeakValueDictionary()


class Answers:
    """The sink of answers: each goes to its asker, see ``env.from_questions``."""

    # The asker is there.
    stays_in_parent = True

    def create_writer(self, context: RuntimeContext) -> _AnswerWriter:
        """Create the writer of one subtask."""
        return _AnswerWriter(context)

    def create_committer(self, context: CommitterContext) -> None:
        """Return None: nothing is committed."""
        return


class _AnswerWriter(ImmediateWriter):
    __slots__ = ("_name",)

    def __init__(self, context: RuntimeContext) -> None:
        self._name: str = context.operator_name

    def write_run(self, run: Run) -> Pending:
        """Return each answer to its asker."""
        for value in run.values:
            if type(value) is not Answer:
                raise WrongTypeError(
                    f"operator {self._name!r}",
                    f"{type(value).__name__} is not an answer",
                    "Emit question.answer(value), which says whose answer it is.",
                )
            # A copy of an answer, from a savepoint say, has no asker any more.
            desk = _desks.get(value.desk)
            if desk is not None:
                desk.settle(value)
        return None


class Publication:
    """A sink for any number of readers, which come and go while the job runs."""

    # The reader is there.
    stays_in_parent = True

    def __init__(self) -> None:
        self.readers: list[Subscription[Any]] = []
        self.room: Availability = Availability(available=True)
        self._is_over = False

    def create_writer(self, context: RuntimeContext) -> _PublicationWriter:
        """Create the writer of one subtask."""
        return _PublicationWriter(self)

    def create_committer(self, context: CommitterContext) -> None:
        """Return None: nothing is committed."""
        return

    def subscribe(self, size: int, *, waits: bool) -> Subscription[Any]:
        """Return a new reader: it gets what comes from now on."""
        reader: Subscription[Any] = Subscription(self, size, waits=waits)
        if self._is_over:
            reader._end()
        else:
            self.readers.append(reader)
        return reader

    def end(self) -> None:
        """Let all readers end after what they have: the job is over."""
        self._is_over = True
        for reader in list(self.readers):
            reader._end()
        self.readers.clear()

    def look_for_room(self) -> None:
        """Take no more while a reader that is waited for is full."""
        if any(reader._holds_up for reader in self.readers):
            self.room.reset()
        else:
            self.room.set_available()


class _PublicationWriter(ImmediateWriter):
    """Gives each reader each record.

    Attributes:
        accepts: Available while no reader that is waited for is full.
    """

    __slots__ = ("_publication", "accepts")

    def __init__(self, publication: Publication) -> None:
        self._publication = publication
        self.accepts: Availability = publication.room

    def write_run(self, run: Run) -> Pending:
        """Give each reader the records."""
        for reader in self._publication.readers:
            reader._offer(run.values)
        self._publication.look_for_room()
        return None


class Subscription(Generic[T]):
    """One reader of a published stream: an asynchronous iterator.

    Made by ``job.subscribe``. It ends with the job.

    Attributes:
        dropped: The number of records that were dropped because it was too slow.
    """

    def __init__(self, publication: Publication, size: int, *, waits: bool) -> None:
        self._publication = publication
        self._size = size
        self._waits = waits
        # Without `maxlen` for one that is waited for: nothing of it may be lost.
        self._records: deque[T] = deque(maxlen=None if waits else size)
        self._has_some = Availability(available=False)
        self._is_over = False
        self.dropped: int = 0

    @property
    def _holds_up(self) -> bool:
        """Whether the job waits for it."""
        return self._waits and len(self._records) >= self._size

    def _offer(self, values: list[T]) -> None:
        """Take records; the oldest ones go if it does not keep up."""
        # A `deque` with `maxlen` drops by itself, and does not say how many.
        if not self._waits:
            beyond = len(self._records) + len(values) - self._size
            self.dropped += max(0, beyond)
        self._records.extend(values)
        self._has_some.set_available()

    def _end(self) -> None:
        """End after what there is."""
        self._is_over = True
        self._has_some.set_available()

    def close(self) -> None:
        """Read no more; again is a no-op."""
        self._end()
        self._records.clear()
        if self in self._publication.readers:
            self._publication.readers.remove(self)
        self._publication.look_for_room()

    def __aiter__(self) -> Subscription[T]:
        return self

    async def __anext__(self) -> T:
        while not self._records:
            if self._is_over:
                raise StopAsyncIteration
            self._has_some.reset()
            await self._has_some.wait()
        record = self._records.popleft()
        if self._waits:
            self._publication.look_for_room()
        return record

    async def __aenter__(self) -> Subscription[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
