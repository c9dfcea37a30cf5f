"""Ready-made aggregates: count, sum, mean, min, max, lists, and several at once."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import keyword
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, Never, TypeVar, overload

from aiomailbox.errors import InvalidArgumentError, RecordTypeError, WrongTypeError
from aiomailbox.operators.aggregates.compiled import (
    COUNT,
    COUNT_WHERE,
    CUSTOM,
    LIST,
    MAX,
    MEAN,
    MIN,
    SUM,
    Layout,
    Template,
    add_source,
    check_result_fields,
    compile_function,
    pour_source,
    result_type,
    roll_source,
)
from aiomailbox.operators.core.fields import (
    Condition,
    ExpressionSelector,
    FieldSelector,
    Selector,
    SelectorWhere,
    condition,
    selector_text,
    selector_where,
)
from aiomailbox.operators.core.user_code import (
    check_methods,
    describe,
    is_async_callable,
    refuse_generator,
    refuse_resultless,
    shortened,
)
from aiomailbox.signatures import explained
from aiomailbox.state.accumulators import (
    AccumulatorSchema,
    accumulator_schema,
    refuse_shared,
)
from aiomailbox.state.descriptors import AggregateFunction
from aiomailbox.typevars import InT, OutT, ValueT

# What an aggregate promises: any order, and values taken out again.


# A promise about a function: the order of what it combines is all the same to it.
_T = TypeVar("_T", bound=Callable[..., Any])


def commutative(function: _T) -> _T:
    """Promise that a reduce function or an aggregate combines records in any order.

    Overlapping windows may then share work: they add a record once, not once per
    window, and merge the partial results. The results are the same; only sums of floats
    may differ in their last digits.

    A function that is given to ``reduce`` must be associative too, and must not change
    its arguments. An aggregate must have a ``merge`` whose result is what adding all
    records of both would give, and which may change and return its first argument, but
    neither changes nor keeps the second.

    Args:
        function: The reduce function, or the class of the aggregate. Returns the
            function, marked; wraps it if it cannot be marked, such as a built-in
            function.

    Raises:
        WrongTypeError: If it cannot be called.

    Example:
        >>> largest = commutative(max)
        >>> largest(1, 2), is_commutative(largest), is_commutative(max)
        (2, True, False)
        >>> @commutative
        ... class Count:
        ...     def create_accumulator(self):
        ...         return 0
        ...
        ...     def add(self, value, accumulator):
        ...         return accumulator + 1
        ...
        ...     def get_result(self, accumulator):
        ...         return accumulator
        ...
        ...     def merge(self, first, second):
        ...         return first + second
        >>> is_commutative(Count())
        True
    """
    if not callable(function):
        raise WrongTypeError(
            "function",
            f"{function!r} is neither a function nor a class",
            "Decorate the reduce function, or the class of the aggregate.",
        )
    try:
        function.is_commutative = True  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        wrapped: Any = functools.partial(function)
        wrapped.is_commutative = True
        return wrapped
    return function


def is_commutative(function: object) -> bool:
    """Return whether `commutative` was said of it, or is known."""
    return getattr(function, "is_commutative", False) is True


# What ready-made aggregates add so that a record can be taken back from them.
class Undoable:
    """The base of aggregate functions that know how to be undone.

    Their ``add`` computes first and changes the accumulator when nothing can fail any
    more. By default a mark is the accumulator itself, for those that never change one.

    Attributes:
        merges_in_place: Whether ``merge`` may change its arguments.
    """

    __slots__ = ()

    merges_in_place = True

    def mark(self, value: Any, accumulator: Any) -> Any:
        """Return what `reset` needs, before ``value`` is added to the accumulator."""
        return accumulator

    def reset(self, accumulator: Any, mark: Any) -> Any:
        """Return the accumulator as it was; what was added since is forgotten."""
        return mark


# Text that may be meant as numbers.


_BY_LETTER: Final = (
    "text is compared letter by letter: '9' is larger than '10'. If these are numbers, "
    "declare their type where they are read, am.FileSource(..., records=a class), or "
    "convert them"
)


def is_number_text(value: object) -> bool:
    """Say whether a value is text that is written like a number.

    Example:
        >>> is_number_text("9.5"), is_number_text("nan"), is_number_text(9.5)
        (True, False, False)
    """
    if type(value) is not str or not any(map(str.isdigit, value)):
        return False
    with contextlib.suppress(ValueError):
        float(value)
        return True
    return False


def warn_of_ranks(
    warn: Callable[..., Any], aggregate: object, by: Any, rank: object
) -> None:
    """Warn if records are ranked by text that is written like a number.

    Args:
        warn: Logs a warning.
        aggregate: The one that ranks them.
        by: Reads the rank of a record.
        rank: That of the first record.
    """
    if is_number_text(rank):
        read = by.read if type(by) is SelectorWhere else by
        warn(
            _BY_LETTER,
            aggregate=repr(aggregate),
            place=getattr(read, "place", "") or describe(read),
            value=shortened(rank),
        )


class Ranking(Undoable):
    """The base of those that keep records by their rank, in a short list.

    Attributes:
        warn: Logs a warning; None once the first record has been looked at, and before
            an operator has it.
    """

    warn: Callable[..., Any] | None = None
    by: Callable[[Any], Any]

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the log, for pickles."""
        return {**self.__dict__, "warn": None}

    def mark(self, value: Any, accumulator: list[Any]) -> list[Any]:
        """Return a copy."""
        return accumulator.copy()

    def reset(self, accumulator: list[Any], mark: list[Any]) -> list[Any]:
        """Put the copy back."""
        accumulator[:] = mark
        return accumulator

    def look(self, rank: Any) -> None:
        """Look at the rank of the first record."""
        warn, self.warn = self.warn, None
        if warn is not None:
            warn_of_ranks(warn, self, self.by, rank)


