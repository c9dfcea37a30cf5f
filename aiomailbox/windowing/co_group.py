"""Windows that hold the records of two streams: co-group and window join.

Theory of operation: the records of both streams are marked with their side and
united; from there on there is one stream with one key and the usual windows. The side
is explicit, so that a record may be None.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from aiomailbox.errors import WrongTypeError
from aiomailbox.operators.core.failures import USER_ERRORS, RecordFailures
from aiomailbox.operators.core.fields import (
    RecordFields,
    field_or_function,
)
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.core.user_code import (
    UNMADE,
    CallableKind,
    callable_kind,
    check_function,
    describe,
    refuse_generator,
    refuse_unmade,
)
from aiomailbox.operators.keyed.operators import KeySelector
from aiomailbox.windowing.functions import ApplyFunction, ProcessWindowFunction

# A record of one of the streams: 0 for the first or 1 for the second, and the record.
Sided = tuple[int, Any]


def mark_first(record: Any) -> Sided:
    """Return the record as one of the first stream.

    Example:
        >>> mark_first("a")
        (0, 'a')
    """
    return 0, record


def mark_second(record: Any) -> Sided:
    """Return the record as one of the second stream."""
    return 1, record


class SidedKey:
    """The key of a record that is marked with its side.

    Args:
        where: The key of the first stream: a field's name or a function.
        equal_to: The key of the second stream.

    Example:
        >>> key = SidedKey(len, abs)
        >>> key((0, "abc")), key((1, -3))
        (3, 3)
    """

    __slots__ = ("_keys",)

    def __init__(self, where: KeySelector, equal_to: KeySelector) -> None:
        self._keys = (
            field_or_function(where, "where"),
            field_or_function(equal_to, "equal_to"),
        )

    def __str__(self) -> str:
        where, equal_to = map(describe, self._keys)
        return f"where({where}).equal_to({equal_to})"

    def of_side(self, side: int) -> Callable[[Any], Any]:
        """Return the key of the first stream for 0, of the second for 1."""
        return self._keys[side]

    def check(self, first: RecordFields | None, second: RecordFields | None) -> None:
        """Refuse a field that no record of its stream has, where that is known.

        Raises:
            InvalidArgumentError: Then; names the field and those there are.
        """
        for fields, key, parameter in zip(
            (first, second), self._keys, ("where", "equal_to"), strict=True
        ):
            if fields is not None:
                fields.check(key, parameter)

    def __call__(self, record: Sided) -> Any:
        """Return the key."""
        return self._keys[record[0]](record[1])


class CoGroupFunction(ApplyFunction):
    """Gives a window's records of either stream to a function, as two lists.

    Args:
        function: ``(firsts, seconds)`` → an iterable of results, e.g. a list or a
            generator; may be ``async def``. One list may be empty, not both.

    Raises:
        WrongTypeError: If it cannot be called with two arguments.

    Concept:
        Flink, ``CoGroupFunction`` and ``CoGroupWindowFunction``.

    Example:
        >>> from datetime import timedelta
        >>> from aiomailbox.testing import OneInputHarness
        >>> from aiomailbox.windowing.assigners import TumblingEventTimeWindows
        >>> from aiomailbox.windowing.build import window_operator
        >>> operator = window_operator(
        ...     SidedKey(str.lower, str.lower),
        ...     TumblingEventTimeWindows.of(timedelta(seconds=5)),
        ...     window_function=CoGroupFunction(lambda a, b: [(a, b)]),
        ... )
        >>> with OneInputHarness(operator, keyed=True) as harness:
        ...     harness.process_run([(0, "a"), (1, "A"), (1, "b")], [1, 2, 3])
        ...     harness.process_watermark(4999)
        ...     harness.values
        [(['a'], ['A']), ([], ['b'])]
    """

    parameter = "function"
    gets = "first records, second records"
    arity = 2

    def process(
        self, key: Any, context: Any, elements: list[Sided], out: Any
    ) -> Pending:
        """Emit what the function returns for the window's records."""
        return self.emit(self.function(*sides_of(elements)), out)


class JoinFunction(ProcessWindowFunction):
    """Gives each pair of a first and a second record of a window to a function.

    Args:
        function: ``(first, second)`` → the result; may be ``async def``.

    Attributes:
        failures: Gets the pairs for which the function raises; set by the operator.

    Raises:
        WrongTypeError: If it cannot be called with two arguments, or is a generator.

    Concept:
        Flink, ``JoinFunction`` and ``JoinedStreams.JoinCoGroupFunction``.

    Example:
        >>> from datetime import timedelta
        >>> from aiomailbox.testing import OneInputHarness
        >>> from aiomailbox.windowing.assigners import TumblingEventTimeWindows
        >>> from aiomailbox.windowing.build import window_operator
        >>> operator = window_operator(
        ...     SidedKey(str.lower, str.lower),
        ...     TumblingEventTimeWindows.of(timedelta(seconds=5)),
        ...     window_function=JoinFunction(lambda a, b: (a, b)),
        ... )
        >>> with OneInputHarness(operator, keyed=True) as harness:
        ...     harness.process_run([(0, "a"), (1, "A"), (1, "b")], [1, 2, 3])
        ...     harness.process_watermark(4999)
        ...     harness.values
        [('a', 'A')]
    """

    failures: RecordFailures

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function: Callable[..., Any] = check_function(
            function, "function", arity=2, gets="left, right"
        )
        remedy = "Return one result for each pair, or use co_group."
        refuse_generator(function, "function", remedy, WrongTypeError)
        self._is_async = callable_kind(function) is CallableKind.ASYNC

    def process(
        self, key: Any, context: Any, elements: list[Sided], out: Any
    ) -> Pending:
        """Emit what the function returns for each pair."""
        pairs = itertools.product(*sides_of(elements))
        stamp = context.window.max_timestamp
        if self._is_async:
            return self._await_each(pairs, stamp, out)
        for pair in pairs:
            try:
                result = self.function(*pair)
                if type(result) in UNMADE:
                    refuse_unmade(result, self.function)
            except USER_ERRORS as error:
                self.failures.take(pair, stamp, error)
            else:
                out.collect(result)
        return None

    async def _await_each(
        self, pairs: itertools.product[tuple[Any, ...]], stamp: int, out: Any
    ) -> None:
        for pair in pairs:
            try:
                call: Awaitable[Any] = self.function(*pair)
                result = await call
            except USER_ERRORS as error:
                self.failures.take(pair, stamp, error)
            else:
                out.collect(result)


def sides_of(elements: list[Sided]) -> tuple[list[Any], list[Any]]:
    """Return the records of the first and of the second stream.

    Example:
        >>> sides_of([(0, "a"), (1, "b"), (0, None)])
        (['a', None], ['b'])
    """
    sides: tuple[list[Any], list[Any]] = ([], [])
    for side, record in elements:
        sides[side].append(record)
    return sides
