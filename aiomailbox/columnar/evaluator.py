"""Evaluates Arrow expressions over runs, whatever their form.

Theory of operation: the columns that an expression reads get the types that Python's
values have (`canonical_type`), whether they come from a batch or are made from rows, and
then Arrow evaluates it. So there is one meaning, Arrow's, and one result. Which fields
an expression reads is not known from Arrow: it is tried, once per schema, without which
of them it cannot be bound.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, islice, product
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.declared import hinted_type
from aiomailbox.columnar.encode import encoded_column, lacks_type
from aiomailbox.columnar.forms import RecordShape, canonical_values, record_shape
from aiomailbox.columnar.rows import RowMaker
from aiomailbox.columnar.types import canonical_type, cast_plain
from aiomailbox.errors import InvalidArgumentError, RecordTypeError, WrongTypeError
from aiomailbox.records.run import Run

# Calls the kernels that an expression is made of, one after the other.
#
# Theory of operation: Arrow evaluates an expression by a plan, which takes a tenth of a
# millisecond to begin: more than the kernels themselves need for a run. What an
# expression is made of, Arrow tells only by its pickled form: a call, a field or a
# literal is an entry of a schema's metadata, of which the same key may come several
# times. So the metadata is read as Arrow's C interface lays it out. Only calls that
# mean the same in both ways are made here: of types for which a plan would cast
# nothing, without options.


Kernel = Callable[[Mapping[str, pa.Array]], pa.Array]


_ARITHMETIC: Final = frozenset(
    f"{name}{ending}"
    for name in ("add", "subtract", "multiply", "divide")
    for ending in ("", "_checked")
)


_BITS: Final = frozenset({"bit_wise_and", "bit_wise_or", "bit_wise_xor"})


_COMPARING: Final = frozenset(
    {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
)


_LOGIC: Final = frozenset({"and_kleene", "or_kleene"})


_INT, _FLOAT, _TEXT, _BOOL = pa.int64(), pa.float64(), pa.string(), pa.bool_()


_COMPARED: Final = (_INT, _FLOAT, _TEXT)


# Beyond it, an integer is not always a float.
_EXACT_MAX: Final = 2**53


# What an expression may consist of; a field of a field is not among it.
_KNOWN_ENTRIES: Final = frozenset({"call", "end", "field_ref", "literal", "options"})


class _Bound(NamedTuple):
    """A part of an expression that can be called.

    Attributes:
        kind: Of what it gives.
        literal: What it always gives; None if it depends on columns.
        run: Gives it.
    """

    kind: pa.DataType
    literal: pa.Scalar | None
    run: Kernel


class _CSchema(ctypes.Structure):
    """``ArrowSchema`` of Arrow's C data interface, as far as it is read."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
    )


# Longer ones have long literals, and are not kept.
_KNOWN_BYTES_MAX: Final = 16_384


class Parts(NamedTuple):
    """The parts of an expression.

    Attributes:
        entries: Calls, fields and literals in the order in which they are written.
        batch: Has the literals.

    Example:
        >>> parts = parts_of(pc.field("a") + pc.field("b") * 2)
        >>> sorted(parts.fields())
        ['a', 'b']
        >>> kernel = parts.kernel({"a": pa.int64(), "b": pa.int64()})
        >>> kernel({"a": pa.array([1, None]), "b": pa.array([2, 3])}).to_pylist()
        [5, None]
    """

    entries: list[tuple[str, str]]
    batch: pa.RecordBatch

    def fields(self) -> set[str] | None:
        """Return the names of the fields that are read; None if they are not known."""
        if not {key for key, _ in self.entries} <= _KNOWN_ENTRIES:
            return None
        return {value for key, value in self.entries if key == "field_ref"}

    def kernel(self, types: Mapping[str, pa.DataType]) -> Kernel | None:
        """Return what evaluates the expression over columns; None to leave it to a plan.

        Args:
            types: The types of the columns that it reads.
        """
        entries = iter(self.entries)
        found = _bound(next(entries, ("", "")), entries, self.batch, types)
        return None if found is None or found.literal is not None else found.run


