"""Pairs of records of two sides, as columns and as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.decode import column_decoder, decoded
from aiomailbox.columnar.evaluator import (
    check_expression,
    check_reads,
    record_groups,
    record_kind,
)
from aiomailbox.columnar.expressions import ExpressionOperator
from aiomailbox.columnar.forms import (
    DictForm,
    NamedTupleForm,
    RecordForm,
    StructBuilder,
    changed_form,
    class_hints,
    form_of_class,
    record_shape,
)
from aiomailbox.columnar.keys import KEYS_OF_ROWS, KeySlots
from aiomailbox.columnar.rows import RowMaker, maker_of_fields
from aiomailbox.columnar.types import RowsNeededError, canonical_type
from aiomailbox.columnar.windows import ColumnarOperator
from aiomailbox.errors import (
    InvalidArgumentError,
    RecordTypeError,
    UnsupportedColumnError,
    WrongTypeError,
)
from aiomailbox.eventtime.timers import event_timers
from aiomailbox.operators.core.fields import RecordFields
from aiomailbox.operators.core.operator import (
    Pending,
    TwoInputOperator,
)
from aiomailbox.operators.core.user_code import OnError, fail
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.records.run import ListRun, Run
from aiomailbox.state.snapshot import KeyedStateSnapshot, SnapshotRows

# Pairs of records of two sides, as columns that are put together when asked for.


class Picked:
    """Records that were picked from several runs of one schema, in any order.

    Args:
        runs: The runs, at least one.
        which: The run of each record; None if there is only one.
        places: Its place there; int64, shape ``(n,)``.

    Example:
        >>> from aiomailbox.columnar.forms import NamedTupleForm
        >>> batch = pa.record_batch({"n": [1, 2, 3]})
        >>> run = ArrowRun(batch, RowMaker(batch.schema, NamedTupleForm()))
        >>> picked = Picked([run, run], np.array([0, 1, 0]), np.array([2, 0, 1]))
        >>> picked.column("n").to_pylist()
        [3, 1, 2]
    """

    __slots__ = ("_parts", "_places", "_runs", "_which")

    def __init__(
        self, runs: list[ArrowRun], which: np.ndarray | None, places: np.ndarray
    ) -> None:
        self._runs = runs
        self._which = which if len(runs) > 1 else None
        self._places = places
        self._parts: tuple[list[ArrowRun], np.ndarray | None] | None = None

    def __len__(self) -> int:
        return len(self._places)

    @property
    def row_maker(self) -> RowMaker:
        """The maker of their rows."""
        return self._runs[0].row_maker

    @property
    def schema(self) -> pa.Schema:
        """Their columns' names and types."""
        return self._runs[0].schema

    def column(self, name: str) -> pa.Array:
        """Return one of their columns."""
        parts, back = self._taken()
        columns = [part.column(name) for part in parts]
        if back is None:
            return columns[0]
        return pa.concat_arrays(columns).take(pa.array(back))

    def values(self) -> list[Any]:
        """Return them as rows."""
        parts, back = self._taken()
        rows = [row for part in parts for row in part.values]
        return rows if back is None else [rows[place] for place in back.tolist()]

    def slice(self, start: int, stop: int) -> Picked:
        """Return records ``start`` to ``stop - 1``."""
        which = None if self._which is None else self._which[start:stop]
        return Picked(self._runs, which, self._places[start:stop])

    def _taken(self) -> tuple[list[ArrowRun], np.ndarray | None]:
        """Return what each run has of them, and where each record is in all of that."""
        if self._parts is None:
            which = self._which
            if which is None:
                self._parts = [_picked(self._runs[0], self._places)], None
            else:
                mine = [np.flatnonzero(which == one) for one in range(len(self._runs))]
                parts = [
                    _picked(run, self._places[places])
                    for run, places in zip(self._runs, mine, strict=True)
                ]
                back: np.ndarray = np.empty(len(which), np.int64)
                back[np.concatenate(mine)] = np.arange(len(which))
                self._parts = parts, back
        return self._parts


