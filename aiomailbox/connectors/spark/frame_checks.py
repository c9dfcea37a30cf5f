"""The checks of a DataFrame: before anything runs, and when it is read again.

Theory of operation: a position in a DataFrame means something only if the DataFrame gives
the same rows in the same partitions again. Its plan and schema are compared before it is
read; while the rows before the position are passed over, their checks are added up and
compared with those of the rows that were emitted. The sum does not depend on the order
within what was emitted, which changes nothing for a job that resumes behind it.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from aiomailbox.columnar.declared import check_annotations
from aiomailbox.columnar.forms import (
    ClassForm,
    DictForm,
    NamedTupleForm,
    RecordForm,
    StructBuilder,
    check_unique,
    form_fields,
    record_form,
)
from aiomailbox.connectors.spark.jobs import explaining_loss, has_stopped, is_connect
from aiomailbox.connectors.spark.types import (
    column_types,
    is_user_type,
    nested_types,
    parts_of_type,
)
from aiomailbox.errors import (
    InvalidArgumentError,
    UnsupportedColumnError,
    UsageError,
    WrongTypeError,
)
from aiomailbox.operators.core.fields import RecordFields

# The name of the column of checks.
CHECK: Final = "__aiomailbox_check"

_UNHASHED: Final = frozenset({
    "CalendarIntervalType", "GeographyType", "GeometryType", "MapType", "NullType",
    "VariantType",
})  # fmt: skip
# What differs between two plans of one program: numbers of expressions, plans and RDDs.
_COUNTED: Final = re.compile(r"#\d+L?|plan_id=\d+|\[\d+\]|@[0-9a-f]+|\bid=\d+")
_WRAP: Final = 2**64


def checked_schema(df: Any, parameter: str = "df", *, may_stream: bool = False) -> Any:
    """Return the schema of a DataFrame that can be read now, and to an end."""
    is_streaming, schema = _examined(df, parameter)
    if is_streaming and not may_stream:
        raise InvalidArgumentError(
            parameter,
            "it is a streaming DataFrame",
            "Pass a bounded one, or use SparkStreamSource.",
        )
    return schema


def checked_stream(df: Any, parameter: str = "df") -> Any:
    """Return the schema of a streaming DataFrame whose batches come to this process."""
    is_streaming, schema = _examined(df, parameter)
    if not is_streaming:
        raise InvalidArgumentError(
            parameter, "it is a bounded DataFrame", "Use SparkSource."
        )
    if is_connect(df):
        raise UsageError(
            "a streaming DataFrame of Spark Connect cannot be read: foreachBatch runs at "
            "the server, not in this process. Use a classic session, or let Spark write "
            "files and read these: am.FileSource(path, watch=1.0)."
        )
    return schema


def _examined(df: Any, parameter: str) -> tuple[bool, Any]:
    # Its class is asked: a column has every name.
    if not hasattr(type(df), "toLocalIterator") or not hasattr(type(df), "mapInArrow"):
        raise WrongTypeError(
            parameter,
            f"{type(df).__name__} is not a Spark DataFrame",
            "Pass a pyspark.sql.DataFrame, such as spark.table(name) or "
            "spark.createDataFrame(rows); env.from_arrow(...) and "
            "env.from_collection(...) take rows without Spark.",
        )
    if has_stopped(df.sparkSession):
        raise InvalidArgumentError(
            parameter,
            "the Spark session that it belongs to was stopped",
            "Make the DataFrame again in a session that runs.",
        )
    with explaining_loss(df.sparkSession, "a DataFrame was examined"):
        return bool(df.isStreaming), df.schema


# Records as Spark's own Row.


class RowForm:
    """Records as `pyspark.sql.Row`.

    Attributes:
        record_type: That class.
    """

    @property
    def record_type(self) -> type:
        """The class of the records."""
        from pyspark.sql import Row

        found: type = Row
        return found

    def builder(self, names: tuple[str, ...], where: str = "") -> StructBuilder:
        """Return the function that makes Rows with these fields."""
        from pyspark.sql import Row

        check_unique(names, where)
        make = Row(*names)

        def build(columns: Sequence[Sequence[Any]], count: int) -> list[Any]:
            if not columns:
                return [Row() for _ in range(count)]
            return list(map(make, *columns))

        return build

    def nested(self, name: str) -> RecordForm:
        """Return this form."""
        return self


def form_of(records: Any) -> RecordForm | None:
    """Return the form that ``records=`` names; None if batches are the records."""
    from pyspark.sql import Row

    if isinstance(records, str) and records == "batch":
        return None
    if records is Row or records == "row":
        return RowForm()
    return record_form(records)


def check_names(schema: Any, form: RecordForm | None) -> None:
    """Let the form refuse names now, and keys that no dict can have."""
    if form is None:
        form = RowForm()
    else:
        for field in schema.fields:
            _check_keys(field.dataType, form.nested(field.name), (field.name,))
    form.builder(tuple(field.name for field in schema.fields))
    if isinstance(form, ClassForm):
        check_annotations(form.record_type, column_types(schema))
    if not isinstance(form, NamedTupleForm | RowForm):
        return
    for where, kind in nested_types(schema):
        if type(kind).__name__ == "StructType":
            form.builder(tuple(field.name for field in kind.fields), ".".join(where))


def _check_keys(kind: Any, form: RecordForm, where: tuple[str, ...]) -> None:
    """Refuse maps whose keys become what Python cannot look up."""
    name = type(kind).__name__
    if name == "ArrayType":
        _check_keys(kind.elementType, form, (*where, "element"))
    elif name == "MapType":
        what = _unhashable(kind.keyType, form)
        if what is not None:
            raise UnsupportedColumnError(
                f"column {'.'.join(where)!r} of type {kind.simpleString()} cannot become "
                f"a dict: its keys have {what}, which no dict takes as a key. In Spark, "
                "select map_entries() of it, which is an array of keys and values, or "
                'make texts of its keys with transform_keys(); or read records="batch".'
            )
        _check_keys(kind.valueType, form, (*where, "value"))
    elif name == "StructType":
        for field in kind.fields:
            inner = form.nested(field.name)
            _check_keys(field.dataType, inner, (*where, field.name))


def _unhashable(kind: Any, form: RecordForm) -> str | None:
    """Return what of a key cannot be hashed once it is a Python value; None if nothing."""
    name = type(kind).__name__
    if name == "ArrayType":
        return "a list (of an ARRAY)"
    if name != "StructType":
        return None
    if isinstance(form, DictForm):
        return "a dict (of a STRUCT)"
    if isinstance(form, ClassForm) and not _hashes(form.record_type):
        return f"a {form.record_type.__qualname__} (of a STRUCT), which has no hash"
    found = (
        _unhashable(field.dataType, form.nested(field.name)) for field in kind.fields
    )
    return next((each for each in found if each is not None), None)


def _hashes(record_type: type) -> bool:
    if issubclass(record_type, msgspec.Struct):
        # Its class has a __hash__ in any case, which may raise.
        config = record_type.__struct_config__
        return config.frozen or not config.eq
    return record_type.__hash__ is not None


def fields_of(form: RecordForm | None, schema: Any) -> RecordFields | None:
    """Return fields and types of records of a form; None if they are not known."""
    if form is None:
        return None
    return form_fields(form, schema.fieldNames(), column_types(schema))


def check_session(spark: Any, parameter: str = "spark") -> None:
    """Check that a session can be used now."""
    # Its class is asked: a session that has lost its Java process answers nothing.
    kind = type(spark)
    if not hasattr(kind, "createDataFrame") or not hasattr(kind, "readStream"):
        raise WrongTypeError(
            parameter,
            f"{type(spark).__name__} is not a Spark session",
            "Pass a pyspark.sql.SparkSession.",
        )
    if has_stopped(spark):
        raise InvalidArgumentError(
            parameter, "the Spark session was stopped", "Make a new one."
        )


# What shows that a DataFrame is still the one that a position is of.


def plan_digest(df: Any) -> str:
    """Return what the plan and schema of a DataFrame come down to, 16 digits.

    Equal for the same calls in another process.
    """
    text = _COUNTED.sub("", f"{_plan_text(df)}\n{df.schema.json()}")
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def row_check(df: Any) -> Any:
    """Return a column with a number that follows from the values of a DataFrame's row.

    Values of maps, variants and types without a hash do not count.
    """
    from pyspark.sql import functions as sf

    counted = [
        sf.col(quoted(field.name))
        for field in df.schema.fields
        if _is_hashed(field.dataType)
    ]
    return sf.xxhash64(*counted) if counted else sf.lit(1).cast("long")


def quoted(name: str) -> str:
    """Return a column's name as Spark's expressions take it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def wrapped(check: int) -> int:
    """Return a sum of checks as the signed 64-bit number that it is, modulo 2**64."""
    return (check + _WRAP // 2) % _WRAP - _WRAP // 2


def paths_of(df: Any) -> list[str]:
    """Return the local files and directories that a DataFrame reads, those of tables too.

    None where Spark does not tell, as on Spark Connect.
    """
    found: list[str] = []
    # Inner parts of Spark's plans, which another version may not have.
    with contextlib.suppress(Exception):
        leaves = df._jdf.queryExecution().analyzed().collectLeaves()
        for number in range(leaves.size()):
            leaf = leaves.apply(number)
            with contextlib.suppress(Exception):
                is_stream = leaf.getClass().getSimpleName() == "StreamingRelation"
                roots = (
                    leaf.dataSource().options().apply("path")
                    if is_stream
                    else leaf.relation().location().rootPaths().mkString("\n")
                )
                # Spark writes "file:" before what is on this machine.
                found += [
                    str(Path(root.removeprefix("file:")).absolute())
                    for root in roots.splitlines()
                    if root.startswith("file:") or ":" not in root
                ]
    return found


def reads(df: Any, file: Path) -> bool:
    """Say whether a DataFrame reads a file, or would if it were there."""
    return any(file.absolute().is_relative_to(path) for path in paths_of(df))


def _plan_text(df: Any) -> str:
    if is_connect(df):
        return str(df._explain_string(extended=True)).partition("== Optimized")[0]
    return str(df._jdf.queryExecution().analyzed().toString())


def _is_hashed(kind: Any) -> bool:
    return not any(
        type(part).__name__ in _UNHASHED or is_user_type(part)
        for part in parts_of_type(kind)
    )
