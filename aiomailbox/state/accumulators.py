"""The parts of accumulators, and how those of an older aggregate become others.

Theory of operation: an accumulator of several aggregates is one list, and which of its
slots are whose is known only to the aggregate that made it. So a snapshot names the
aggregates with their kinds, and a restore moves what each of them had to where the one of
the same name and kind has it now. Older snapshots name none: there, each accumulator is
looked at, whether it may be one of the aggregate's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from typing import Annotated, Any, Final

import msgspec

from aiomailbox.errors import CorruptStreamError, StateError, WrongTypeError

# Returns what an accumulator becomes, None if nothing of it is left.
Convert = Callable[[Any], Any]


class AccumulatorSchema(msgspec.Struct, frozen=True):
    """The parts of an accumulator.

    Attributes:
        kind: The kind of its aggregate; equal kinds read each other's accumulators.
        width: How many slots it takes in the list of which it is a part.
        parts: If it is a list: the names of its parts and what these are made of, in
            the order of their slots. The name of the only one may be empty.

    Example:
        >>> total = AccumulatorSchema("sum_")
        >>> print(AccumulatorSchema("aggregates", parts=(("total", total),)))
        total: sum_
    """

    kind: str
    width: Annotated[int, msgspec.Meta(ge=1)] = 1
    parts: tuple[tuple[str, AccumulatorSchema], ...] = ()

    def __str__(self) -> str:
        if not self.parts:
            return self.kind
        return ", ".join(
            f"{name}: {part._inner}" if name else part._inner
            for name, part in self.parts
        )

    @property
    def _inner(self) -> str:
        return f"({self})" if self.parts else self.kind


def accumulator_schema(aggregate: object) -> AccumulatorSchema:
    """Return what the accumulators of an aggregate function are made of.

    One of the user's is known by its ``accumulator_kind``, or else by the name of its
    class: what is in its accumulators only it knows.

    Example:
        >>> class Longest:
        ...     "Keeps the longest word."
        >>> accumulator_schema(Longest()).kind
        'Longest'
    """
    known = getattr(aggregate, "accumulator_schema", None)
    if isinstance(known, AccumulatorSchema):
        return known
    kind = getattr(aggregate, "accumulator_kind", None)
    if kind is None:
        kind = getattr(aggregate, "__name__", None) or type(aggregate).__name__
    return AccumulatorSchema(str(kind))


def conversion(
    state: str,
    written: AccumulatorSchema | None,
    aggregate: Any,
    *,
    allow_unmatched: bool,
) -> Convert | None:
    """Return what makes accumulators of an aggregate function of those that were kept.

    Args:
        state: The state's name, for errors.
        written: Their parts; None if these were not saved.
        aggregate: The aggregate function; None if the state holds none.
        allow_unmatched: Whether aggregates that have none of their name and kind may be
            dropped, and new ones begin empty.

    Returns:
        The conversion; None if they stay as they are.

    Raises:
        StateError: If something does not match, and that is not allowed. Also the
            conversion raises it.
    """
    now = None if aggregate is None else accumulator_schema(aggregate)
    if written is None:
        return _checking(state, now, aggregate, allow_unmatched=allow_unmatched)
    if written == now:
        return None
    differences = [*_differences(written, now)]
    if differences and not allow_unmatched:
        raise StateError(
            f"state {state!r} was written by the aggregates [{written}], and the job has "
            f"[{now or 'none'}]: {'; '.join(differences)}. They are matched by name and "
            f"kind. {_REMEDY}"
        )
    if now is None or not _have_common(written, now):
        return _dropped
    matched = now

    def convert(accumulator: Any) -> Any:
        fresh = aggregate.create_accumulator()
        _move(state, written, matched, accumulator, fresh)
        return fresh

    return convert


_REMEDY: Final = (
    "Give each its old name and kind. Or set allow_unmatched_state=True: accumulators "
    "without a match are dropped, and new aggregates begin empty."
)


def _dropped(accumulator: Any) -> None:
    """Return None: nothing is left."""


def _checking(
    state: str,
    now: AccumulatorSchema | None,
    aggregate: Any,
    *,
    allow_unmatched: bool,
) -> Convert | None:
    """Return what looks whether accumulators without names may be an aggregate's."""
    may_hold: Any = getattr(aggregate, "may_hold", None)
    if may_hold is None:
        return None

    def check(accumulator: Any) -> Any:
        if may_hold(accumulator):
            return accumulator
        if allow_unmatched:
            return None
        kinds = [type(each).__name__ for each in _slots(accumulator)]
        raise StateError(
            f"state {state!r} was written by an earlier release, which kept no names "
            f"of aggregates: its accumulators hold [{', '.join(kinds)}], and the job has "
            f"[{now}], which keeps other things, or in another order. {_REMEDY}"
        )

    return check


