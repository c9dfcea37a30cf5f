"""Sources that other code of the program puts into, and sinks that it reads from.

Theory of operation: all of it lives on the loop that starts the job, in the process that
does: what is put waits in a bounded queue, and further callers of `put` wait in a line for
room. A place that becomes free is given to the first in the line, so nobody who comes
later gets it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn
from weakref import WeakSet, WeakValueDictionary, finalize

from aiomailbox.availability import Availability
from aiomailbox.connectors.async_iterable import AsyncSplit
from aiomailbox.connectors.sinks import ImmediateSink, ImmediateWriter
from aiomailbox.errors import IllegalStateError, UsageError, WrongTypeError
from aiomailbox.logs import library_log
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.sources.source import (
    Boundedness,
    EnumeratorContext,
    InputStatus,
    ReaderContext,
    ReaderOutput,
    SplitReader,
    StaticEnumerator,
)
from aiomailbox.records.events import Answer, Question
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun, Run
from aiomailbox.signatures import check_count
from aiomailbox.supervision import check_loop
from aiomailbox.typevars import InT, T

_SIZE: Final = 1024
# How long a job waits for a subscriber before it says so.
_UNREAD_S: Final = 10.0


class _Places:
    """A number of places, given first come, first served."""

    def __init__(self, count: int) -> None:
        self._free = count
        # Not empty only while none is free.
        self._line: deque[asyncio.Future[None]] = deque()

    def try_take(self) -> bool:
        """Take a place if one is free, and say whether."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        """Take a place, in the order of the calls; cancelling takes none.

        Raises what `turn_away` gives.
        """
        if self.try_take():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._line:
                self._line.remove(turn)
            elif not turn.cancelled() and turn.exception() is None:
                # Its turn came just before.
                self.give_back()
            raise

    def give_back(self, count: int = 1) -> None:
        """Give places to the first in the line, or let them be free."""
        line = self._line
        if not line:
            self._free += count
            return
        while count and line:
            turn = line.popleft()
            # Else it was cancelled, and its task has not run since.
            if not turn.done():
                turn.set_result(None)
                count -= 1
        self._free += count

    def turn_away(self, error: Callable[[], Exception]) -> None:
        """Let all that are in the line fail."""
        for turn in self._line:
            if not turn.done():
                turn.set_exception(error())
                # Who is cancelled at the same moment does not look at it.
                turn.exception()
        self._line.clear()


class Inbox(Generic[InT]):
    """A source that other code of the program puts records into.

    Not replayable: records that a failed job has read are not read again. One job at a
    time reads it. Before the first one, records wait in it. A job that is stopped
    processes all records that were put before. When its job has ended, failed or was
    cancelled, or is being stopped, the inbox refuses records until another job that
    reads it starts. Unread records wait for that job, and the log gives their number.
    Where a job takes over with ``replace=``, nothing is refused: records wait for the
    new job.

    Args:
        size: How many records may wait in it.

    Raises:
        InvalidArgumentError: If ``size`` is less than 1.
        WrongTypeError: If it is no int.

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

    # Records have one order: there is one reader.
    parallelism_max = 1
    position_types: ClassVar[tuple[type[Any], ...]] = (AsyncSplit,)
    # Who puts records in is there.
    stays_in_parent = True
    replayable = False
    boundedness = Boundedness.UNBOUNDED

    def __init__(self, size: int = _SIZE) -> None:
        check_count(size, "size")
        self._taken_max = min(size, RUN_LENGTH_MAX)
        self._waiting: deque[InT] = deque()
        self._places = _Places(size)
        self._has_some = Availability(available=False)
        self._is_closed = False
        # Jobs that read it, or are about to, and the loop of the last of them.
        self._jobs = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_warned = False
        self._readers = 0
        # Why nobody reads it any more; empty while a job does, and before the first one.
        self._refusal = ""

    def __len__(self) -> int:
        """Return how many records wait in it."""
        return len(self._waiting)

    async def put(self, record: InT) -> None:
        """Put a record in; cancelling puts nothing.

        Waits for room, behind those who have called it before.

        Raises:
            IllegalStateError: If it is closed, or its job has ended; also while it waits.
                Or if its job runs on another event loop.
        """
        check_loop(self._loop, "the job that reads the inbox")
        self._check_open()
        if not self._places.try_take():
            self._warn_if_unread()
            await self._wait_for_place()
        self._add(record)

    def try_put(self, record: InT) -> bool:
        """Put a record in if there is room that nobody waits for, and say whether.

        Raises:
            IllegalStateError: If it is closed, or its job has ended, or runs on another
                event loop.
        """
        check_loop(self._loop, "the job that reads the inbox", awaited=False)
        self._check_open()
        if not self._places.try_take():
            return False
        self._add(record)
        return True

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied into a worker process: nobody would read the copy.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "an inbox stays in the process that starts the job: emit what is to be put "
            "in, and put it in with a function as the sink, which runs there"
        )

    @property
    def is_waiting(self) -> bool:
        """Whether it is empty and open, so that its stream goes on without a record."""
        return not self._waiting and not self._is_closed

    def close(self) -> None:
        """End the stream after what was put; again is a no-op.

        Raises:
            IllegalStateError: If its job runs on another event loop.
        """
        check_loop(self._loop, "the job that reads the inbox", awaited=False)
        self._is_closed = True
        self._has_some.set_available()
        self._places.turn_away(self._refused)

    def _begin(self) -> None:
        """Take records: a job that reads it begins."""
        self._jobs += 1
        self._loop = asyncio.get_running_loop()
        self._refusal = ""

    def _hand_over(self) -> None:
        """Let the job that begins now be the one that was about to."""
        self._jobs -= 1

    def _end(self, refusal: str) -> int:
        """Be notified that a job that read it is over.

        Returns:
            How many records nobody has read, or is about to read.
        """
        self._jobs -= 1
        if self._jobs:
            return 0
        self._loop = None
        self._refuse(refusal)
        return len(self._waiting)

    def _refuse(self, refusal: str) -> None:
        self._refusal = refusal
        self._places.turn_away(self._refused)

    def _check_open(self) -> None:
        if self._is_closed or self._refusal:
            raise self._refused()

    async def _wait_for_place(self) -> None:
        await self._places.take()
        # It may have been closed since its turn came.
        if self._is_closed or self._refusal:
            self._places.give_back()
            raise self._refused()

    def _refused(self) -> IllegalStateError:
        if self._is_closed:
            return IllegalStateError("the inbox is closed: its stream has ended")
        return IllegalStateError(f"the inbox takes no records: {self._refusal}")

    def _warn_if_unread(self) -> None:
        """Say that who waits for room waits for a job to begin."""
        if self._jobs or self._has_warned:
            return
        self._has_warned = True
        library_log().warning(
            "an inbox is full, and no job reads it: put waits until one does",
            records=len(self._waiting),
            remedy="start the job that reads it, or use try_put",
        )

    def _add(self, record: InT) -> None:
        self._waiting.append(record)
        # Mostly there are more in a row: one flag spares a wake-up each.
        if not self._has_some.available:
            self._has_some.set_available()

    def create_enumerator(
        self, context: EnumeratorContext[AsyncSplit], state: list[Any] | None = None
    ) -> StaticEnumerator[AsyncSplit]:
        """Create the enumerator: one split."""
        splits = [AsyncSplit("all")] if state is None else state
        return StaticEnumerator(context, splits)

    def create_reader(self, context: ReaderContext) -> _InboxReader:
        """Create a reader."""
        return _InboxReader(context, self)

    def _on_taken(self, count: int) -> None:
        """Let records leave: their places are free."""
        self._places.give_back(count)

    def _rest(self) -> Iterable[InT]:
        # Nobody would read what comes now, unless another job takes over.
        if self._jobs <= 1:
            self._refuse("the job that reads it is being stopped")
        # Its producer was notified that it was accepted: a stop does not drop it.
        rest = list(self._waiting)
        self._waiting.clear()
        self._on_taken(len(rest))
        return rest

    def _on_reader(self) -> None:
        """Be notified that an attempt of a job begins to read."""
        # Its job was being stopped, and has restarted instead.
        self._refusal = ""
        self._readers += 1
        if self._readers > 1:
            library_log().warning(
                "an inbox is read twice at once: each record goes to one of the readers",
                remedy="give each source an inbox of its own",
            )
        if self._waiting or self._is_closed:
            self._has_some.set_available()

    def _on_reader_gone(self) -> None:
        self._readers -= 1