def parts_of(expression: pc.Expression) -> Parts | None:
    """Return what an expression is made of; None if Arrow says it in another way."""
    try:
        (_, (packed,)) = expression.__reduce__()
        data = bytes(packed)
        # It is asked several times for each expression of a job that starts.
        return _known_parts(data) if len(data) <= _KNOWN_BYTES_MAX else _unpacked(data)
    except (pa.ArrowException, TypeError, ValueError):
        # Another version may pickle expressions in another form.
        return None


def _unpacked(packed: bytes) -> Parts:
    batch = pa.ipc.open_file(packed).get_batch(0)
    return Parts(_metadata(batch.schema), batch)


_known_parts = lru_cache(maxsize=256)(_unpacked)


def kernel_of(
    expression: pc.Expression, types: Mapping[str, pa.DataType]
) -> Kernel | None:
    """Return what evaluates an expression over columns; None to leave it to a plan.

    Args:
        expression: What to evaluate.
        types: The types of the columns that it reads.

    Example:
        >>> kernel = kernel_of(pc.field("n") * 2 > 4, {"n": pa.int64()})
        >>> kernel({"n": pa.array([1, None, 3])}).to_pylist()
        [False, None, True]
        >>> kernel_of(pc.field("n").cast("string"), {"n": pa.int64()}) is None
        True
    """
    parts = parts_of(expression)
    return None if parts is None else parts.kernel(types)


def _bound(
    entry: tuple[str, str],
    rest: Iterator[tuple[str, str]],
    batch: pa.RecordBatch,
    types: Mapping[str, pa.DataType],
) -> _Bound | None:
    """Return the part that an entry begins; takes its other entries from the rest."""
    key, value = entry
    if key == "field_ref" and value in types:
        return _Bound(types[value], None, lambda columns: columns[value])
    if key == "literal":
        return _constant(batch.column(int(value))[0])
    if key != "call":
        return None
    parts: list[_Bound] = []
    for one in rest:
        if one == ("end", value):
            return _called(value, parts)
        part = _bound(one, rest, batch, types)
        if part is None:
            return None
        parts.append(part)
    return None


def _constant(literal: pa.Scalar) -> _Bound | None:
    return (
        _Bound(literal.type, literal, lambda _: literal) if literal.is_valid else None
    )


def _called(name: str, parts: list[_Bound]) -> _Bound | None:
    """Return a call of a kernel; None if a plan might do something else."""
    if all(part.literal is not None for part in parts):
        return None
    if name == "invert" and [part.kind for part in parts] == [_BOOL]:
        (given,) = (part.run for part in parts)
        return _Bound(_BOOL, None, lambda columns: pc.invert(given(columns)))
    if len(parts) != 2:
        return None
    first, second = _fitted(parts[0], parts[1]), _fitted(parts[1], parts[0])
    kind = _result_of(name, first.kind) if first.kind == second.kind else None
    if kind is None:
        return None
    call, one, other = pc.get_function(name).call, first.run, second.run
    return _Bound(kind, None, lambda columns: call([one(columns), other(columns)]))


def _fitted(part: _Bound, other: _Bound) -> _Bound:
    """Return a literal as a fraction where the other one is a fraction."""
    literal = part.literal
    if literal is None or part.kind != _INT or other.kind != _FLOAT:
        return part
    number = literal.as_py()
    exact = _constant(pa.scalar(float(number))) if abs(number) <= _EXACT_MAX else None
    return part if exact is None else exact