_TEMPLATES: Final[dict[str, Template]] = {
    "count": COUNT,
    "count_where": COUNT_WHERE,
    "sum_": SUM,
    "mean": MEAN,
    "min_": MIN,
    "max_": MAX,
    "collect_list": LIST,
    "custom": CUSTOM,
}


# Of equal kinds one reads what the other wrote: a count is a count, whatever it counts.
_KINDS: Final = {"count_where": "count"}


_RESERVED: Final = frozenset({"key", "window_start", "window_end"})


_TEXT: Final = (str, bytes)


_NUMBERS: Final = frozenset({int, float})


_FIELD_ERRORS: Final = (AttributeError, KeyError, TypeError)


_CALLED_WITH: Final = {
    "create_accumulator": (),
    "add": ("value", "accumulator"),
    "get_result": ("accumulator",),
    "merge": ("first", "second"),
}


_METHODS: Final = ("create_accumulator", "add", "get_result")


def check_aggregate(function: object, parameter: str = "aggregate") -> Any:
    """Return ``function`` if it has the methods of `AggregateFunction`.

    ``merge`` is asked for only where accumulators have to be merged.

    Raises:
        WrongTypeError: If one is missing, or cannot be called as it will be, or if all
            accumulators would be one.
    """
    if inspect.isfunction(function) and function.__module__.startswith(__package__):
        name = function.__name__
        raise WrongTypeError(
            parameter, f"{name} is a function", f"Call it: am.{name}(...)."
        )
    for method in _METHODS:
        if not _has(function, method):
            raise WrongTypeError(
                parameter,
                f"{function!r} has no method {method}",
                "Use am.count(), am.sum_(field) and the like, or an object with "
                f"{', '.join(_METHODS)}.",
            )
    if not isinstance(function, Aggregate):
        check_methods(function, parameter, _CALLED_WITH)
        checked: Any = function
        refuse_resultless(checked.add, parameter)
        refuse_resultless(checked.get_result, parameter)
        refuse_generator(checked.get_result, parameter, "Return one result.")
        _refuse_swapped(checked.add, parameter)
        refuse_shared(checked, parameter)
    return function


# What people call an accumulator.
_ACCUMULATORS: Final = frozenset({"acc", "accum", "accumulator", "agg"})


def _refuse_swapped(add: Callable[..., Any], parameter: str) -> None:
    """Refuse an ``add`` whose arguments say that it takes the accumulator first.

    Raises:
        WrongTypeError: If that is so: many records and accumulators can be swapped
            without an error.
    """
    names: list[str] = []
    with contextlib.suppress(TypeError, ValueError):
        names = [*inspect.signature(add).parameters]
    if names[:1] and names[0] in _ACCUMULATORS and _ACCUMULATORS.isdisjoint(names[1:]):
        raise WrongTypeError(
            parameter,
            f"{describe(add)} has the arguments {', '.join(names)}, and the record "
            "comes first",
            "Write def add(self, value, accumulator).",
        )


