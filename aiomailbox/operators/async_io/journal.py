"""Finished calls that outlive a crash: written in rounds, found again."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple

import msgspec

from aiomailbox.errors import (
    CorruptStreamError,
    FinishedCallError,
    JournalError,
    RecordIdReusedError,
    RejectedMailError,
    StateError,
    add_note,
    named_operator,
)
from aiomailbox.journal.entries import EntryKind, JournalEntry
from aiomailbox.operators.async_io.calls import CallEntry
from aiomailbox.operators.async_io.settings import Identity
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.user_code import DeadLetter, shortened
from aiomailbox.state.schema import ClassSchema
from aiomailbox.state.serializers import (
    ObjectSerializer,
    StateClasses,
    declared_classes,
)

# Results of calls as bytes that say of which classes they are.


_LENGTH: Final = struct.Struct("<I")


_Schemas = dict[str, ClassSchema]


class ResultCodec:
    """Encodes and decodes results; each names the fields of its classes.

    So one that was kept is read by a program whose classes have gained fields.

    Args:
        name: Whose results they are, for messages.
        classes: The classes that results may have, or type hints that name them.

    Example:
        >>> codec = ResultCodec("ask")
        >>> codec.decode(codec.encode(("forty-two", 42)))
        ('forty-two', 42)
    """

    def __init__(self, name: str, classes: Iterable[Any] = ()) -> None:
        self._name = name
        self._declared = declared_classes(classes)
        self._classes = StateClasses(self._declared)
        self._write = ObjectSerializer(self._classes).encode
        self._met = 0
        self._head = _LENGTH.pack(0)
        # By the classes that results were written with: few, as programs change seldom.
        self._read: dict[bytes, ObjectSerializer] = {b"": ObjectSerializer()}

    def encode(self, result: Any) -> bytes:
        """Return a result as bytes.

        Raises:
            StateError: If it holds something of a class that was not declared, or that
                has no form as bytes.
        """
        data = self._write(result)
        if len(self._classes.met) != self._met:
            self._met = len(self._classes.met)
            schemas = msgspec.msgpack.encode(self._classes.schemas())
            self._head = _LENGTH.pack(len(schemas)) + schemas
        return self._head + data

    def decode(self, payload: bytes) -> Any:
        """Return the result that was encoded.

        Raises:
            StateError: If it has a class that was not declared, or no longer fits.
            CorruptStreamError: If the bytes are none that `encode` has made.
        """
        if len(payload) < _LENGTH.size:
            raise CorruptStreamError(f"{self._name}: a result has no head")
        (length,) = _LENGTH.unpack_from(payload)
        end = _LENGTH.size + length
        schemas = payload[_LENGTH.size : end]
        reader = self._read.get(schemas)
        if reader is None:
            reader = self._read[schemas] = self._reader(schemas)
        return reader.decode(payload[end:])

    def _reader(self, schemas: bytes) -> ObjectSerializer:
        try:
            written = msgspec.msgpack.decode(schemas, type=_Schemas)
        except msgspec.MsgspecError as error:
            raise CorruptStreamError(f"{self._name}: no classes: {error}") from error
        classes = StateClasses(self._declared)
        classes.expect(self._name, written)
        return ObjectSerializer(classes)


# Work that is done in rounds: one at a time, each for all that came since the last.


class Rounds:
    """Does something again and again, as often as it is asked for.

    Args:
        work: One round.

    Attributes:
        pause_s: From the beginning of one round to that of the next, unless an urgent
            one is requested.
    """

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self.pause_s: float = 0.0
        self._next_s = 0.0
        self._is_wanted = False
        self._is_urgent = False
        self._waiter: asyncio.Future[None] | None = None

    def request(self, *, is_urgent: bool = False) -> None:
        """Ask for a round that begins after this, soon or at once."""
        self._is_wanted = True
        self._is_urgent |= is_urgent
        self._wake()

    async def run(self) -> None:
        """Do rounds, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            while not self._is_wanted:
                self._waiter = loop.create_future()
                await self._waiter
            while not self._is_urgent and loop.time() < self._next_s:
                await self._sleep_until(self._next_s)
            self._next_s = loop.time() + self.pause_s
            self._is_wanted = self._is_urgent = False
            await self._work()

    async def _sleep_until(self, time_s: float) -> None:
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_at(time_s, self._wake)
        try:
            await waiter
        finally:
            timer.cancel()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


# Rows whose calls are finished need none: what is found again, and what is kept.
#
# Theory of operation: a call is finished when what it came to has been appended to the
# journal, which happens before its worker makes another call. It survives the process
# then. The row waits until a group commit, off the loop, has made that durable; only
# then is it done and may be emitted. A row whose call was finished in an earlier
# attempt gets what the journal has, without a call.


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """How a call failed permanently."""

    attempts: int
    error_type: str
    error: str
    traceback: str