class _InboxReader(SplitReader[AsyncSplit]):
    """Takes what waits in an inbox, a run at a time."""

    def __init__(self, context: ReaderContext, inbox: Inbox[Any]) -> None:
        super().__init__()
        self.availability: Availability = inbox._has_some
        self._context = context
        self._inbox = inbox
        self._is_reading = False
        # What had been put before a stop; None before.
        self._rest: deque[Any] | None = None

    def start(self) -> None:
        """Begin to read."""
        self._is_reading = True
        self._inbox._on_reader()

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit what waits, at most one run."""
        inbox, rest = self._inbox, self._rest
        if not self._splits:
            if rest is not None:
                return InputStatus.END_OF_INPUT
        elif waiting := inbox._waiting if rest is None else rest:
            count = min(len(waiting), output.records_max, inbox._taken_max)
            run = [waiting.popleft() for _ in range(count)]
            if rest is None:
                inbox._on_taken(count)
            check = self._context.mutations
            if check is not None:
                check.repeated(run)
                check.note(run)
            output.for_split(self._splits[0].split_id).emit_run(ListRun(run))
            return InputStatus.MORE_AVAILABLE
        elif rest is not None:
            # Stopped, not read to its end: a restored reader resumes here.
            return InputStatus.END_OF_INPUT
        elif inbox._is_closed:
            self._finish_split(output)
            self._no_more_splits = True
        return self._nothing()

    def stop(self) -> None:
        """Read what was put until now, and then end."""
        if self._rest is None:
            self._rest = deque(self._inbox._rest())
        self.availability.set_available()

    def close(self) -> Pending:
        """Read no more."""
        if self._is_reading:
            self._is_reading = False
            self._inbox._on_reader_gone()
        return None


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
        # Those that have no answer yet, with what waits for it, by number.
        self.asked: dict[int, tuple[asyncio.Future[Any], Question[Any]]] = {}
        _desks[self._desk] = self

    @property
    def open_count(self) -> int:
        """How many questions have no answer yet."""
        return len(self.asked)

    @property
    def oldest_question(self) -> Question[Any] | None:
        """The question that has waited for the longest, None if none has no answer."""
        return next((question for _, question in self.asked.values()), None)

    async def ask(self, value: Any) -> Any:
        """Put a question in and return its answer; cancelling forgets the question.

        Waits for room, behind those who have asked before.

        Raises:
            IllegalStateError: If questions are no longer answered.
        """
        if self._is_closed or self._refusal:
            raise self._refused()
        places = self._places
        if not places.try_take():
            await self._wait_for_place()
        number = next(self._next)
        question = Question(self._desk, number, value)
        loop = self._loop or asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self.asked[number] = answer, question
        self._waiting.append(question)
        if not self._has_some.available:
            self._has_some.set_available()
        try:
            return await answer
        except BaseException:
            self._forget(number)
            raise
        finally:
            del self.asked[number]
            places.give_back()

    def _forget(self, number: int) -> None:
        # Else questions that nobody asks any more would pile up before a slow job.
        for at, question in enumerate(self._waiting):
            if question.number == number:
                del self._waiting[at]
                return

    def _on_taken(self, count: int) -> None:
        """Keep their places: a question has its own until it is answered."""

    def _on_reader(self) -> None:
        """Give, to each attempt of the job, what no attempt has answered."""
        waiting = {question.number for question in self._waiting}
        # An attempt that failed has taken them, and never answered.
        taken = [one for _, one in self.asked.values() if one.number not in waiting]
        self._waiting.extendleft(reversed(taken))
        super()._on_reader()

    def _end(self, refusal: str) -> int:
        """Fail all that wait for an answer, too."""
        super()._end(refusal)
        if not self._jobs:
            for waiting, _ in self.asked.values():
                if not waiting.done():
                    waiting.set_exception(self._refused())
        # Each has been told.
        return 0

    def _refused(self) -> IllegalStateError:
        return IllegalStateError("there will be no answer: the job has ended")


# By number, and weakly: a question travels through pickles, its asker does not.
_numbers = itertools.count()
_desks: WeakValueDictionary[int, Questions] = WeakValueDictionary()
_NOBODY: Final[Mapping[int, tuple[asyncio.Future[Any], Question[Any]]]] = {}


class Answers(ImmediateSink):
    """The sink of answers: each goes to its asker, see ``env.from_questions``."""

    # The asker is there.
    stays_in_parent = True

    def create_writer(self, context: RuntimeContext) -> _AnswerWriter:
        """Create the writer of one subtask."""
        return _AnswerWriter(context)


class _AnswerWriter(ImmediateWriter):
    def __init__(self, context: RuntimeContext) -> None:
        self._context = context

    def write_run(self, run: Run) -> Pending:
        """Return each answer to its asker; count those that are not waited for."""
        number, asked = -1, _NOBODY
        for value in run.values:
            if type(value) is not Answer:
                raise WrongTypeError(
                    f"operator {self._context.operator_name!r}",
                    f"{type(value).__name__} is not an answer",
                    "Emit question.answer(value), which says whose answer it is.",
                )
            if value.desk != number:
                number = value.desk
                # A copy of an answer, from a savepoint say, has no asker any more.
                desk = _desks.get(number)
                asked = _NOBODY if desk is None else desk.asked
            found = asked.get(value.number)
            if found is not None and not found[0].done():
                found[0].set_result(value.value)
            else:
                self._context.metrics.counter("answers_dropped").add(1)
        return None


class Publication(ImmediateSink):
    """A sink for any number of readers, which come and go while the job runs."""

    # The reader is there.
    stays_in_parent = True

    def __init__(self) -> None:
        # Weakly: one that its program has dropped, as by a `break`, reads no more.
        self.readers: WeakSet[Subscription[Any]] = WeakSet()
        # Those that are awaited: their tasks may have no other reference.
        self.awaited: set[Subscription[Any]] = set()
        self.room: Availability = Availability(available=True)
        self._is_over = False
        self._watch: asyncio.TimerHandle | None = None
        self._has_warned = False

    def create_writer(self, context: RuntimeContext) -> _PublicationWriter:
        """Create the writer of one subtask."""
        return _PublicationWriter(self)

    def subscribe(self, size: int, *, waits: bool) -> Subscription[Any]:
        """Return a new reader: it gets what comes from now on."""
        reader: Subscription[Any] = Subscription(self, size, waits=waits)
        if self._is_over:
            reader._end()
            library_log().warning(
                "a subscription begins when its job has ended: it gets no record",
                remedy="call job.subscribe(stream) while the job runs; for all results "
                "of a job that ends, await stream.collect()",
            )
        else:
            self.readers.add(reader)
            if waits:
                loop = asyncio.get_running_loop()
                finalize(reader, self._on_dropped, loop).atexit = False
        return reader

    def end(self) -> None:
        """Let all readers end after what they have: the job is over."""
        self._is_over = True
        for reader in list(self.readers):
            reader._end()
        self.readers.clear()
        self._stop_watch()

    def look_for_room(self) -> None:
        """Take no more while a reader that is waited for is full."""
        if any(reader._holds_up for reader in self.readers):
            self.room.reset()
            if self._watch is None and not self._has_warned:
                self._watch_readers()
        else:
            self.room.set_available()

    def _on_dropped(self, loop: asyncio.AbstractEventLoop) -> None:
        # Garbage is collected in any thread.
        if not loop.is_closed():
            loop.call_soon_threadsafe(self.look_for_room)

    def _watch_readers(self) -> None:
        full = {reader: reader._taken for reader in self.readers if reader._holds_up}
        unread = WeakSet(full)
        taken = sum(full.values())
        loop = asyncio.get_running_loop()
        self._watch = loop.call_later(_UNREAD_S, self._look, unread, taken)

    def _look(self, unread: WeakSet[Subscription[Any]], taken: int) -> None:
        """Warn of readers that hold the job up, and have read nothing since."""
        self._watch = None
        if self._is_over or not any(reader._holds_up for reader in self.readers):
            return
        full = [reader for reader in unread if reader._holds_up]
        if full and sum(reader._taken for reader in unread) == taken:
            self._has_warned = True
            library_log().warning(
                "the job waits for a subscriber that does not read: with "
                "on_full='wait' nothing goes on without it",
                subscribers=len(full),
                unread=sum(len(reader._records) for reader in full),
                remedy="read on, leave `async with job.subscribe(...) as records:`, "
                "call close() of the subscription, or use on_full='drop'",
            )
        else:
            self._watch_readers()

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None


class _PublicationWriter(ImmediateWriter):
    """Gives each reader each record.

    Attributes:
        accepts: Available while no reader that is waited for is full.
    """

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
        self._loop = asyncio.get_running_loop()
        self._taken = 0
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
        self._publication.readers.discard(self)
        self._publication.look_for_room()

    def __aiter__(self) -> Subscription[T]:
        return self

    async def __anext__(self) -> T:
        while not self._records:
            if self._is_over:
                raise StopAsyncIteration
            check_loop(self._loop, "the job that publishes the stream")
            self._has_some.reset()
            awaited = self._publication.awaited
            awaited.add(self)
            try:
                await self._has_some.wait()
            finally:
                awaited.discard(self)
        record = self._records.popleft()
        self._taken += 1
        if self._waits:
            self._publication.look_for_room()
        return record

    if not TYPE_CHECKING:

        def __iter__(self) -> NoReturn:
            """Say how records are read.

            Raises:
                UsageError: Always.
            """
            message = "write `async for record in job.subscribe(stream)`"
            raise UsageError(f"records come while the job runs: {message}")

        def __await__(self) -> NoReturn:
            """Say how records are read.

            Raises:
                UsageError: Always.
            """
            self.__iter__()

    async def __aenter__(self) -> Subscription[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
