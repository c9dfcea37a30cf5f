"""The way of a row from its arrival until it is done."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final

from aiomailbox.clock import Clock
from aiomailbox.errors import BadResultError, RejectedMailError, add_note
from aiomailbox.metrics.instruments import Counter
from aiomailbox.operators.async_io.calls import CallEntry, Outcomes
from aiomailbox.operators.async_io.journal import RowActions, RowJournal
from aiomailbox.operators.async_io.ordering import Emitter
from aiomailbox.operators.async_io.settings import CallSettings, RecordIds
from aiomailbox.operators.async_io.workers import CLOSING, Caller
from aiomailbox.operators.core.failures import FATAL_ERRORS, USER_ERRORS
from aiomailbox.operators.core.fields import FieldSelector, field_or_function
from aiomailbox.operators.core.user_code import DeadLetter, ErrorAction, describe
from aiomailbox.policies.batch import Batch
from aiomailbox.policies.cache import Cache, LruCache

# Puts rows together into batches.


class Gatherer:
    """Hands over rows in lists: when there are enough, or the first waited enough.

    Args:
        batch: How many, and how long.
        submit: Takes the lists.
    """

    def __init__(self, batch: Batch, submit: Callable[[list[CallEntry]], None]) -> None:
        self._size = batch.size
        self._within_s = batch.within_s
        self._submit = submit
        self._rows: list[CallEntry] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, entry: CallEntry) -> None:
        """Take a row."""
        self._rows.append(entry)
        if len(self._rows) >= self._size:
            self.flush()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._within_s, self.flush)

    def flush(self) -> None:
        """Hand over what is there."""
        rows, self._rows = self._rows, []
        self.close()
        if rows:
            self._submit(rows)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


# One row of a key at a time.


NO_KEY: Final = object()


"""The key of a row whose key could not be read: it waits behind no other."""


def _of_key(read: Callable[[Any], Any], error: BaseException) -> BaseException:
    """Return what names what reads a key that has no hash, in place of an error."""
    if isinstance(error, TypeError) and str(error).startswith("unhashable type"):
        problem = f"a key without a hash ({error})"
        remedy = "A key is text, a number or a tuple of these."
        if isinstance(read, FieldSelector):
            remedy += " Give a function that makes one of the field."
        return BadResultError(describe(read), problem, remedy)
    return error


class KeyGate:
    """Lets the first row of each key through; the others wait behind it.

    Args:
        waiting_max: Rows that may wait behind their keys, all keys together.

    Attributes:
        waiting: Rows that wait.

    Example:
        >>> gate = KeyGate(waiting_max=10)
        >>> first, second = CallEntry("a", None), CallEntry("b", None)
        >>> gate.enter(first, "key"), gate.enter(second, "key")
        (True, False)
        >>> gate.leave(first) is second
        True
    """

    def __init__(self, waiting_max: int) -> None:
        self.waiting_max: int = waiting_max
        self.waiting: int = 0
        # The rows behind the one that went through; None for none, which is cheaper.
        self._rows: dict[Hashable, deque[CallEntry] | None] = {}

    def is_busy(self, key: Hashable) -> bool:
        """Whether a row of this key has gone through and has not left.

        Raises:
            TypeError: If the key cannot be hashed.
        """
        return key in self._rows

    @property
    def is_full(self) -> bool:
        """Whether no more rows may wait."""
        return self.waiting >= self.waiting_max

    def enter(self, entry: CallEntry, key: Hashable) -> bool:
        """Say whether the row goes through now; else it waits."""
        entry.key = key
        if key not in self._rows:
            self._rows[key] = None
            return True
        behind = self._rows[key]
        if behind is None:
            behind = self._rows[key] = deque()
        behind.append(entry)
        self.waiting += 1
        return False

    def leave(self, entry: CallEntry) -> CallEntry | None:
        """Be notified that a row is done; return the one that goes through now."""
        if entry.key is NO_KEY:
            return None
        behind = self._rows[entry.key]
        if not behind:
            del self._rows[entry.key]
            return None
        self.waiting -= 1
        return behind.popleft()


# Results that are shared: kept for later, and for equal rows at the same time.


class SharedResults:
    """Knows which results there are, and which are on their way.

    Args:
        cache: What to keep.
        clock: Tells how old results are.
        hits: Counts the rows that needed no call.

    Attributes:
        key: Reads what says which calls are equal.
    """

    def __init__(self, cache: Cache, clock: Clock, hits: Counter) -> None:
        assert cache.key is not None, "checked where the settings are made"
        key: Any = field_or_function(cache.key, "key")
        if isinstance(key, FieldSelector):
            # No call of the user's is on the stack here: errors name that of the operator.
            key = FieldSelector(key.field, "key")
        self.key: Callable[[Any], Hashable] = key
        self._results = LruCache(cache.size, cache.ttl_s)
        self._clock = clock
        self._hits = hits
        self._followers: dict[Hashable, list[CallEntry]] = {}

    def find(self, entry: CallEntry) -> tuple[bool, Any, bool]:
        """Look for a row's result, and let the row wait if it is on its way.

        Returns:
            Whether it is there, the result, and whether the row waits for another one.

        Raises whatever the key function raises.
        """
        key = self.key(entry.value)
        found, result = self._results.get(key, self._clock.monotonic())
        if found:
            self._hits.value += 1
            return True, result, False
        followers = self._followers.get(key)
        if followers is not None:
            self._hits.value += 1
            followers.append(entry)
            return False, None, True
        self._followers[key] = []
        entry.cache_key = (key,)
        return False, None, False

    def keep(self, entry: CallEntry, result: Any) -> list[CallEntry]:
        """Keep a row's result; return the rows that waited for it."""
        if entry.cache_key is not None:
            (key,) = entry.cache_key
            self._results.put(key, result, self._clock.monotonic())
        return self.leave(entry)

    def leave(self, entry: CallEntry) -> list[CallEntry]:
        """Be notified that a row's call is over; return the rows that waited for it."""
        if entry.cache_key is None:
            return []
        (key,) = entry.cache_key
        return self._followers.pop(key, [])