class PairRun:
    """Pairs with their event times, as a run of ``(left, right)``.

    Args:
        left: The left records.
        right: The right ones, as many.
        times: Event times in milliseconds, int64.
    """

    __slots__ = ("left", "right", "times")

    def __init__(self, left: Picked, right: Picked, times: np.ndarray) -> None:
        self.left: Picked = left
        self.right: Picked = right
        self.times: np.ndarray = times

    def __len__(self) -> int:
        return len(self.times)

    @property
    def values(self) -> list[Any]:
        """The pairs, as rows."""
        return list(zip(self.left.values(), self.right.values(), strict=True))

    @property
    def timestamps(self) -> list[int]:
        """The event times, milliseconds."""
        return self.times.tolist()

    def slice(self, start: int, stop: int) -> PairRun:
        """Return pairs ``start`` to ``stop - 1``."""
        return PairRun(
            self.left.slice(start, stop),
            self.right.slice(start, stop),
            self.times[start:stop],
        )


def _picked(run: ArrowRun, places: np.ndarray) -> ArrowRun:
    taken = run.take(places)
    assert type(taken) is ArrowRun, "only columns whose values can be picked are kept"
    return taken


# Which fields a joined record gets, by the names of those of its two sides.


_SIDES: Final = ("left", "right")


# A side, 0 for left, and the name of its field.
Place = tuple[int, str]


class PairPlan(NamedTuple):
    """The outputs of pairs whose records have certain fields.

    Attributes:
        outputs: Names in order, each with the field that it is, or the number of an
            expression.
        read: The fields that the expressions may read, by the names that they use.
    """

    outputs: list[tuple[str, Place | int]]
    read: dict[str, Place]