def is_async_aggregate(function: Any) -> bool:
    """Return whether a method of the aggregate function is ``async def``."""
    return any(is_async_callable(getattr(function, method)) for method in _METHODS)


def can_merge(aggregate: Any) -> bool:
    """Return whether an aggregate function has a ``merge``, and so have its parts.

    Example:
        >>> can_merge(count()), can_merge(AggregateFunction), can_merge(len)
        (True, False, False)
    """
    parts = aggregate.custom if isinstance(aggregate, Aggregate) else ()
    return _has(aggregate, "merge") and all(_has(part, "merge") for part in parts)


def _has(function: object, method: str) -> bool:
    """Say whether there is a method, and not the empty one of the base class."""
    found = getattr(function, method, None)
    empty = getattr(AggregateFunction, method)
    return callable(found) and getattr(found, "__func__", found) is not empty


def fields_read(aggregate: object) -> Iterator[tuple[str, FieldSelector]]:
    """Yield the fields that an aggregate reads by name, each after its parameter.

    Example:
        >>> [(name, each.field) for name, each in fields_read(sum_("amount"))]
        [('field', 'amount')]
    """
    pieces = aggregate.pieces if isinstance(aggregate, Aggregate) else ()
    for kind, selector in pieces:
        if kind == "custom":
            yield from fields_read(selector)
        else:
            name = "where" if kind == "count_where" else "field"
            yield from _selectors(name, selector)
    if not pieces:
        for name in ("field", "by"):
            yield from _selectors(name, getattr(aggregate, name, None))


def with_expressions(
    aggregate: Any, bind: Callable[[ExpressionSelector], Any]
) -> tuple[Any, bool]:
    """Return an aggregate with its expressions replaced, and whether it has any.

    Args:
        aggregate: The aggregate; it stays as it is.
        bind: Returns what stands for an expression.
    """
    found: list[Any] = []

    def bound(selector: Any) -> Any:
        if type(selector) is ExpressionSelector:
            found.append(selector)
            return bind(selector)
        if type(selector) is SelectorWhere:
            return SelectorWhere(bound(selector.read), bound(selector.where))
        return selector

    if isinstance(aggregate, Aggregate):
        pieces = []
        for kind, selector in aggregate.pieces:
            if kind == "custom":
                selector, has_some = with_expressions(selector, bind)
                found += [selector] * has_some
            pieces.append((kind, bound(selector)))
        made: Any = Aggregate(tuple(pieces), aggregate.names)
    else:
        made = copy.copy(aggregate)
        for name in ("field", "by"):
            selector = getattr(aggregate, name, None)
            if bound(selector) is not selector:
                setattr(made, name, bound(selector))
    return (made, True) if found else (aggregate, False)


def _selectors(name: str, selector: Any) -> Iterator[tuple[str, FieldSelector]]:
    if type(selector) is FieldSelector:
        yield name, selector
    elif type(selector) is SelectorWhere:
        yield from _selectors(name, selector.read)
        yield from _selectors("where", selector.where)


class Reduced:
    """The accumulator of a reduce function, which is a record."""

    __slots__ = ()

    accumulator_schema = AccumulatorSchema("reduce")


