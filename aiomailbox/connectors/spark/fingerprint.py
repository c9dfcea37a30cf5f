"""What shows that a DataFrame is still the one that a position is of.

Theory of operation: a position in a DataFrame means something only if the DataFrame gives
the same rows in the same partitions again. Its plan and schema are compared before it is
read; while the rows before the position are passed over, their checks are added up and
compared with those of the rows that were emitted. The sum does not depend on the order
within what was emitted, which changes nothing for a job that resumes behind it.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from aiomailbox.connectors.spark.jobs import is_connect
from aiomailbox.connectors.spark.types import is_user_type, parts_of_type

# The name of the column of checks.
CHECK: Final = "__aiomailbox_check"

_UNHASHED: Final = frozenset({
    "CalendarIntervalType", "GeographyType", "GeometryType", "MapType", "NullType",
    "VariantType",
})  # fmt: skip
# What differs between two plans of one program: numbers of expressions, plans and RDDs.
_COUNTED: Final = re.compile(r"#\d+L?|plan_id=\d+|\[\d+\]|@[0-9a-f]+|\bid=\d+")
_WRAP: Final = 2**64


def plan_digest(df: Any) -> str:
    """Return what the plan and schema of a DataFrame come down to, 16 digits.

    Equal for the same calls in another process.
    """
    text = _COUNTED.sub("", f"{_plan_text(df)}\n{df.schema.json()}")
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def row_check(schema: Any, columns: list[Any]) -> Any:
    """Return a column with a number that follows from the row's values.

    Values of maps, variants and types without a hash do not count.

    Args:
        schema: The DataFrame's schema.
        columns: Its columns, shape ``(len(schema),)``.
    """
    from pyspark.sql import functions as sf

    counted = [
        column
        for column, field in zip(columns, schema.fields, strict=True)
        if _is_hashed(field.dataType)
    ]
    return sf.xxhash64(*counted) if counted else sf.lit(1).cast("long")


def wrapped(check: int) -> int:
    """Return a sum of checks as the signed 64-bit number that it is, modulo 2**64."""
    return (check + _WRAP // 2) % _WRAP - _WRAP // 2


def _plan_text(df: Any) -> str:
    if is_connect(df):
        return str(df._explain_string(extended=True)).partition("== Optimized")[0]
    return str(df._jdf.queryExecution().analyzed().toString())


def _is_hashed(kind: Any) -> bool:
    return not any(
        type(part).__name__ in _UNHASHED or is_user_type(part)
        for part in parts_of_type(kind)
    )