class RowFlow:
    """Leads rows through key gate, cache and batch to their call, and to their end.

    Args:
        emitter: Told when something can be emitted; rows keep their places in its queue,
            and its failures say what becomes of a row whose last attempt failed.
        settings: How calls are made.
        gate: One row of a key at a time, or None.
        read_key: Reads a row's key, if there is a gate.
        ids: Reads a row's id, or None.

    Attributes:
        caller: Makes the calls.
        gatherer: Makes batches, or None.
        journal: Keeps what calls came to, or None.
    """

    def __init__(
        self,
        emitter: Emitter,
        settings: CallSettings,
        gate: KeyGate | None = None,
        read_key: Callable[[Any], Hashable] | None = None,
        ids: RecordIds | None = None,
    ) -> None:
        self._emitter = emitter
        self._queue = emitter.queue
        self._failures = failures = emitter.failures
        self._context = context = failures.context
        self._gate = gate
        self._read_key = read_key
        self._shared: SharedResults | None = None
        if settings.cache is not None:
            hits = context.metrics.counter("cache_hits")
            self._shared = SharedResults(settings.cache, context.clock, hits)
        self._starting: deque[CallEntry] = deque()
        self._is_starting = False
        self.gatherer: Gatherer | None = None
        self._ids = ids
        self.journal: RowJournal | None = None

    def connect(self, caller: Caller, settings: CallSettings, places: int) -> None:
        """Take what makes the calls, and how many rows are held; before the first row."""
        self.caller = caller
        if settings.batch is not None:
            self.gatherer = Gatherer(settings.batch, caller.submit)
        if settings.journal:
            actions = RowActions(self._call, self._done, self._drop_again)
            # Rows that wait take places: calls must not wait for those.
            room = max(places - caller.pool.size, caller.pool.size)
            self.journal = RowJournal(self._context, actions, room)
        stages = (self._gate, self._shared, self.gatherer, self._ids)
        self._is_direct = all(stage is None for stage in stages)

    @property
    def outcomes(self) -> Outcomes:
        """The object that is notified of the outcomes of rows."""
        return Outcomes(self._on_result, self._on_failure, self._fail_task)

    def take(self, entry: CallEntry) -> None:
        """Give a row its place, and begin its call as soon as it may."""
        self._queue.put(entry)
        if self._is_direct:
            self.caller.submit([entry])
        elif self._gate is None:
            self._start_one(entry)
        elif self._passes(self._gate, entry):
            self._start(entry)

    def refuse(self, entry: CallEntry, error: Exception) -> None:
        """Give a row its place, and let it fail without a call."""
        self._queue.put(entry)
        entry.key = NO_KEY
        self._on_failure(entry, error, 1)

    def has_room(self, gate: KeyGate, value: Any, places: int) -> bool:
        """Whether a row may be taken: behind its key, or into one of ``places``."""
        assert self._read_key is not None, "there is no gate without a key"
        try:
            busy = gate.is_busy(self._read_key(value))
        except USER_ERRORS:  # Raised again, and handled, for its row.
            busy = False
        if busy:
            return not gate.is_full
        return self._queue.held - gate.waiting < places

    def _passes(self, gate: KeyGate, entry: CallEntry) -> bool:
        assert self._read_key is not None, "there is no gate without a key"
        try:
            return gate.enter(entry, self._read_key(entry.value))
        except USER_ERRORS as error:
            entry.key = NO_KEY
            self._on_failure(entry, _of_key(self._read_key, error), 1)
            return False

    def _start(self, entry: CallEntry) -> None:
        """Begin a row's call; one that needs none may let the next of its key begin."""
        self._starting.append(entry)
        if self._is_starting:
            # A loop instead of a recursion: a key may have thousands of rows.
            return
        self._is_starting = True
        try:
            while self._starting:
                self._start_one(self._starting.popleft())
        finally:
            self._is_starting = False

    def _start_one(self, entry: CallEntry) -> None:
        if self._ids is not None:
            try:
                entry.identity = self._ids.identify(entry.value)
            except USER_ERRORS as error:
                self._on_failure(entry, error, 1)
                return
        if self.journal is None or self.journal.admit(entry):
            self._call(entry)

    def _call(self, entry: CallEntry) -> None:
        if self._shared is not None and self._has_result(self._shared, entry):
            return
        if self.gatherer is not None:
            self.gatherer.add(entry)
        else:
            self.caller.submit([entry])

    def _has_result(self, shared: SharedResults, entry: CallEntry) -> bool:
        """Whether a row needs no call: it has a result, will have one, or failed."""
        try:
            found, result, waits = shared.find(entry)
        except USER_ERRORS as error:
            self._on_failure(entry, _of_key(shared.key, error), 1)
            return True
        if found:
            self._on_result(entry, result)
        return found or waits

    def _on_result(self, entry: CallEntry, result: Any) -> None:
        followers = self._shared.keep(entry, result) if self._shared else ()
        self._finish(entry, result)
        for follower in followers:
            self._finish(follower, result)

    def _on_failure(
        self, entry: CallEntry, error: BaseException, attempts: int
    ) -> None:
        followers = self._shared.leave(entry) if self._shared else ()
        self._give_up(entry, error, attempts)
        for follower in followers:
            self._give_up(follower, error, attempts)

    def _finish(self, entry: CallEntry, result: Any) -> None:
        entry.result = result
        if self.journal is None:
            self._done(entry)
        elif self.journal.keep_result(entry):
            self._leave_gate(entry)

    def _give_up(self, entry: CallEntry, error: BaseException, attempts: int) -> None:
        if not self._drop(entry, error, attempts):
            return
        if self.journal is None or entry.identity is None:
            self._done(entry)
            return
        letter = entry.letter or self._failures.letter(
            entry.record, entry.timestamp, error, attempts
        )
        if self.journal.keep_failure(entry, letter):
            self._leave_gate(entry)

    def _drop(self, entry: CallEntry, error: BaseException, attempts: int) -> bool:
        """Drop a row that failed, as ``on_error`` says; False if the task fails."""
        fails = self._failures.on_error.action is ErrorAction.FAIL
        if fails or isinstance(error, FATAL_ERRORS):
            if attempts > 1:
                add_note(error, f"after {attempts} attempts")
            # The row keeps its place: a snapshot before the failure must hold it.
            self._fail_task(error, entry.record)
            return False
        entry.dropped = True
        entry.letter = self._failures.dropped(
            entry.record, entry.timestamp, error, attempts
        )
        return True

    def _drop_again(
        self, entry: CallEntry, error: BaseException, letter: DeadLetter
    ) -> bool:
        """Drop a row that failed in an earlier attempt; False if rows are not dropped."""
        if self._failures.on_error.action is ErrorAction.FAIL:
            return False
        entry.dropped = True
        if self._failures.dropped(entry.record, entry.timestamp, error) is not None:
            # The one of the first time, which counts its attempts.
            entry.letter = letter
        return True

    def _done(self, entry: CallEntry) -> None:
        entry.done = True
        if self._queue.on_done(entry):
            self._emitter.request()
        if self._gate is not None:
            self._leave_gate(entry)

    def _leave_gate(self, entry: CallEntry) -> None:
        """Let the next row of its key begin; once."""
        if self._gate is not None:
            following = self._gate.leave(entry)
            entry.key = NO_KEY
            if following is not None:
                self._start(following)

    def _fail_task(self, error: BaseException, *record: Any) -> None:
        """Raise the error from a mail: that is where a task looks for its failure.

        Args:
            error: What was raised.
            record: The record that it is about, if it is about one.
        """
        try:
            self._context.mailbox.execute(
                self._failures.fail,
                error,
                *record,
                description="fail because of a call",
            )
        except RejectedMailError:
            self._context.repeated.add(CLOSING, 1, error)