def _slots(accumulator: Any) -> list[Any]:
    return accumulator if isinstance(accumulator, list) else [accumulator]


def _differences(
    written: AccumulatorSchema, now: AccumulatorSchema | None, name: str = ""
) -> Iterator[str]:
    """Yield what of both has no match in the other."""
    what = repr(name) if name else "it"
    if now is None:
        yield f"{what} was {written._inner}, and nothing is aggregated now"
    elif not _are_alike(written, now):
        yield f"{what} was {written._inner} and is {now._inner}"
    else:
        before, after = dict(written.parts), dict(now.parts)
        for part, old in before.items():
            if part in after:
                yield from _differences(old, after[part], part)
            else:
                yield f"{part or old._inner!r} is gone"
        for part, new in after.items():
            if part not in before:
                yield f"{part or new._inner!r} is new"


def _have_common(written: AccumulatorSchema, now: AccumulatorSchema) -> bool:
    """Say whether anything of one is left in the other."""
    if not _are_alike(written, now):
        return False
    if not written.parts and not now.parts:
        return True
    after = dict(now.parts)
    return any(
        name in after and _have_common(old, after[name]) for name, old in written.parts
    )


def _are_alike(written: AccumulatorSchema, now: AccumulatorSchema) -> bool:
    return (written.kind, written.width) == (now.kind, now.width)


def _move(
    state: str,
    written: AccumulatorSchema,
    now: AccumulatorSchema,
    accumulator: Any,
    fresh: list[Any],
) -> None:
    """Put what an accumulator has into a new one."""
    # The bytes are not trusted, nor what they say of themselves.
    if type(accumulator) is not list or len(accumulator) != sum(
        part.width for _, part in written.parts
    ):
        raise CorruptStreamError(
            f"state {state!r}: this is no accumulator of [{written}]"
        )
    before = _places(written)
    for name, (start, part) in _places(now).items():
        first, old = before.get(name, (0, None))
        if old is None or not _are_alike(old, part):
            continue
        if part.parts:
            _move(state, old, part, accumulator[first], fresh[start])
        else:
            fresh[start : start + part.width] = accumulator[first : first + part.width]


def _places(schema: AccumulatorSchema) -> dict[str, tuple[int, AccumulatorSchema]]:
    """Return the parts with their first slots, by their names."""
    found: dict[str, tuple[int, AccumulatorSchema]] = {}
    slot = 0
    for name, part in schema.parts:
        found[name] = slot, part
        slot += part.width
    return found


# Refuses an aggregate function whose accumulators are one.


def refuse_shared(aggregate: Any, parameter: str) -> None:
    """Refuse an aggregate function that gives the same object to all keys and windows.

    It is called twice, where it is written: nothing is asked for a record.

    Args:
        aggregate: The user's; what it raises here it raises again when it runs.
        parameter: The parameter that it was given for.

    Raises:
        WrongTypeError: If both accumulators are one object, which can change.
    """
    create = aggregate.create_accumulator
    if inspect.iscoroutinefunction(create):
        return
    made: list[Any] = []
    with suppress(Exception, SystemExit):
        made = [create(), create()]
    for one in made:
        if inspect.iscoroutine(one):
            one.close()
    if len(made) < 2 or made[0] is not made[1] or not _can_change(made[0]):
        return
    raise WrongTypeError(
        parameter,
        f"{named_function(create)} returns the same {type(made[0]).__name__} each time, in which "
        "the records of all keys and windows would be mixed",
        "Make a new accumulator in each call.",
    )


def named_function(function: Callable[..., Any]) -> str:
    """Return the name of a function and, if it is known, where it is written."""
    code = getattr(function, "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    name = getattr(function, "__qualname__", "the function").split("<locals>.")[-1]
    return f"{name}{place}"


def _can_change(value: Any) -> bool:
    """Say whether an object may be changed in place; not if that is not known."""
    kind: Any = type(value)
    # Lists, dicts, sets, arrays, and records that are not frozen.
    if kind.__hash__ is None:
        return True
    # Frozen classes define it.
    sets_attributes = kind.__setattr__ is object.__setattr__
    shared = isinstance(value, type | Enum) or callable(value)
    return sets_attributes and not shared and bool(getattr(value, "__dict__", None))