def _result_of(name: str, kind: pa.DataType) -> pa.DataType | None:
    """Return what a kernel makes of two of a type; None if it is not called here."""
    if name in _ARITHMETIC:
        return kind if kind in {_INT, _FLOAT} else None
    if name in _BITS:
        return kind if kind == _INT else None
    if name in _COMPARING:
        return _BOOL if kind in _COMPARED else None
    return _BOOL if name in _LOGIC and kind == _BOOL else None


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return all entries of a schema's metadata, in their order."""
    capsule = schema.__arrow_c_schema__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    address = _CSchema.from_address(pointer(capsule, b"arrow_schema")).metadata

    def number() -> int:
        nonlocal address
        found = ctypes.c_int32.from_address(address).value
        address += 4
        return found

    def text() -> str:
        nonlocal address
        length = number()
        found = ctypes.string_at(address, length).decode()
        address += length
        return found

    if not address:
        return []
    return [(text(), text()) for _ in range(number())]


# What is wrong with values, not with the expression.
EVALUATION_ERRORS: Final = (pa.ArrowException, RecordTypeError)


# Stands for the records where an expression reads no field; no name of a field.
_NO_FIELD: Final = "\0"


# What a field may be in which all values are None, and how many ways are tried.
_GUESSES: Final = (
    pa.null(),
    pa.int64(),
    pa.string(),
    pa.bool_(),
    pa.timestamp("us", "UTC"),
    pa.date32(),
    pa.binary(),
)


_GUESSES_MAX: Final = 500


_TYPE_ADVICE: Final = (
    "The first values of a field decide its type: declare it in the class of the records, "
    "or give all records the same types."
)


# Functions that give a value for each record; `cast` is a meta function.
_OF_RECORDS: Final = frozenset({"scalar", "meta"})


# What Arrow says of a field that is not there, before its name.
_NO_MATCH: Final = "No match for FieldRef.Name("


_NO_INNER: Final = "No match for FieldRef.Nested(FieldRef.Name("


# A text in an expression, and a comparison with what is never there.
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_WITH_NULL: Final = re.compile(r" (==|!=|<|<=|>|>=) null\[")


def check_expression(value: Any, parameter: str) -> pc.Expression:
    """Return ``value`` if it is an expression over named fields.

    Raises:
        WrongTypeError: If it is no expression.
        InvalidArgumentError: If it names a field by its place, compares with None, or calls
            a function that Arrow does not have, or that needs more than one record.

    Example:
        >>> check_expression(pc.field("price") * 2, "total")
        <pyarrow.compute.Expression multiply_checked(price, 2)>
    """
    if not isinstance(value, pc.Expression):
        raise WrongTypeError(
            parameter,
            f"{value!r} is not an expression",
            'Write pyarrow.compute.field("price") * 2, or pyarrow.compute.scalar(2).',
        )
    if "FieldPath(" in str(value):
        raise InvalidArgumentError(
            parameter,
            f"{value} refers to a field by its position",
            'Name it: pyarrow.compute.field("price").',
        )
    if _WITH_NULL.search(_QUOTED.sub("", str(value))):
        raise InvalidArgumentError(
            parameter,
            f"{value} compares with None, which is never true",
            'Write pyarrow.compute.field("price").is_null(), or ~ before it.',
        )
    parts = parts_of(value)
    for key, name in () if parts is None else parts.entries:
        if key == "call":
            _check_function(name, value, parameter)
    return value


def _check_function(name: str, expression: pc.Expression, parameter: str) -> None:
    try:
        kind = pc.get_function(name).kind
    except KeyError as error:
        raise InvalidArgumentError(
            parameter,
            f"Arrow has no function {name!r}, which {expression} calls",
            "Choose one of pyarrow.compute.list_functions().",
        ) from error
    if kind not in _OF_RECORDS:
        raise InvalidArgumentError(
            parameter,
            f"{name!r} in {expression} needs more than one record",
            "Aggregate a key or a window, or compute it in map_batches.",
        )


def check_reads(expression: pc.Expression, names: Sequence[str]) -> None:
    """Refuse an expression that reads a field which is not among ``names``.

    Raises:
        RecordTypeError: If it does.
    """
    parts = parts_of(expression)
    read = None if parts is None else parts.fields()
    if read is not None and read <= set(names):
        return
    schema = pa.schema([(name, pa.null()) for name in names])
    try:
        _projected(schema.empty_table(), [expression])
    except pa.ArrowException as error:
        # Functions may want to know types, and inner fields a struct.
        if _is_missing(str(error), names):
            raise _no_fit(str(expression), error, names) from error


