"""Collects what functions emit while they process a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import CoroutineType, GeneratorType
from typing import Any, Final, Generic, NoReturn

from aiomailbox.errors import IllegalStateError, OverdraftCeilingError
from aiomailbox.memory.local_pool import DEFAULT_OVERDRAFT_CEILING
from aiomailbox.operators.core.mutations import (
    NOTED_MAX,
    difference,
    is_watchable,
    structure,
)
from aiomailbox.operators.core.operator import Output, Pending, in_turn, then
from aiomailbox.records.events import MIN_TIMESTAMP, OutputTag
from aiomailbox.records.run import RUN_LENGTH_MAX, ListRun
from aiomailbox.signatures import with_other_names
from aiomailbox.typevars import OutT, ValueT

# The results that may be held until a function returns, which cannot be paused.
RESULTS_MAX: Final = DEFAULT_OVERDRAFT_CEILING * RUN_LENGTH_MAX
# The pieces that one call may emit where they are not held: about a second's worth.
_PASSED_MAX: Final = 10 * DEFAULT_OVERDRAFT_CEILING

# A piece of results, and the method of the output that takes it.
_Held = tuple[Callable[..., Pending], tuple[Any, ...]]

# How many pieces are held, how many results there are, and how many for side outputs.
Mark = tuple[int, int, Mapping[OutputTag, int]]
_NO_SIDES: Final[Mapping[OutputTag, int]] = {}


@with_other_names(
    "out",
    {
        **dict.fromkeys(("append", "add", "send", "push", "write"), "collect(value)"),
        **dict.fromkeys(("output", "side_output"), " write context.output(tag, value)"),
    },
)
class Collector(Generic[OutT]):
    """Takes results one by one and passes them on as runs.

    Results get the event time of the record or timer that is being processed. They go
    out when the function has finished its run, or earlier in pieces if there are many.
    The output limits the results of one record: at its overdraft ceiling `collect`
    raises, in the middle of the function. When the function has returned, and what it
    emitted has gone out, `collect` raises until the next call.

    Args:
        output: Where the results are passed on to.
        place: The operator, as errors name it; "" if it is not known.

    Attributes:
        timestamp: The event time that results get, milliseconds; `MIN_TIMESTAMP` for
            none. Set by the operator before each call of the function, which wakes the
            collector.
        has_passed: Whether a piece has gone out, or is held, since `emit`.
        passed: How many have, since the function was called; the caller sets this
            to 0 before.

    Invariants:
        An output that must be waited for gets nothing before that: pieces are held, as
        many as segments may be lent beyond a pool.

    Concept:
        Flink, ``Collector`` and ``TimestampedCollector``.

    Example:
        >>> from aiomailbox.testing.harness import RecordingOutput
        >>> output = RecordingOutput()
        >>> collector = Collector(output)
        >>> collector.timestamp = 7
        >>> collector.collect("a")
        >>> collector.emit()
        >>> output.elements
        [StreamRecord(value='a', timestamp=7)]
    """

    __slots__ = (
        "_failure",
        "_held",
        "_holds",
        "_noted",
        "_nothing",
        "_output",
        "_pending",
        "_sides",
        "_timestamps",
        "_values",
        "has_passed",
        "passed",
        "timestamp",
    )

    def __init__(self, output: Output, place: str = "") -> None:
        self._output = output
        self._nothing = _Nothing(place)
        self._values: list[Any] = []
        self._timestamps: list[int] = []
        self._sides: dict[OutputTag, tuple[list[Any], list[int]]] = {}
        self._pending: Pending = None
        self._held: list[_Held] = []
        self._holds = False
        # Set of a `NotingCollector`, as long as it notes.
        self._noted: FirstResults | None = None
        self._failure: BaseException | None = None
        self.has_passed: bool = False
        self.passed: int = 0
        self.timestamp: int = MIN_TIMESTAMP

    def collect(self, value: OutT) -> None:
        """Take a result.

        Raises:
            OverdraftCeilingError: If one record has emitted more than may be lent, or
                ten times that where everything is consumed or dropped at once. The
                task fails then, also if the function catches it.
            IllegalStateError: If the function has returned.
        """
        self._values.append(value)
        timestamps = self._timestamps
        timestamps.append(self.timestamp)
        # At a full run: a function that emits without end must meet the output's room.
        if len(timestamps) == RUN_LENGTH_MAX:
            self._pass(self._output.emit_run, self._take())

    def collect_side(self, tag: OutputTag[ValueT], value: ValueT) -> None:
        """Take a result for a side output; raises as `collect`."""
        side = self._sides.get(tag)
        if side is None:
            side = self._sides[tag] = ([], [])
        side[0].append(value)
        side[1].append(self.timestamp)
        if len(side[0]) == RUN_LENGTH_MAX:
            del self._sides[tag]
            self._pass(self._output.emit_side, tag, _run(*side))

    def collect_all(self, results: Iterable[Any]) -> None:
        """Take what a function has returned; raises as `collect`, in a generator's line."""
        for result in results:
            try:
                self.collect(result)
            except OverdraftCeilingError as error:
                # Thrown into the generator, so that its `finally` runs and its line is
                # named.
                if isinstance(results, GeneratorType):
                    results.throw(error)
                raise

    def hold(self) -> Mark:
        """Pass nothing on until `release`, so that it can be taken back."""
        self._holds = True
        sides = _NO_SIDES
        if self._sides:
            sides = {tag: len(side[0]) for tag, side in self._sides.items()}
        return len(self._held), len(self._values), sides

    def release(self) -> None:
        """Let what was taken since `hold` stand."""
        self._holds = False
        if self._held and self._pending is None:
            held, self._held = self._held, []
            for emit, args in held:
                self._pass(emit, *args)

    def take_back(self, mark: Mark) -> None:
        """Forget what was taken since `hold` returned ``mark``."""
        self._holds = False
        pieces, count, sides = mark
        gone = self._held[pieces:]
        del self._held[pieces:]
        for emit, args in reversed(gone):
            # The first piece begins with what was there before.
            values, stamps = args[-1].values, args[-1].timestamps
            stamps = [MIN_TIMESTAMP] * len(values) if stamps is None else stamps
            if emit == self._output.emit_run:
                self._values, self._timestamps = values, stamps
            else:
                self._sides[args[0]] = (values, stamps)
        del self._values[count:], self._timestamps[count:]
        for tag, side in list(self._sides.items()):
            del side[0][sides.get(tag, 0) :], side[1][sides.get(tag, 0) :]
            if not side[0]:
                del self._sides[tag]

    def emit(self) -> Pending:
        """Pass on what was taken, as `flush`, and take nothing before the next call."""
        is_held = self._pending is not None
        pending = self.flush()
        # What is held goes first, and takes the rest along.
        if not is_held:
            self._rest()
        return pending

    def flush(self) -> Pending:
        """Pass on what was taken since the last time, side outputs first.

        Raises:
            BaseException: The error of `collect`, if the function caught it.
        """
        if self._failure is not None:
            raise self._failure
        self.has_passed = False
        self.passed = 0
        if self._pending is not None:
            return self._emit_held()
        pending: Pending = None
        if self._sides:
            pending = self._emit_sides()
        if not self._values:
            return pending
        return then(pending, self._output.emit_run, self._take())

    def discard(self) -> None:
        """Forget what could not be passed on; nothing follows."""
        self._rest()
        self._forget()

    def _forget(self) -> None:
        pending, self._pending = self._pending, None
        if isinstance(pending, CoroutineType):
            _close(pending)
        self._held.clear()

    def _rest(self) -> None:
        """Take no results until the operator calls the function again."""
        self._values = self._nothing
        self.__class__ = RestingCollector

    def _take(self) -> ListRun:
        run = _run(self._values, self._timestamps)
        self._values = []
        self._timestamps = []
        return run

    def _pass(self, emit: Callable[..., Pending], *args: Any) -> None:
        """Pass a piece on while the function runs, or hold it until it has returned."""
        if self._failure is not None:
            # Its traceback grows with each raise, and keeps what the frames had in hand.
            raise self._failure.with_traceback(None)
        self.has_passed = True
        self.passed += 1
        try:
            if self.passed > _PASSED_MAX:
                raise OverdraftCeilingError(
                    f"one call has emitted {self.passed} times {RUN_LENGTH_MAX} "
                    "results: it is taken for one that never ends. Emit less for "
                    "each record (a generator flat_map is paused between its "
                    "items)."
                )
            # Behind a piece that waits all others wait, or they would overtake it.
            if self._pending is None and not self._holds:
                self._pending = emit(*args)
            else:
                self._hold(emit, args)
        except BaseException as error:
            # The function may catch it, and on_error may be for other errors.
            self._failure = error
            self._forget()
            raise

    def _hold(self, emit: Callable[..., Pending], args: tuple[Any, ...]) -> None:
        if len(self._held) >= DEFAULT_OVERDRAFT_CEILING:
            raise OverdraftCeilingError(
                f"{len(self._held)} pieces of up to {RUN_LENGTH_MAX} results wait for "
                "the function to return, which is the overdraft ceiling. Emit less for "
                "each record (a generator flat_map is paused between its items)."
            )
        self._held.append((emit, args))

    async def _emit_held(self) -> None:
        pending, self._pending = self._pending, None
        held, self._held = self._held, []
        if pending is not None:
            await pending
        for emit, args in held:
            following = emit(*args)
            if following is not None:
                await following
        # What was collected while these were awaited.
        rest = self.emit()
        if rest is not None:
            await rest

    def _emit_sides(self) -> Pending:
        sides, self._sides = self._sides, {}
        runs = [(tag, _run(*side)) for tag, side in sides.items()]
        return in_turn(self._output.emit_side, runs)