@dataclass(frozen=True)
class PairFields:
    """The fields in ``select`` of a join; `pair_fields` makes it.

    A field that only one side has goes by its name, and so does a key that has one name
    on both sides. Any field goes by ``left.name`` or ``right.name``.

    Attributes:
        items: New names in order, each with the name of a field, or an expression.
        keys: The names that keys have on both sides.

    Example:
        >>> fields = pair_fields(("id", "left.price"), {"paid": "right.price"}, {"id"})
        >>> for output in fields.plan(("id", "price"), ("id", "price")).outputs:
        ...     print(output)
        ('id', (0, 'id'))
        ('price', (0, 'price'))
        ('paid', (1, 'price'))
    """

    items: tuple[tuple[str, Any], ...]
    keys: frozenset[str] = field(default_factory=frozenset)

    @property
    def expressions(self) -> list[pc.Expression]:
        """The expressions, in order."""
        return [value for _, value in self.items if not isinstance(value, str)]

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of a joined record."""
        return tuple(name for name, _ in self.items)

    def plan(self, left: Sequence[str], right: Sequence[str]) -> PairPlan:
        """Return what becomes of pairs of records with these fields.

        Raises:
            RecordTypeError: If a name is none of them, or that of two.
        """
        named = self._named(left, right)
        outputs: list[tuple[str, Place | int]] = []
        count = 0
        for name, value in self.items:
            if isinstance(value, str):
                outputs.append((name, self._place(value, named, left, right)))
            else:
                outputs.append((name, count))
                count += 1
        text = "\n".join(map(str, self.expressions))
        for expression in self.expressions:
            check_reads(expression, _told(named, left, right, text))
        return PairPlan(
            outputs, {name: place for name, place in named.items() if name in text}
        )

    def check(self, left: Sequence[str] | None, right: Sequence[str] | None) -> None:
        """Refuse what no pair can have, as far as fields are known; None if not.

        Raises:
            RecordTypeError: Then.
        """
        if left is not None and right is not None:
            self.plan(left, right)
            return
        for side, names in zip(_SIDES, (left, right), strict=True):
            for _, value in self.items:
                if names is None or not isinstance(value, str):
                    continue
                where, _, name = value.partition(".")
                if where == side and name not in names:
                    raise _no_field(value, names)

    def _named(self, left: Sequence[str], right: Sequence[str]) -> dict[str, Place]:
        """Return the fields by all names that each of them has."""
        named: dict[str, Place] = {}
        for side, (own, others) in enumerate(((left, right), (right, left))):
            for name in own:
                if name not in others or name in self.keys:
                    named.setdefault(name, (side, name))
        for side, own in enumerate((left, right)):
            named |= {f"{_SIDES[side]}.{name}": (side, name) for name in own}
        return named

    def _place(
        self,
        name: str,
        named: Mapping[str, Place],
        left: Sequence[str],
        right: Sequence[str],
    ) -> Place:
        place = named.get(name)
        if place is not None:
            return place
        if name in left and name in right:
            raise RecordTypeError(
                "names",
                f"both sides have a field {name!r}",
                f'Write "left.{name}" or "right.{name}".',
            )
        raise _no_field(name, dict.fromkeys((*left, *right)))


def pair_fields(
    names: Sequence[Any], named: Mapping[str, Any], keys: Sequence[str] | set[str]
) -> PairFields:
    """Return what ``select(*names, **named)`` of a join says.

    Args:
        names: Fields, which keep their names; ``left.`` or ``right.`` is left away.
        named: New names, each with a field's name or an expression.
        keys: The names that keys have on both sides.

    Raises:
        InvalidArgumentError: If there is nothing, or a name would be there twice.
        WrongTypeError: If something is neither a name nor an expression.
    """
    items: list[tuple[str, Any]] = []
    for name in names:
        if not isinstance(name, str):
            raise WrongTypeError(
                "names",
                f"{name!r} is no name of a field",
                'Write "price", or give the computed field a name: total=...',
            )
        items.append((_own_name(name), name))
    for name, value in named.items():
        if isinstance(value, str):
            _own_name(value)
        else:
            check_expression(value, name)
        items.append((name, value))
    if not items:
        raise InvalidArgumentError(
            "names",
            "no field is named",
            'Write the fields, for example "price" or "left.price".',
        )
    seen: dict[str, Any] = {}
    for name, value in items:
        if name in seen:
            other = value if isinstance(value, str) else seen[name]
            raise InvalidArgumentError(
                "names",
                f"two fields would be named {name!r}",
                f'Give one another name: other_{name}="{other}".',
            )
        seen[name] = value
    return PairFields(tuple(items), frozenset(keys))


def _told(
    named: Mapping[str, Place], left: Sequence[str], right: Sequence[str], text: str
) -> list[str]:
    """Return the names for messages: a side only where it has to be said."""
    return [
        name
        for name, (side, field) in named.items()
        if name == field or field in (right, left)[side] or name in text
    ]


def _own_name(name: str) -> str:
    """Return what a field is called without its side."""
    side, dot, own = name.partition(".")
    own = own if dot and side in _SIDES else name
    if not own:
        raise InvalidArgumentError(
            "names", f"{name!r} names no field", "Use a field's name."
        )
    return own


def _no_field(name: str, names: Any) -> RecordTypeError:
    return RecordTypeError(
        "names", f"there is no field {name!r}", f"The fields are: {', '.join(names)}."
    )


# Makes joined records of pairs, from columns and from rows.


# A plan is kept for so many kinds of pairs; dicts may have any keys.
_PLANS_MAX: Final = 64


class PairSelection(ExpressionOperator):
    """Makes joined records of runs of pairs.

    Pairs come as a `PairRun`, or as rows ``(left, right)``. Joined records are dicts
    where left records are, else NamedTuples.

    Args:
        fields: What the records get.
        on_error: How to handle a pair for which that fails.

    Example:
        >>> import pyarrow.compute as pc
        >>> from aiomailbox.columnar.pairs import pair_fields
        >>> from aiomailbox.testing import OneInputHarness
        >>> gain = pc.field("left.price") - pc.field("right.price")
        >>> fields = pair_fields(("id",), {"gain": gain}, {"id"})
        >>> with OneInputHarness(PairSelection(fields)) as harness:
        ...     pair = {"id": 7, "price": 5}, {"id": 7, "price": 3}
        ...     harness.process_run([pair])
        ...     harness.values
        [{'id': 7, 'gain': 2}]
    """

    def __init__(self, fields: PairFields, on_error: OnError = fail) -> None:
        super().__init__(fields.expressions, on_error)
        self._fields = fields
        self._plans: dict[Any, _Plan] = {}
        self._makers: tuple[RowMaker, RowMaker] | None = None
        self._maker: RowMaker | None = None

    def result_fields(self, *fields: RecordFields | None) -> RecordFields | None:
        """Return the fields of joined records, if those of the left ones are known."""
        self._fields.check(*(None if each is None else each.names for each in fields))
        left = fields[0]
        return None if left is None else left.renewed(self._fields.names, "names", {})

    def parts(self, run: Run) -> Iterator[Any]:
        """Yield parts of a run whose pairs are of one kind."""
        if isinstance(run, PairRun):
            yield run
            return
        for bounds in record_groups(run.values, _pair_kind):
            yield run.slice(*bounds)

    def result(self, run: Run) -> Run:
        """Return the joined records of pairs of one kind."""
        if isinstance(run, PairRun):
            return self._of_columns(run)
        lefts, rights = map(list, zip(*run.values, strict=True))
        shapes = record_shape(lefts[0]), record_shape(rights[0])
        plan = self._plan(
            (shapes[0].names, shapes[1].names),
            tuple(shape.record_type for shape in shapes),
        )
        form: RecordForm
        form = DictForm() if isinstance(lefts[0], dict) else NamedTupleForm()
        picked = [
            shape.picked(plan.of_side(side), records)
            for side, (shape, records) in enumerate(
                zip(shapes, (lefts, rights), strict=True)
            )
        ]
        computed = self._computed_rows(plan, picked, len(lefts), form)
        columns = [
            computed[origin]
            if isinstance(origin, int)
            else picked[origin[0]][origin[1]]
            for _, origin in plan.outputs
        ]
        build = form.builder(self._fields.names)
        return ListRun(build(columns, len(lefts)), run.timestamps)

    def _computed_rows(
        self, plan: _Plan, picked: list[dict[str, list[Any]]], count: int, form: Any
    ) -> list[list[Any]]:
        if not self.evaluator.expressions:
            return []
        columns = [picked[side][name] for side, name in plan.read.values()]
        records = plan.form.builder(tuple(plan.read))(columns, count)
        computed = self.evaluator.evaluate(ListRun(records))
        names = [name for name, origin in plan.outputs if isinstance(origin, int)]
        return [
            decoded(column_decoder(column.type, form, (name,)), column, name)
            for name, column in zip(names, computed, strict=True)
        ]

    def _of_columns(self, run: PairRun) -> Run:
        sides = run.left, run.right
        makers = run.left.row_maker, run.right.row_maker
        classes = tuple(getattr(each.form, "record_type", None) for each in makers)
        names = run.left.schema.names, run.right.schema.names
        plan = self._plan((tuple(names[0]), tuple(names[1])), classes)
        computed: list[pa.Array] = []
        if self.evaluator.expressions:
            columns = [sides[side].column(name) for side, name in plan.read.values()]
            computed = self.evaluator.evaluate(
                self._read_run(plan, columns, makers, len(run))
            )
        batch = pa.RecordBatch.from_arrays(
            [
                computed[origin]
                if isinstance(origin, int)
                else sides[origin[0]].column(origin[1])
                for _, origin in plan.outputs
            ],
            names=list(self._fields.names),
        )
        maker = self._maker
        if maker is None or self._makers != makers or maker.schema != batch.schema:
            origins = {
                name: (makers[origin[0]], origin[1])
                for name, origin in plan.outputs
                if not isinstance(origin, int)
            }
            form = partial(changed_form, makers[0].form)
            maker = maker_of_fields(batch.schema, origins, form)
            self._maker, self._makers = maker, makers
        return ArrowRun(batch, maker, run.times)

    def _read_run(
        self,
        plan: _Plan,
        columns: list[pa.Array],
        makers: tuple[RowMaker, RowMaker],
        count: int,
    ) -> ArrowRun:
        """Return what expressions read as a run of its own."""
        if not columns:
            # A batch without columns would have no records.
            nothing = pa.RecordBatch.from_arrays([pa.nulls(count)], names=["\0"])
            return ArrowRun(nothing, RowMaker(nothing.schema, DictForm()))
        batch = pa.RecordBatch.from_arrays(columns, names=list(plan.read))
        maker = plan.maker
        if maker is None or plan.makers != makers or maker.schema != batch.schema:
            origins = {
                name: (makers[side], field) for name, (side, field) in plan.read.items()
            }
            maker = maker_of_fields(batch.schema, origins, lambda _: plan.form)
            plan.maker, plan.makers = maker, makers
        return ArrowRun(batch, maker)

    def _plan(
        self, names: tuple[tuple[str, ...], tuple[str, ...]], classes: tuple[Any, ...]
    ) -> _Plan:
        known = self._plans.get((names, classes))
        if known is None:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            known = _Plan(self._fields.plan(*names), classes)
            self._plans[names, classes] = known
        return known


class _Plan:
    """The plan for pairs of one kind: their fields, and how rows are made of them.

    Args:
        plan: The fields.
        classes: Those of the left and of the right records; None if there is none.
    """

    def __init__(self, plan: PairPlan, classes: tuple[Any, ...]) -> None:
        self.outputs = plan.outputs
        self.read = plan.read
        self.form = _ReadForm(plan.read, [class_hints(each) for each in classes])
        self.maker: RowMaker | None = None
        self.makers: tuple[RowMaker, RowMaker] | None = None

    def of_side(self, side: int) -> list[str]:
        """Return the fields of a side that are kept or read."""
        places = [place for _, place in self.outputs if not isinstance(place, int)]
        places += self.read.values()
        return list(dict.fromkeys(name for where, name in places if where == side))


class _ReadForm:
    """Records of what expressions read: dicts, as names have dots.

    Their class has the annotations of the fields, which decide what a column is that
    was a whole number so far.
    """

    def __init__(self, read: dict[str, Place], hints: Sequence[dict[str, Any]]) -> None:
        annotations = {
            name: hints[side][field]
            for name, (side, field) in read.items()
            if field in hints[side]
        }
        self.record_type: type[Any] = type(
            "Pair", (dict,), {"__annotations__": annotations}
        )

    def builder(self, names: tuple[str, ...], where: str = "") -> StructBuilder:
        make: Any = self.record_type

        def build(columns: Sequence[Sequence[Any]], count: int) -> list[Any]:
            if not columns:
                return [make() for _ in range(count)]
            return [
                make(zip(names, row, strict=True)) for row in zip(*columns, strict=True)
            ]

        return build

    def nested(self, name: str) -> RecordForm:
        return NamedTupleForm()


def _pair_kind(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    return record_kind(pair[0]), record_kind(pair[1])


# What a join knows of the columns of one of its sides, and how they are kept alike.


_OTHER_COLUMNS = "the columns of a side have other names or types than before"


# What is raised for values that are no column.
_NO_COLUMN = (
    InvalidArgumentError,
    *(pa.ArrowException, AttributeError, KeyError, OverflowError),
    *(RecordTypeError, TypeError, UnsupportedColumnError, ValueError),
)


class ColumnarSide:
    """One side: how its rows are made, to which all that is kept of it conforms.

    Args:
        selector: Reads the keys of its records; a selector of fields.

    Attributes:
        selector: The same.
        maker: Makes its rows; None before the first run.
        key_type: The type of the key's columns that was checked last.
    """

    def __init__(self, selector: Any) -> None:
        self.selector: Any = selector
        self.maker: RowMaker | None = None
        # What came last, and the same without dictionaries.
        self._given: RowMaker | None = None
        self._plain: RowMaker | None = None
        self.key_type: Any = None

    def fit(self, run: ArrowRun, conform: Callable[[RowMaker], None]) -> ArrowRun:
        """Return a run with the columns that are kept of this side.

        Args:
            run: A run of it.
            conform: Gives what is kept the columns of another `RowMaker`, or raises
                `RowsNeededError`.

        Raises:
            RowsNeededError: If only rows of both are alike; nothing has been changed.
        """
        run = self._without_dictionaries(run)
        maker, given = self.maker, run.row_maker
        if maker is given:
            return run
        if not given.can_take or given.special:
            raise RowsNeededError("a column of a side cannot be kept")
        if maker is None:
            self.maker = given
            return run
        if _kind(maker.form) != _kind(given.form):
            raise RowsNeededError("the records of a side are of another class now")
        if maker.schema.equals(given.schema):
            return run
        try:
            return recast(run, maker)
        except RowsNeededError:
            conform(given)
        self.maker = given
        return run

    def _without_dictionaries(self, run: ArrowRun) -> ArrowRun:
        """Return a run with plain values: not all dictionaries can become one."""
        given, plain = run.row_maker, self._plain
        if plain is None or given is not self._given:
            schema = pa.schema(list(map(_plain_field, given.schema)))
            same = schema.equals(given.schema)
            plain = given if same else RowMaker(schema, given.form, given.special)
            self._given, self._plain = given, plain
        if plain is given:
            return run
        columns = [
            column.dictionary_decode()
            if pa.types.is_dictionary(column.type)
            else column
            for column in [run.column(name) for name in plain.schema.names]
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=plain.schema)
        return ArrowRun(batch, plain, run.event_times)


def _plain_field(field: pa.Field) -> pa.Field:
    kind = field.type
    return field.with_type(kind.value_type) if pa.types.is_dictionary(kind) else field


def recast(run: ArrowRun, maker: RowMaker) -> ArrowRun:
    """Return a run with other types of columns, whose rows are the same.

    Raises:
        RowsNeededError: If there is none.
    """
    if run.schema.names != maker.schema.names:
        raise RowsNeededError(_OTHER_COLUMNS)
    columns = [_recast(run.column(field.name), field.type) for field in maker.schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=maker.schema)
    return ArrowRun(batch, maker, run.event_times)


def _recast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    if not _means_the_same(column.type, kind):
        raise RowsNeededError(_OTHER_COLUMNS)
    try:
        made = column.cast(kind)
        if made.cast(column.type).equals(column):
            return made
    except pa.ArrowException:
        pass
    raise RowsNeededError(_OTHER_COLUMNS)


def _means_the_same(one: pa.DataType, other: pa.DataType) -> bool:
    """Say whether equal values of two types are equal in Python."""
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        return bool(one.scale == other.scale)
    plain = canonical_type(one)
    return plain is not None and plain.equals(canonical_type(other))


def run_of_rows(rows: list[Any]) -> ArrowRun:
    """Return rows that a restore has brought as a run of columns.

    Raises:
        RowsNeededError: If the rows of that would not be the same.
    """
    kind = type(rows[0])
    if {kind} != set(map(type, rows)):
        raise RowsNeededError("the state has records of several classes")
    try:
        shape = record_shape(rows[0])
        form = form_of_class(kind, shape.names)
        if kind is dict and any(len(row) != len(shape.names) for row in rows):
            raise RowsNeededError("the state has records with different fields")
        columns = shape.picked(shape.names, rows)
        batch = pa.RecordBatch.from_arrays(
            [pa.array(columns[name]) for name in shape.names], list(shape.names)
        )
        run = ArrowRun(batch, RowMaker(batch.schema, form))
        # Types, digits and zones are a part of that.
        same = repr(run.row_maker.rows(batch)) == repr(rows)
    except _NO_COLUMN as error:
        raise RowsNeededError("the state has values that are no column") from error
    if not same or not run.row_maker.can_take:
        raise RowsNeededError("the state has values that are no column")
    return run


def _kind(form: RecordForm) -> tuple[Any, ...]:
    """Return what forms have in common that make the same records."""
    record_type = getattr(form, "record_type", None)
    if record_type is not None:
        return (record_type,)
    inner = getattr(form, "inner", {})
    parts = [(name, _kind(inner[name])) for name in sorted(inner)]
    return (type(form), *parts)


# What joins over columns have in common: their keys and sides.


# Pairs of a run that is emitted.
PAIRS_MAX: Final = 16_384


# Whether all keys are still in use is looked up when there are so many.
_KEYS_MIN: Final = 4096


class ColumnarJoin(ColumnarOperator, TwoInputOperator):
    """Lets a join of two inputs work on columns; see `ColumnarOperator`.

    Its pairs are `PairRun`.

    Attributes:
        timers_name: The name under which snapshots have the timers of rows.
    """

    timers_name: ClassVar[str]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._sides = (
            ColumnarSide(self.key_of_input(0)),
            ColumnarSide(self.key_of_input(1)),
        )
        self._slots = KeySlots(self._check_keys)
        self._look_at = _KEYS_MIN

    def process_input(self, index: int, run: Run) -> Pending:
        """Join the records of the left, or of the right stream."""
        if self._is_columnar and len(run):
            try:
                taken, times, slots = self._taken(index, run)
            except RowsNeededError as reason:
                self._go_to_rows(str(reason))
            else:
                return self._join(index, taken, times, slots)
        return super().process_input(index, run)

    def capture(self) -> OperatorSnapshot:
        """Return all state, that in columns as the operator of rows would have it."""
        captured, kept = super().capture(), self._rows_kept()
        if kept is None:
            return captured
        apart, timers = kept
        made = event_timers(timers, self.context.max_parallelism)
        return replace(
            captured,
            keyed=(*captured.keyed, apart),
            timers={**captured.timers, self.timers_name: made},
        )

    def _rows_kept(self) -> tuple[KeyedStateSnapshot, SnapshotRows] | None:
        """Return what is in columns as rows, and the timers of these; None for nothing."""
        raise TypeError(f"{type(self).__name__} defines no _rows_kept")

    def _join(
        self, side: int, run: ArrowRun, times: np.ndarray, slots: np.ndarray
    ) -> Pending:
        """Keep and join the records of a run.

        Args:
            side: 0 for left, 1 for right.
            run: The records.
            times: Their event times, milliseconds.
            slots: The places of their keys.
        """
        raise TypeError(f"{type(self).__name__} defines no _join")

    def _check_keys(self, keys: list[Any]) -> None:
        """Hold keys to the type that all have."""
        raise TypeError(f"{type(self).__name__} defines no _check_keys")

    def _conform(self, side: int, maker: RowMaker) -> None:
        """Give what is kept of a side other columns.

        Raises:
            RowsNeededError: If rows would be others then; nothing has been changed.
        """
        raise TypeError(f"{type(self).__name__} defines no _conform")

    def _used_slots(self) -> np.ndarray:
        """Return the places of keys that there are records of, ascending."""
        raise TypeError(f"{type(self).__name__} defines no _used_slots")

    def _renumber(self, numbers: np.ndarray) -> None:
        """Give keys other places."""
        raise TypeError(f"{type(self).__name__} defines no _renumber")

    def _taken(self, side: int, run: Run) -> tuple[ArrowRun, np.ndarray, np.ndarray]:
        """Return a run as it is kept, its event times, and the places of its keys.

        Raises:
            RowsNeededError: If the rows have to be asked; nothing has been changed.
        """
        columns, times = self._timed(run)
        mine, schema = self._sides[side], columns.schema
        kinds = [
            schema.field(name).type
            for name in mine.selector.fields
            if name in schema.names
        ]
        if kinds != mine.key_type:
            first = columns.slice(0, 1).key_codes(mine.selector)
            if first is None:
                raise RowsNeededError(KEYS_OF_ROWS)
            self._check_keys(first.distinct)
            mine.key_type = kinds
        slots = self._slots_by(mine.selector, columns)
        return mine.fit(columns, partial(self._conform, side)), times, slots

    def _forget_keys(self) -> None:
        """Forget keys that there is nothing of, when there may be many."""
        if not self._is_columnar or len(self._slots.places) < self._look_at:
            return
        used, keys = self._used_slots(), self._slots.keys
        if 2 * len(used) < len(keys):
            numbers: np.ndarray = np.zeros(len(keys), np.int64)
            numbers[used] = np.arange(len(used))
            self._renumber(numbers)
            self._slots.clear()
            self._slots.place([keys[slot] for slot in used.tolist()])
        self._look_at = max(_KEYS_MIN, 2 * len(self._slots.places))
