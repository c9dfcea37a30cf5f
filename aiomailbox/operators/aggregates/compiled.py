"""Aggregates compiled to source, and the record types of their results."""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.operators.core.user_code import compiled
from aiomailbox.records.record_classes import is_field_name
from aiomailbox.state.serializers import family_kept_in_state

# Writes the functions of an aggregate as source: one list of slots, no loops.
#
# Theory of operation: each piece owns some slots of the accumulator, a list. ``add``
# first reads everything it needs from the record, then computes, then stores, so that a
# record for which something raises leaves the accumulator as it was.


@dataclass(frozen=True, slots=True)
class Template:
    """The source of one kind of aggregate.

    In the texts ``{a}`` is the accumulator, ``{b}`` another one, ``{i}`` and ``{j}``
    the first and second slot, ``{v}`` the value read from the record, ``{n}`` and
    ``{m}`` names for new values, ``{f}`` the user's own aggregate function, ``TEXT`` the
    types that are not added up, ``NUMBERS`` some of those that are.

    Attributes:
        initial: An expression per slot.
        compute: Statements that change nothing.
        store: Statements that cannot fail.
        result: An expression.
        merge: Statements that put ``{b}`` into ``{a}``.
    """

    initial: tuple[str, ...]
    compute: tuple[str, ...]
    store: tuple[str, ...]
    result: str
    merge: tuple[str, ...]


# Text is looked for where it would be the first: to a number it cannot be added. Most are
# numbers, which a set tells in a third of the time.
_ADDED: Final = (
    "{n} = {a}[{i}]",
    "if {v} is not None:",
    "    if {n} is not None:",
    "        {n} = {n} + {v}",
    "    elif {v}.__class__ not in NUMBERS and isinstance({v}, TEXT):",
    "        raise TypeError",
    "    else:",
    "        {n} = {v}",
)


_SUM_MERGED: Final = (
    "if {b}[{i}] is not None:",
    "    {a}[{i}] = {b}[{i}] if {a}[{i}] is None else {a}[{i}] + {b}[{i}]",
)


def _extreme(comparison: str) -> Template:
    return Template(
        ("None",),
        (
            "{n} = {a}[{i}]",
            # A NaN counts as little as None: only it is not equal to itself, and beside
            # another value each comparison with it is false.
            (
                "if {v} is not None and "
                f"({{v}} == {{v}} if {{n}} is None else {{v}} {comparison} {{n}}):"
            ),
            "    {n} = {v}",
        ),
        ("{a}[{i}] = {n}",),
        "{a}[{i}]",
        (
            "if {b}[{i}] is not None:",
            f"    if {{a}}[{{i}}] is None or {{b}}[{{i}}] {comparison} {{a}}[{{i}}]:",
            "        {a}[{i}] = {b}[{i}]",
        ),
    )


COUNT: Final = Template(
    ("0",), (), ("{a}[{i}] += 1",), "{a}[{i}]", ("{a}[{i}] += {b}[{i}]",)
)


COUNT_WHERE: Final = Template(
    ("0",), (), ("if {v}:", "    {a}[{i}] += 1"), COUNT.result, COUNT.merge
)


SUM: Final = Template(
    ("None",),
    _ADDED,
    ("{a}[{i}] = {n}",),
    "{a}[{i}]",
    _SUM_MERGED,
)


MEAN: Final = Template(
    ("None", "0"),
    SUM.compute,
    ("if {v} is not None:", "    {a}[{i}] = {n}", "    {a}[{j}] += 1"),
    "({a}[{i}] / {a}[{j}] if {a}[{j}] else None)",
    (*_SUM_MERGED, "{a}[{j}] += {b}[{j}]"),
)


MIN: Final = _extreme("<")


MAX: Final = _extreme(">")


LIST: Final = Template(
    ("[]",),
    (),
    ("if {v} is not None:", "    {a}[{i}].append({v})"),
    "{a}[{i}].copy()",
    ("{a}[{i}] = [*{a}[{i}], *{b}[{i}]]",),
)


CUSTOM: Final = Template(
    ("{f}.create_accumulator()",),
    ("{n} = {f}.add(record, {a}[{i}])",),
    ("{a}[{i}] = {n}",),
    "{f}.get_result({a}[{i}])",
    ("{a}[{i}] = {f}.merge({a}[{i}], {b}[{i}])",),
)


class Layout:
    """The pieces of an aggregate with their slots and names.

    Args:
        templates: The kind of each piece.
    """

    def __init__(self, templates: Sequence[Template]) -> None:
        self._pieces: list[tuple[Template, dict[str, str]]] = []
        slot = 0
        for number, template in enumerate(templates):
            names = {
                "a": "a",
                "b": "b",
                "i": str(slot),
                "j": str(slot + 1),
                "n": f"n{number}",
                "v": f"v{number}",
                "f": f"f{number}",
            }
            self._pieces.append((template, names))
            slot += len(template.initial)

    @property
    def sums(self) -> list[int]:
        """The numbers of the pieces that add up."""
        pieces = enumerate(self._pieces)
        return [number for number, (one, _) in pieces if one.compute is SUM.compute]

    def initial(self) -> str:
        """Return the expression of a new accumulator."""
        parts = [
            part.format_map(names)
            for template, names in self._pieces
            for part in template.initial
        ]
        return f"[{', '.join(parts)}]"

    def results(self) -> list[str]:
        """Return the expression of each piece's result."""
        return [template.result.format_map(names) for template, names in self._pieces]

    def statements(self, part: str) -> list[str]:
        """Return the statements of one part of all templates."""
        return [
            line.format_map(names)
            for template, names in self._pieces
            for line in getattr(template, part)
        ]