class _Nothing(list[Any]):
    """The results of a function that has returned: there can be none."""

    def __init__(self, place: str) -> None:
        self._place = f"{place}: " if place else ""

    def append(self, value: Any) -> NoReturn:
        """Refuse a result: it would get the event time of another record, or be lost.

        Raises:
            IllegalStateError: Always.
        """
        raise IllegalStateError(
            f"{self._place}a result was collected when the function had returned. Collect "
            "while a record or a timer is processed, not in a task or callback that goes "
            "on afterwards. Await in the function what it starts, or use process_async."
        )


class FirstResults:
    """The first results of a function, to see whether it changes one that it has emitted.

    Args:
        warn: Called once, with what has changed.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._noted: list[tuple[Any, Any]] = []
        self._left = NOTED_MAX

    def note(self, value: Any) -> None:
        """Note a result that can change, after a look at those before."""
        # One call may emit any number, and each look is at all that were noted.
        if self._left <= 0:
            return
        self.look()
        self._left -= 1
        if is_watchable(value):
            self._noted.append((value, structure(value)))

    def look(self) -> None:
        """Compare what was noted."""
        for value, before in self._noted:
            change = difference(before, structure(value))
            if change:
                self._left = 0
                self._noted.clear()
                self._warn(change)
                return

    def end_run(self) -> bool:
        """Compare what was noted, forget it, and say whether that is all.

        Later another operator may change the results, which is not told of this one.
        """
        self.look()
        self._noted.clear()
        return self._left <= 0


class NotingCollector(Collector[OutT]):
    """A collector of the first results of a function; later it is a `Collector`."""

    __slots__ = ()

    def __init__(self, output: Output, place: str, warn: Callable[[str], None]) -> None:
        super().__init__(output, place)
        self._noted = FirstResults(warn)

    def collect(self, value: OutT) -> None:
        """Note a result and take it."""
        if self._noted is not None:
            self._noted.note(value)
        # Not super(): it may be another collector by now, called by a method kept before.
        Collector.collect(self, value)

    def _take(self) -> ListRun:
        is_over = self._noted is not None and self._noted.end_run()
        run = Collector._take(self)
        if is_over:
            self._noted = None
            self.__class__ = Collector  # type: ignore[assignment]
        return run


class RestingCollector(Collector[OutT]):
    """A collector while the function of its operator does not run.

    A collector changes its class, and back: asking for each result would be felt.
    """

    __slots__ = ()

    @property
    def timestamp(self) -> int:
        """The event time that results got last; setting it wakes the collector."""
        return _TIMESTAMP.__get__(self)

    @timestamp.setter
    def timestamp(self, value: int) -> None:
        kind: Any = Collector if self._noted is None else NotingCollector
        self.__class__ = kind
        self._values = []
        self.timestamp = value

    def collect_side(self, tag: OutputTag[ValueT], value: ValueT) -> None:
        """Refuse a result for a side output; raises as `collect`."""
        self._nothing.append(value)


_TIMESTAMP: Final[Any] = Collector.__dict__["timestamp"]


def _close(work: CoroutineType[Any, Any, Any]) -> None:
    """End a coroutine that has not begun, and those that it was to wait for.

    Python warns of coroutines that are not awaited, unless they were closed; but
    closing one does not reach those that it was given.
    """
    frame = work.cr_frame
    for given in [] if frame is None else list(frame.f_locals.values()):
        if isinstance(given, CoroutineType) and given is not work:
            _close(given)
    work.close()


def _run(values: list[Any], timestamps: list[int]) -> ListRun:
    # Nearly always the first one decides; counting is for records with and without.
    has_none = timestamps[0] == MIN_TIMESTAMP
    if has_none and timestamps.count(MIN_TIMESTAMP) == len(timestamps):
        return ListRun(values, None)
    return ListRun(values, timestamps)