class RowActions(NamedTuple):
    """The ways on for a row, as calls.

    Attributes:
        call: Makes a row's call.
        done: Lets a row, whose result is there or which was dropped, be emitted.
        drop: Drops a row that failed in an earlier attempt, with its error and letter;
            says whether failures are dropped at all.
    """

    call: Callable[[CallEntry], None]
    done: Callable[[CallEntry], None]
    drop: Callable[[CallEntry, Exception, DeadLetter], bool]


class RowJournal:
    """The journal of one operator's subtask, row by row.

    Args:
        context: The operator's context.
        actions: What becomes of rows.
        room: How many rows may wait for group commits before calls wait for them.

    Raises:
        IllegalStateError: If the job has no place for a journal.
    """

    def __init__(self, context: RuntimeContext, actions: RowActions, room: int) -> None:
        self._context = context
        self._room = room
        # So many rows do not wait for the time of the next group commit.
        self._hurry_at = room
        self._actions = actions
        self._done = actions.done
        self._journal = context.journal()
        name = named_operator(context.operator_name, context.uid)
        self._results = ResultCodec(f"results of {name}", self._journal.classes)
        self._read_failure = msgspec.msgpack.Decoder(Failure).decode
        # By key the first row with it that is not done, and those that came after it.
        self._flying: dict[bytes, CallEntry] = {}
        self._behind: dict[bytes, list[CallEntry]] = {}
        self._appended: list[CallEntry] = []
        self._syncing = 0
        self._asked: list[tuple[CallEntry, int]] = []
        self._commits = Rounds(self._commit)
        self._lookups = Rounds(self._look_up)
        self._helpers: list[asyncio.Task[None]] = []
        self._found = context.metrics.counter("calls_found")

    async def open(self) -> None:
        """Learn which calls were finished before; then rows may come.

        Raises:
            JournalError: If the journal cannot be read or written.
        """
        try:
            await self._journal.open()
        except Exception as error:
            raise self._error(error) from error
        # Unless many rows wait.
        self._commits.pause_s = self._journal.commit_pause_s
        metrics = self._context.metrics
        metrics.gauge("journalled", lambda: self._journal.size)
        metrics.gauge(
            "waiting_for_journal", lambda: len(self._appended) + self._syncing
        )
        for rounds, name in ((self._commits, "commits"), (self._lookups, "lookups")):
            work = self._keep_doing(rounds)
            self._helpers.append(self._context.spawn(work, name=f"journal {name}"))

    def admit(self, entry: CallEntry) -> bool:
        """Say whether a row's call has to be made now.

        If not, the row gets what an earlier call came to, or waits for the call of a row
        with its id.
        """
        identity = entry.identity
        assert identity is not None, "a row in a journal has an id"
        key = identity.key
        # Itself, unless another row with its id is not done.
        before = self._flying.setdefault(key, entry)
        if before is not entry:
            if _identity(before).fingerprint == identity.fingerprint:
                self._behind.setdefault(key, []).append(entry)
            else:
                self._refuse(entry, before.record)
            return False
        place = self._journal.find(key)
        if place is None:
            return True
        self._asked.append((entry, place))
        self._lookups.request()
        return False

    def keep_result(self, entry: CallEntry) -> bool:
        """Keep a row's result, and let the row be done when that is durable.

        Returns:
            Whether it was kept; if not, the task fails.
        """
        try:
            payload = self._results.encode(entry.result)
        except StateError as error:
            self._fail(error, f"the result for the id {_identity(entry).id!r}: ")
            return False
        return self._append(EntryKind.RESULT, entry, payload)

    def keep_failure(self, entry: CallEntry, letter: DeadLetter) -> bool:
        """Keep how a row failed permanently; it is done when that is durable.

        Returns:
            Whether it was kept; if not, the task fails.
        """
        failure = Failure(
            letter.attempts, letter.error_type, letter.error, letter.traceback
        )
        payload = msgspec.msgpack.encode(failure)
        return self._append(EntryKind.FAILURE, entry, payload)

    def mark(self, checkpoint_id: int, held: Iterable[CallEntry]) -> None:
        """Divide the journal where a checkpoint is taken.

        Args:
            checkpoint_id: The checkpoint.
            held: The rows that it holds.

        Raises:
            JournalError: If the journal cannot be written.
        """
        segments = [
            segment
            for entry in held
            if entry.identity is not None
            and (segment := entry.identity.segment) is not None
        ]
        try:
            self._journal.mark(checkpoint_id, min(segments, default=None))
        except OSError as error:
            raise self._error(error) from error

    async def close(self) -> None:
        """Make durable what was appended, and close."""
        for helper in self._helpers:
            helper.cancel()
        if self._helpers:
            await asyncio.wait(self._helpers)
        try:
            await self._journal.close()
        finally:
            # Nobody waits any more for what is durable now.
            self._appended, self._syncing = [], 0

    def _append(self, kind: int, entry: CallEntry, payload: bytes) -> bool:
        identity = entry.identity
        assert identity is not None, "a row in a journal has an id"
        try:
            identity.segment = self._journal.append(
                kind, identity.key, identity.fingerprint, payload
            )
        except Exception as error:  # noqa: BLE001 -- the task fails with it
            self._fail(error)
            return False
        appended = self._appended
        appended.append(entry)
        waiting = len(appended)
        # The first one may be as many as may wait.
        if waiting == self._hurry_at:
            self._commits.request(is_urgent=True)
        elif waiting == 1:
            self._commits.request()
        return True

    async def _commit(self) -> None:
        """Make durable what was appended so far: a group commit."""
        # Taken away first: what is appended during the sync belongs to the next commit.
        appended, self._appended = self._appended, []
        self._syncing = len(appended)
        await self._journal.sync()
        self._syncing = 0
        self._leave_room(len(self._appended))
        for entry in appended:
            self._finish(entry)

    def _leave_room(self, arrived: int) -> None:
        """Begin the next commit while there is room for what will come during it.

        Args:
            arrived: How many rows came during the last one: many, if the disk is slow.
        """
        self._hurry_at = max(self._room - 2 * arrived, 1)
        if arrived >= self._hurry_at:
            self._commits.request(is_urgent=True)

    async def _look_up(self) -> None:
        asked, self._asked = self._asked, []
        found = await self._journal.read([place for _, place in asked])
        for (entry, place), one in zip(asked, found, strict=True):
            if one is None:
                self._actions.call(entry)
            else:
                self._take(entry, place, one)

    def _take(self, entry: CallEntry, place: int, found: JournalEntry) -> None:
        """Give a row what its call came to in an earlier attempt."""
        identity = _identity(entry)
        if found.fingerprint != identity.fingerprint:
            self._refuse(entry)
            return
        if found.kind == EntryKind.RESULT:
            entry.result = self._results.decode(found.payload)
        elif not self._drop(entry, self._read_failure(found.payload)):
            # Failures end the job now, and a job is started again to try again.
            self._actions.call(entry)
            return
        self._found.value += 1
        identity.segment = self._journal.note_found(identity.key, place)
        self._finish(entry)

    def _drop(self, entry: CallEntry, failure: Failure) -> bool:
        context = self._context
        letter = DeadLetter(
            record=entry.record,
            timestamp=entry.timestamp,
            operator=context.operator_name,
            uid=context.uid,
            attempts=failure.attempts,
            error_type=failure.error_type,
            error=failure.error,
            traceback=failure.traceback,
        )
        error = FinishedCallError(failure.error_type, failure.error)
        return self._actions.drop(entry, error, letter)

    def _finish(self, entry: CallEntry) -> None:
        key = _identity(entry).key
        # First: a later row with the same id finds it in the journal.
        del self._flying[key]
        self._done(entry)
        # Those with its id that came meanwhile find its result now.
        if key in self._behind:
            for follower in self._behind.pop(key):
                if self.admit(follower):
                    self._actions.call(follower)

    def _refuse(self, entry: CallEntry, *before: Any) -> None:
        """Fail for a record that has the id of another one, which may be known."""
        context, identity = self._context, _identity(entry)
        error = RecordIdReusedError(context.operator_name, context.uid, identity.id)
        error.record = shortened(entry.record)
        for other in before:
            add_note(error, f"the other record: {shortened(other)}")
        self._fail(error, is_named=True)

    async def _keep_doing(self, rounds: Rounds) -> None:
        try:
            await rounds.run()
        except Exception as error:  # noqa: BLE001 -- the task fails with it
            self._fail(error)

    def _fail(
        self, error: BaseException, what: str = "", *, is_named: bool = False
    ) -> None:
        """Raise the error from a mail: that is where a task looks for its failure."""
        failure = error if is_named else self._error(error, what)
        try:
            self._context.mailbox.execute(
                _raise, failure, error, description="fail because of a journal"
            )
        except RejectedMailError:
            self._context.repeated.add("journal failed while closing", 1, failure)

    def _error(self, error: BaseException, what: str = "") -> BaseException:
        if isinstance(error, CorruptStreamError | StateError):
            what = what or "a result that was kept: "
        context = self._context
        return JournalError(context.operator_name, context.uid, f"{what}{error}")


def _identity(entry: CallEntry) -> Identity:
    identity = entry.identity
    assert identity is not None, "a row in a journal has an id"
    return identity


def _raise(failure: BaseException, cause: BaseException) -> None:
    if failure is cause:
        raise failure
    raise failure from cause