class Aggregate(Generic[InT, OutT]):
    """One or several ready-made aggregates, as one `AggregateFunction`.

    Made by `count`, `sum_`, `mean`, `min_`, `max_`, `collect_list` and `aggregates`.
    The accumulator is one list. None, which stands for NULL, is skipped by all but
    `count`.

    Attributes:
        pieces: The kind of each part, with what reads its value from a record.
        names: The fields of the result, or None if it is a single value.
        create_accumulator: Returns an empty accumulator.
        add: ``add(record, accumulator)`` returns the accumulator, changed.
        get_result: Returns the result; changes nothing.
        merge: ``merge(first, second)`` returns the first, changed.
        custom: The parts that are aggregate functions of their own.
        is_commutative: Whether the order of the records is all the same, which it is
            not to `collect_list`, nor to objects that do not say so; see `commutative`.
        roll: ``roll(keys, records, rows, results)`` adds each record to its key's
            accumulator and appends the result: one loop instead of calls per record.
            Results of several named aggregates have the field ``key``; `with_key` says
            what else has the key. None until the first record has been added.

    Concept:
        Flink, ``AggregateFunction``; the ready-made ones are those of SQL.

    Example:
        >>> total = sum_("amount")
        >>> accumulator = total.create_accumulator()
        >>> for amount in (1, None, 2):
        ...     accumulator = total.add({"amount": amount}, accumulator)
        >>> total.get_result(accumulator)
        3
    """

    def __init__(
        self,
        pieces: tuple[tuple[str, Any], ...],
        names: tuple[str, ...] | None = None,
        *,
        pairs: bool = False,
    ) -> None:
        self.pieces: tuple[tuple[str, Any], ...] = pieces
        self._pairs = pairs
        self.names = names
        self.custom: list[Any] = [
            selector for kind, selector in pieces if kind == "custom"
        ]
        self.is_commutative: bool = all(
            is_commutative(selector) if kind == "custom" else kind != "collect_list"
            for kind, selector in pieces
        )
        self._layout = Layout([_TEMPLATES[kind] for kind, _ in pieces])
        self.add: Callable[[InT, Any], Any] = self._first_add
        # Logs a warning; whoever has a log sets it.
        self.warn: Callable[..., None] | None = None
        self._compiled: Callable[[Any, Any], Any] | None = None
        self.roll: Callable[..., None] | None = None
        # How values are read from records like the first one.
        self._reads: list[tuple[int, str]] = []
        self._read_names: dict[str, Any] = {}
        make = f"def make():\n    return {self._layout.initial()}"
        self.create_accumulator: Callable[[], Any] = self._compile("make", make)
        merge = ["def merge(a, b):", *self._indented("merge"), "    return a"]
        self.merge: Callable[[Any, Any], Any] = self._compile("merge", "\n".join(merge))
        self.get_result: Callable[[Any], OutT] = self.result_maker(())

    def __reduce__(self) -> tuple[Any, ...]:
        return Aggregate, (self.pieces, self.names)

    def __repr__(self) -> str:
        names = self.names or ("",)
        pieces = zip(names, self.pieces, strict=True)
        text = [f"{name}{'=' if name else ''}{_text(piece)}" for name, piece in pieces]
        return text[0] if self.names is None else f"aggregates({', '.join(text)})"

    @property
    def accumulator_schema(self) -> AccumulatorSchema:
        """The parts of the accumulator by their names, with their kinds."""
        parts = [
            accumulator_schema(selector)
            if kind == "custom"
            else AccumulatorSchema(
                _KINDS.get(kind, kind), len(_TEMPLATES[kind].initial)
            )
            for kind, selector in self.pieces
        ]
        names = self.names or ("",)
        return AccumulatorSchema(
            "aggregates", parts=tuple(zip(names, parts, strict=True))
        )

    def may_hold(self, accumulator: Any) -> bool:
        """Return whether an accumulator, kept without a schema, may be one of these.

        It has as many slots, and in them what each piece keeps: a count, a list. Which
        numbers are added up, and of which the largest is kept, cannot be seen.
        """
        slots = self.slots()
        if type(accumulator) is not list or len(accumulator) != len(slots):
            return False
        held = iter(accumulator)
        return all(
            _may_be(kind, selector, [next(held) for _ in _TEMPLATES[kind].initial])
            for kind, selector in self.pieces
        )

    def slots(self) -> list[Any]:
        """Return for each slot of the accumulator its piece's kind, or its function."""
        return [
            selector if kind == "custom" else kind
            for kind, selector in self.pieces
            for _ in _TEMPLATES[kind].initial
        ]

    def with_key(self) -> Aggregate[InT, tuple[Any, OutT]]:
        """Return the same aggregate, whose `roll` gives ``(key, result)``.

        That of several named ones has a field of its own for the key.
        """
        return Aggregate(self.pieces, self.names, pairs=self.names is None)

    @property
    def always_has_result(self) -> bool:
        """Whether `get_result` cannot fail."""
        return all(kind not in {"custom", "mean"} for kind, _ in self.pieces)

    def result_maker(self, before: tuple[str, ...]) -> Callable[..., Any]:
        """Return a function ``(*before, accumulator)`` that makes the result.

        Args:
            before: Fields that precede the named ones; a single value has none.
        """
        expression, names = self._result(before if self.names is not None else ())
        source = f"def result({', '.join((*before, 'a'))}):\n    return {expression}"
        return self._compile("result", source, **names)

    def results_maker(self, before: tuple[str, ...]) -> Callable[..., list[Any]]:
        """Return a function that makes the results of all keys, in one loop.

        Its arguments are the fields before but for ``key``, if results have names, and
        ``key -> accumulator``.

        Args:
            before: As for `result_maker`.
        """
        fields = before if self.names is not None else ()
        expression, names = self._result(fields)
        parameters = [field for field in fields if field != "key"]
        source = (
            f"def results({', '.join((*parameters, 'contents'))}):\n"
            f"    return [{expression} for key, a in contents.items()]"
        )
        return self._compile("results", source, **names)

    def pour(self, start: str) -> Callable[..., None] | None:
        """Return a loop over a run that adds each record to its window.

        ``pour(keys, records, stamps, window_at, add_first)`` changes what
        ``window_at(start)`` has of a record's key, and calls
        ``add_first(key, record, stamp)`` where there is no window, or nothing in it.

        Args:
            start: An expression of ``stamp``: where its window starts.

        Returns:
            The loop; None until the first record has been added.
        """
        if self._compiled is None:
            return None
        source = pour_source(self._layout, self._reads, start)
        return self._compile("pour", source, **self._read_names)

    def _result(self, before: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
        """Return the expression of the result and the names that it needs."""
        results = ", ".join(self._layout.results())
        if self.names is None:
            return results, {}
        kind = result_type((*before, *self.names))
        fields = "".join(f"{name}, " for name in before)
        return f"new(kind, ({fields}{results},))", {"new": tuple.__new__, "kind": kind}

    def _first_add(self, record: Any, accumulator: Any) -> Any:
        # Code that bound this method before the first record keeps calling it.
        if self._compiled is None:
            self._compiled, self.roll = self._compile_for(record)
            self.add = self._compiled
            self._warn_of_text(record)
        return self._compiled(record, accumulator)

    def _compile_for(
        self, record: Any
    ) -> tuple[Callable[[Any, Any], Any], Callable[..., None]]:
        """Return ``add`` and ``roll`` for records like this one."""
        reads: list[tuple[int, str]] = []
        extra: dict[str, Any] = {
            "field_errors": _FIELD_ERRORS,
            "explain": self._explain,
            "TEXT": _TEXT,
            "NUMBERS": _NUMBERS,
            "refuse_text": self._refuse_text,
        }
        self._reads, self._read_names = reads, extra
        self._explain(record)
        for number, (kind, selector) in enumerate(self.pieces):
            if kind == "custom" or selector is None:
                continue
            expression = _field_expression(selector, record)
            if expression is None:
                extra[f"s{number}"] = selector
                expression = f"s{number}(record)"
            reads.append((number, expression))
        expression, names = self._result(() if self.names is None else ("key",))
        if self._pairs:
            expression = f"(key, {expression})"
        roll = roll_source(self._layout, reads, expression)
        return (
            self._compile("add", add_source(self._layout, reads), **extra),
            self._compile("roll", roll, **extra, **names),
        )

    def _explain(self, record: Any) -> None:
        """Raise `RecordTypeError` if the record has not the fields that are read."""
        for _, selector in self.pieces:
            if type(selector) is FieldSelector:
                selector(record)

    def _refuse_text(self, record: Any, values: list[tuple[int, Any]]) -> None:
        """Raise `RecordTypeError` if one of the values that are added up is text.

        Args:
            record: Has them.
            values: Of the pieces that add up, by their numbers.
        """
        for number, value in values:
            if isinstance(value, _TEXT):
                kind, selector = self.pieces[number]
                field = selector.read if type(selector) is SelectorWhere else selector
                text = _field_expression(field, record) or "..."
                raise RecordTypeError(
                    "field",
                    f"{shortened(value)} of {_described(field)} is text, and {kind} adds "
                    "up numbers",
                    f"Convert it: am.{kind}(lambda record: float({text})). Or declare "
                    "its type where it is read: am.FileSource(..., records=) takes a "
                    "class with fields of type int, float or Decimal.",
                )

    def _warn_of_text(self, record: Any) -> None:
        """Warn if the smallest or largest of texts is looked for in what may be numbers.

        Args:
            record: The first one. If it has nothing but text, it may come from a CSV file
                that was read without a class.
        """
        if self.warn is None or type(record) is not dict:
            return
        if not all(value is None or type(value) is str for value in record.values()):
            return
        for kind, selector in self.pieces:
            field = selector.read if type(selector) is SelectorWhere else selector
            if kind not in {"min_", "max_"} or type(field) is not FieldSelector:
                continue
            value = field(record)
            if value is not None:
                self.warn(
                    f"{_BY_LETTER}, "
                    f"am.{kind}(lambda record: float(record[{field.field!r}]))",
                    aggregate=f"{kind}({field.field!r})",
                    place=field.place,
                    value=shortened(value),
                )

    def _indented(self, part: str) -> list[str]:
        return [f"    {line}" for line in self._layout.statements(part)]

    def _compile(self, name: str, source: str, **names: Any) -> Callable[..., Any]:
        customs = {
            f"f{number}": function
            for number, (kind, function) in enumerate(self.pieces)
            if kind == "custom"
        }
        return compile_function(name, source, customs | names)


@explained("Write count(), or count(where=field) for the records with a value there.")
def count(*, where: Condition | None = None) -> Aggregate[Any, int]:
    """Count the records, or those for which ``where`` gives something true.

    Args:
        where: A field's name, a function of a record, or an expression of
            `pyarrow.compute`, which is evaluated where a stream is aggregated.

    Example:
        >>> late = count(where=lambda flight: flight["delay"] > 30)
        >>> late.get_result(late.add({"delay": 45}, late.create_accumulator()))
        1
    """
    if where is None:
        return Aggregate((("count", None),))
    return Aggregate((("count_where", condition(where)),))


@overload
def sum_(
    field: Callable[[InT], ValueT], *, where: None = None
) -> Aggregate[InT, ValueT]: ...


@overload
def sum_(
    field: Callable[[InT], ValueT], *, where: Condition
) -> Aggregate[InT, ValueT | None]: ...


@overload
def sum_(field: str, *, where: Condition | None = None) -> Aggregate[Any, Any]: ...


def sum_(field: Selector, *, where: Condition | None = None) -> Aggregate:
    """Add up a field; None if no record has a value there.

    Text is refused: '9' and '10' would be '910'.

    Args:
        field: A field's name or a function of a record.
        where: As for `count`: records for which it gives something false do not count.

    Raises:
        RecordTypeError: When the first record comes whose value is a str or bytes.

    Example:
        >>> paid = sum_("amount", where="is_paid")
        >>> paid.get_result(
        ...     paid.add({"amount": 5, "is_paid": True}, paid.create_accumulator())
        ... )
        5
    """
    return _single("sum_", field, where)


@overload
def mean(
    field: Callable[[InT], float], *, where: None = None
) -> Aggregate[InT, float]: ...


@overload
def mean(
    field: Callable[[InT], Any], *, where: Condition | None = None
) -> Aggregate[InT, Any]: ...


@overload
def mean(field: str, *, where: None = None) -> Aggregate[Any, float]: ...


@overload
def mean(field: str, *, where: Condition) -> Aggregate[Any, float | None]: ...


def mean(field: Selector, *, where: Condition | None = None) -> Aggregate:
    """Average a field over the records that have a value there; None if none has.

    ``where``, and what is refused, as for `sum_`.
    """
    return _single("mean", field, where)


@overload
def min_(
    field: Callable[[InT], ValueT], *, where: None = None
) -> Aggregate[InT, ValueT]: ...


@overload
def min_(
    field: Callable[[InT], ValueT], *, where: Condition
) -> Aggregate[InT, ValueT | None]: ...


@overload
def min_(field: str, *, where: Condition | None = None) -> Aggregate[Any, Any]: ...


def min_(field: Selector, *, where: Condition | None = None) -> Aggregate:
    """Find the smallest value of a field; None if no record has one. NaN is no value.

    ``where`` as for `sum_`. Text is compared letter by letter; a warning says so for
    text of a CSV file that was read without a class.
    """
    return _single("min_", field, where)


@overload
def max_(
    field: Callable[[InT], ValueT], *, where: None = None
) -> Aggregate[InT, ValueT]: ...


@overload
def max_(
    field: Callable[[InT], ValueT], *, where: Condition
) -> Aggregate[InT, ValueT | None]: ...


@overload
def max_(field: str, *, where: Condition | None = None) -> Aggregate[Any, Any]: ...


def max_(field: Selector, *, where: Condition | None = None) -> Aggregate:
    """Find the largest value of a field; None if no record has one. NaN is no value.

    ``where`` as for `sum_`, and of text as for `min_`.
    """
    return _single("max_", field, where)


@overload
def collect_list(
    field: None = None, *, where: Condition | None = None
) -> Aggregate[InT, list[InT]]: ...


@overload
def collect_list(
    field: Callable[[InT], ValueT], *, where: Condition | None = None
) -> Aggregate[InT, list[ValueT]]: ...


@overload
def collect_list(
    field: str, *, where: Condition | None = None
) -> Aggregate[Any, list[Any]]: ...


def collect_list(
    field: Selector | None = None, *, where: Condition | None = None
) -> Aggregate:
    """Collect the values of a field, without None, or else whole records.

    ``where`` as for `sum_`.
    """
    return _single("collect_list", _itself if field is None else field, where)


def aggregates(
    *unnamed: Never, **named: AggregateFunction[Any, Any, Any]
) -> Aggregate[Any, Any]:
    """Compute several aggregates at once; the result has a field for each.

    On a keyed stream the result also has the field ``key``, and in a window
    ``window_start`` and ``window_end``; they come first.

    Args:
        *unnamed: Nothing: each aggregate needs a name.
        **named: The aggregates by the names of their fields: ready-made ones, or any
            object with the methods of `AggregateFunction`.

    Raises:
        InvalidArgumentError: If there is none, or a name cannot be a field.
        WrongTypeError: If one is not an aggregate, or one with ``async def`` methods.

    Example:
        >>> both = aggregates(n=count(), total=sum_(float))
        >>> both.get_result(both.add("1.5", both.create_accumulator()))
        Result(n=1, total=1.5)
    """
    if unnamed:
        raise InvalidArgumentError(
            "unnamed",
            "each aggregate is a field of the result, and has no name",
            "Name it: aggregates(n=count()).",
        )
    if not named:
        raise InvalidArgumentError(
            "named", "there is no aggregate", "Write aggregates(n=count())."
        )
    names = tuple(named)
    check_result_fields(names, _RESERVED)
    pieces = tuple(_piece(name, aggregate) for name, aggregate in named.items())
    return Aggregate(pieces, names)


def _single(kind: str, field: Selector, where: Condition | None) -> Aggregate:
    return Aggregate(((kind, selector_where(field, "field", where)),))


def _piece(name: str, aggregate: Any) -> tuple[str, Any]:
    if isinstance(aggregate, Aggregate) and aggregate.names is None:
        return aggregate.pieces[0]
    checked = check_aggregate(aggregate, name)
    if is_async_aggregate(checked):
        raise WrongTypeError(
            name,
            f"{aggregate!r} has async def methods",
            "Combine only aggregates with plain methods.",
        )
    return "custom", checked


def _field_expression(selector: Any, record: Any) -> str | None:
    if type(selector) is not FieldSelector:
        return "record" if selector is _itself else None
    if isinstance(record, Mapping):
        return f"record[{selector.field!r}]"
    field = selector.field
    if not field.isidentifier() or keyword.iskeyword(field):
        return None
    return f"record.{field}"


def warn_of_text(aggregate: object, log: Any) -> None:
    """Let an aggregate function log what of its first record may be meant as numbers."""
    for part in (aggregate, *getattr(aggregate, "custom", ())):
        if isinstance(part, Aggregate | Ranking):
            part.warn = log.warning


def _itself(record: Any) -> Any:
    return record


def _may_be(kind: str, selector: Any, slots: list[Any]) -> bool:
    """Say whether a piece may have put this into its slots."""
    if kind == "custom":
        may_hold: Any = getattr(selector, "may_hold", None)
        return may_hold is None or bool(may_hold(slots[0]))
    if kind == "collect_list":
        return type(slots[0]) is list
    if kind == "mean" and (slots[0] is None) != (slots[1] == 0):
        return False
    if kind in {"sum_", "mean"} and isinstance(slots[0], _TEXT):
        return False
    if kind in {"count", "count_where", "mean"}:
        return type(slots[-1]) is int and slots[-1] >= 0
    return True


def _described(selector: Any) -> str:
    """Return what reads a value, with its line, for a message."""
    if type(selector) is FieldSelector:
        return f"field {selector}"
    return "the record" if selector is _itself else f"what {describe(selector)} returns"


def _text(piece: tuple[str, Any]) -> str:
    kind, selector = piece
    if kind == "custom":
        return repr(selector)
    if selector is None or selector is _itself:
        return f"{kind}()"
    if type(selector) is SelectorWhere and selector.read is _itself:
        return f"{kind}(where={selector_text(selector.where)})"
    name = selector_text(selector)
    return f"count(where={name})" if kind == "count_where" else f"{kind}({name})"