def add_source(layout: Layout, reads: Sequence[tuple[int, str]]) -> str:
    """Return the source of ``add(record, a)``.

    Args:
        layout: The pieces.
        reads: For each piece that reads something its number, and the expression.
    """
    body = [f"    {line}" for line in _adding(layout, reads)]
    return "\n".join(["def add(record, a):", *body, "    return a"])


def roll_source(layout: Layout, reads: Sequence[tuple[int, str]], result: str) -> str:
    """Return the source of ``roll(keys, records, rows, results)``.

    It does for each record what ``add`` and ``get_result`` do, without calling them. An
    accumulator is changed in place, so only a new one is put into its row, and not
    before its first record has been added.

    Args:
        layout: The pieces.
        reads: As for `add_source`.
        result: The expression of the result.
    """
    lines = [
        "held = get(key)",
        f"a = {layout.initial()} if held is None else held",
        *_adding(layout, reads),
        "if held is None:",
        "    rows[key] = a",
        f"results.append({result})",
    ]
    return "\n".join(
        [
            "def roll(keys, records, rows, results):",
            "    get = rows.get",
            "    for key, record in zip(keys, records):",
            *(f"        {line}" for line in lines),
        ]
    )


def pour_source(layout: Layout, reads: Sequence[tuple[int, str]], start: str) -> str:
    """Return the source of ``pour(keys, records, stamps, window_at, add_first)``.

    It does for each record what ``add`` does with what its window has of its key, and
    calls ``add_first(key, record, stamp)`` where there is nothing yet.

    Args:
        layout: The pieces.
        reads: As for `add_source`.
        start: The expression of the window's start, of ``stamp``.
    """
    lines = [
        f"window = window_at({start})",
        "a = None if window is None else window.get(key)",
        "if a is None:",
        "    add_first(key, record, stamp)",
        "    continue",
        *_adding(layout, reads),
    ]
    return "\n".join(
        [
            "def pour(keys, records, stamps, window_at, add_first):",
            "    for key, record, stamp in zip(keys, records, stamps):",
            *(f"        {line}" for line in lines),
        ]
    )


def _adding(layout: Layout, reads: Sequence[tuple[int, str]]) -> list[str]:
    """Return the statements that add ``record`` to ``a``."""
    lines: list[str] = []
    compute = layout.statements("compute")
    sums = [f"({number}, v{number})" for number in layout.sums]
    if sums:
        compute = [
            "try:",
            *(f"    {line}" for line in compute),
            "except TypeError:",
            f"    refuse_text(record, [{', '.join(sums)}])",
            "    raise",
        ]
    if reads:
        # Equal expressions are read once.
        first: dict[str, str] = {}
        lines.append("try:")
        for number, expression in reads:
            lines.append(f"    v{number} = {first.setdefault(expression, expression)}")
            first[expression] = f"v{number}"
        lines += [
            "except field_errors:",
            "    explain(record)",
            "    raise",
        ]
    return lines + compute + layout.statements("store")


def compile_function(
    name: str, source: str, names: dict[str, Any]
) -> Callable[..., Any]:
    """Return the function that ``source`` defines; tracebacks show its lines."""
    exec(compiled("aggregate", source), names)
    return names[name]


# Record types whose fields are known only when the job is built.


# Type checkers want to know the fields.
_namedtuple: Final[Any] = namedtuple  # noqa: PYI024 -- the fields are data


@functools.cache
def result_type(fields: tuple[str, ...]) -> type[Any]:
    """Return the NamedTuple type with these fields; the same one for the same fields.

    Its records pickle by their fields, so that another process makes its own type.

    Example:
        >>> result_type(("flights", "delay"))(2, 7.5)
        Result(flights=2, delay=7.5)
    """
    made: Any = _namedtuple("Result", fields)
    made.__module__ = __name__
    made.__reduce__ = _reduce
    return made


def check_result_fields(names: tuple[str, ...], reserved: frozenset[str]) -> None:
    """Raise if these names cannot be the fields of a result.

    Raises:
        InvalidArgumentError: If one is no identifier, is taken, or begins with ``_``.
    """
    for name in names:
        if not is_field_name(name):
            raise InvalidArgumentError(
                "named",
                f"{name!r} cannot be the name of a field",
                "Use a Python name that does not begin with an underscore.",
            )
        if name in reserved:
            raise InvalidArgumentError(
                "named",
                f"{name!r} is a field that every window's result has",
                "Give the aggregate another name.",
            )


def _reduce(record: Any) -> tuple[Any, ...]:
    return _restored, (record._fields, tuple(record))


def _restored(fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return result_type(fields)(*values)


family_kept_in_state("Result", result_type, _restored)