def _is_missing(error: str, names: Sequence[str]) -> bool:
    """Say whether Arrow misses a field, or one of whose fields one is read."""
    if not error.startswith(_NO_INNER):
        return error.startswith(_NO_MATCH)
    path = error.removeprefix(_NO_INNER)
    return not any(path.startswith(f"{name}) FieldRef") for name in names)


class _Reads(NamedTuple):
    """The fields that expressions read, with their types.

    Attributes:
        types: The fields, and in which types.
        kernels: What evaluates each expression; None for a plan.
    """

    types: dict[str, pa.DataType]
    kernels: list[Kernel | None]


class Evaluator:
    """Evaluates expressions over runs of one stream.

    The first values of a field decide its type where records are rows, as in
    `BatchMaker`: later ones must fit it.

    Args:
        expressions: What to evaluate.

    Attributes:
        expressions: The same.

    Example:
        >>> from aiomailbox.records import ListRun
        >>> evaluator = Evaluator([pc.field("price") * pc.field("count")])
        >>> run = ListRun([{"price": 1.5, "count": 2}, {"price": None, "count": 1}])
        >>> evaluator.evaluate(run)[0].to_pylist()
        [3.0, None]
    """

    def __init__(self, expressions: Sequence[pc.Expression]) -> None:
        self.expressions: list[pc.Expression] = list(expressions)
        # All names of fields are in it, and maybe others: a literal says them, too.
        self._text = "\n".join(map(str, self.expressions))
        # What messages call it.
        self.__qualname__ = self._text.replace("\n", ", ")
        self._schema: pa.Schema | None = None
        self._reads = _Reads({}, [])
        self._types: dict[str, pa.DataType] = {}
        # What was found for the last columns.
        self._maker: RowMaker | None = None
        self._columns: pa.Schema | None = None
        self._of_columns: _Reads | None = None

    def evaluate(self, run: Run) -> list[pa.Array]:
        """Return a column per expression, each of shape ``(n,)``.

        The rows of the run are of one kind, see `record_groups`.

        Raises:
            RecordTypeError: If the expression does not fit the fields, or the values of
                a field do not fit its type.
            ArrowException: If a value cannot be computed: it overflows, is divided by
                zero, cannot be cast.
        """
        if isinstance(run, ArrowRun) and (reads := self._of_batch(run)) is not None:
            columns = {
                name: _cast(run.column(name), kind)
                for name, kind in reads.types.items()
            }
        else:
            reads, columns = self._of_rows(run.values)
        return self._evaluated(reads, columns, len(run))

    def _of_batch(self, run: ArrowRun) -> _Reads | None:
        """Return which columns are read, None if rows have to be made of some."""
        schema, maker = run.schema, run.row_maker
        if maker is not self._maker or not schema.equals(self._columns):
            self._of_columns = self._read_columns(schema, maker)
            self._maker, self._columns = maker, schema
        return self._of_columns

    def _read_columns(self, schema: pa.Schema, maker: RowMaker) -> _Reads | None:
        """Return which columns are read, and in which types; None if rows have to be."""
        record_type = getattr(maker.form, "record_type", None)
        hints = RecordShape(record_type or tuple, (), list).hints()
        fields, without = [], set()
        for field in schema:
            if field.name not in self._text:
                continue
            kind = canonical_type(field.type)
            if kind is None or maker.is_special(field.name):
                without.add(field.name)
            else:
                kind = _as_declared(kind, hints.get(field.name))
                fields.append(pa.field(field.name, kind))
        if without and self._may_read(without):
            return None
        return self._reads_of(pa.schema(fields), schema.names)

    def _may_read(self, names: set[str]) -> bool:
        """Say whether fields are read whose names are in the text of expressions."""
        for expression in self.expressions:
            parts = parts_of(expression)
            read = None if parts is None else parts.fields()
            if read is None or read & names:
                return True
        return False

    def _of_rows(self, values: list[Any]) -> tuple[_Reads, dict[str, pa.Array]]:
        shape = record_shape(values[0])
        names = [name for name in shape.names if name in self._text]
        hints = shape.hints()
        fields: list[pa.Field] = []
        failed: list[RecordTypeError] = []
        arrays: dict[str, pa.Array] = {}
        for name, column in shape.picked(names, values).items():
            try:
                plain = canonical_values(column)
                arrays[name] = self._array(name, plain, hints.get(name))
            except RecordTypeError as error:
                failed.append(error)
                continue
            fields.append(pa.field(name, arrays[name].type))
        try:
            reads = self._reads_of(pa.schema(fields), shape.names)
        except RecordTypeError:
            if failed:
                # Maybe it is just that field which has no column.
                raise failed[0] from None
            raise
        for name in reads.types:
            if not lacks_type(arrays[name].type):
                self._types.setdefault(name, arrays[name].type)
        return reads, {
            name: _cast(arrays[name], kind) for name, kind in reads.types.items()
        }

    def _array(self, name: str, values: list[Any], hint: Any) -> pa.Array:
        kind = self._types.get(name)
        if kind is None or pa.types.is_decimal(kind):
            try:
                own = pa.infer_type(values)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                raise RecordTypeError(
                    f"field {name!r}",
                    f"its values do not form a column: {error}",
                    "An expression reads fields whose values are of one type.",
                ) from error
            plain = canonical_type(own)
            kind = _as_declared(own if plain is None else plain, hint)
        return encoded_column(values, pa.field(name, kind), _TYPE_ADVICE)

    def _reads_of(self, schema: pa.Schema, names: Sequence[str]) -> _Reads:
        """Return the fields that are read, and in which types.

        Raises:
            RecordTypeError: If the expressions do not fit the schema.
        """
        if self._schema is None or not self._schema.equals(schema):
            self._reads = self._called(schema) or self._planned(schema, names)
            self._schema = schema
        return self._reads

    def _called(self, schema: pa.Schema) -> _Reads | None:
        """Return what is read if kernels do it all; binds nothing, which takes long."""
        types: dict[str, pa.DataType] = {}
        kernels: list[Kernel | None] = []
        for expression in self.expressions:
            parts = parts_of(expression)
            fields = None if parts is None else parts.fields()
            if parts is None or fields is None:
                return None
            for name in fields:
                place = schema.get_field_index(name)
                # None, or two: a plan says what is wrong.
                if place < 0:
                    return None
                types[name] = schema.field(place).type
            kernels.append(parts.kernel(types))
        return None if None in kernels else _Reads(types, kernels)

    def _planned(self, schema: pa.Schema, names: Sequence[str]) -> _Reads:
        """Return the same by trying; see `_reads_of`."""
        bound = self._bound(schema, names)
        types = {
            field.name: field.type
            for field in bound
            if not self._binds(bound, field.name)
        }
        return _Reads(types, [kernel_of(each, types) for each in self.expressions])

    def _bound(self, schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
        """Return a schema to which the expressions can be bound.

        Fields in which all values are None have no type yet. They get one that fits.

        Raises:
            RecordTypeError: If there is none.
        """
        try:
            self._bind(schema)
        except pa.ArrowException as error:
            unknown = [field.name for field in schema if pa.types.is_null(field.type)]
            tried = product(_GUESSES, repeat=len(unknown)) if unknown else ()
            for kinds in islice(tried, _GUESSES_MAX):
                guess = schema
                for name, kind in zip(unknown, kinds, strict=True):
                    place = schema.get_field_index(name)
                    guess = guess.set(place, pa.field(name, kind))
                if self._fits(guess):
                    return guess
            raise _no_fit(self.__qualname__, error, names) from error
        return schema

    def _binds(self, schema: pa.Schema, without: str) -> bool:
        return self._fits(schema.remove(schema.get_field_index(without)))

    def _fits(self, schema: pa.Schema) -> bool:
        try:
            self._bind(schema)
        except pa.ArrowException:
            return False
        return True

    def _bind(self, schema: pa.Schema) -> None:
        schema = schema.append(pa.field(_NO_FIELD, pa.null()))
        _projected(schema.empty_table(), self.expressions)

    def _evaluated(
        self, reads: _Reads, columns: dict[str, pa.Array], count: int
    ) -> list[pa.Array]:
        if None not in reads.kernels:
            return [kernel(columns) for kernel in reads.kernels if kernel is not None]
        columns = columns or {_NO_FIELD: pa.nulls(count)}
        result = _projected(pa.table(columns), self.expressions)
        return [_whole(column) for column in result.columns]


def boolean(column: pa.Array, expression: pc.Expression, parameter: str) -> pa.Array:
    """Return a column of Boolean values, as which one of nothing but null counts.

    Raises:
        RecordTypeError: If it is another one.
    """
    if pa.types.is_boolean(column.type):
        return column
    if pa.types.is_null(column.type):
        return column.cast(pa.bool_())
    raise RecordTypeError(
        parameter,
        f"{expression} gives {column.type}, not bool",
        'Write a comparison, e.g. pyarrow.compute.field("price") > 2.',
    )


def record_groups(
    values: list[Any], kind: Callable[[Any], Any] | None = None
) -> Iterator[tuple[int, int]]:
    """Return where records of one kind begin and end: of one class, with the same keys.

    Args:
        values: The records.
        kind: Returns what those of one kind have in common; None for `record_kind`.

    Example:
        >>> list(record_groups([{"a": 1}, {"a": 2}, {"b": 3}]))
        [(0, 2), (2, 3)]
    """
    end = 0
    for _, group in groupby(values, kind or record_kind):
        start, end = end, end + len(list(group))
        yield start, end


def record_kind(value: Any) -> Any:
    """Return what records of one kind have in common: their class, or the keys."""
    return tuple(value) if isinstance(value, dict) else type(value)


def _as_declared(kind: pa.DataType, hint: Any) -> pa.DataType:
    """Return the type of a field that a class declares."""
    if pa.types.is_null(kind):
        return hinted_type(hint, kind)
    if pa.types.is_integer(kind) and pa.types.is_floating(hinted_type(hint, kind)):
        # `price: float` may well be given 2.
        return pa.float64()
    return kind


def _no_fit(expression: str, error: Exception, names: Sequence[str]) -> RecordTypeError:
    return RecordTypeError(
        "expression",
        f"{expression} does not fit the records: {_reason(error)}",
        f"The fields are: {', '.join(names)}.",
    )


def _reason(error: Exception) -> str:
    # After it comes the schema.
    first = str(error).splitlines()[0]
    if first.startswith(_NO_MATCH):
        name = first.removeprefix(_NO_MATCH).partition(") in ")[0]
        return f"there is no field {name!r}"
    if first.startswith(_NO_INNER):
        path = first.removeprefix(_NO_INNER).partition(")) in ")[0]
        return f"there is no field {path.replace(') FieldRef.Name(', '.')!r}"
    return first.partition(" in ")[0] if first.startswith("No match") else first


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type.equals(kind):
        return column
    return cast_plain(column, kind)


def _projected(table: pa.Table, expressions: Sequence[pc.Expression]) -> pa.Table:
    names = [str(index) for index in range(len(expressions))]
    # Imports pandas, which takes a second: only where there is something to project.
    import pyarrow.acero as ac

    plan = ac.Declaration.from_sequence(
        [
            ac.Declaration("table_source", ac.TableSourceNodeOptions(table)),
            ac.Declaration("project", ac.ProjectNodeOptions(expressions, names)),
        ]
    )
    return plan.to_table(use_threads=False)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    try:
        # One chunk need not be copied.
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    except KeyError as error:
        # Some intervals.
        problem = f"pyarrow has no arrays of {column.type}; cast it"
        raise pa.ArrowNotImplementedError(problem) from error
