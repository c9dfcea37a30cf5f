"""What a barrier stage reads: partitions that Spark makes alike each time."""

from __future__ import annotations

from functools import reduce
from typing import Any

from aiomailbox.connectors.spark.barrier.source import INPUT, Wrapping
from aiomailbox.connectors.spark.fingerprint import CHECK, row_check
from aiomailbox.errors import InvalidArgumentError

__all__ = ["exchange_frame"]


def exchange_frame(
    frames: list[Any], orders: list[list[Any]], width: int
) -> tuple[Any, Wrapping]:
    """Return the rows of DataFrames in so many partitions, and how they come.

    Which partition a row is in, and where in it, follows from the rows alone: a hash of
    its values says where it goes and comes behind the order that is wished for. Rows of
    several DataFrames are sorted together, so that none waits for the end of another.

    Args:
        frames: The DataFrames.
        orders: For each the columns that it is sorted by; none for any order.
        width: How many partitions, at least 1.

    Raises:
        InvalidArgumentError: If orders of several DataFrames cannot be compared.
    """
    from pyspark.sql import functions as sf

    if len(frames) == 1:
        [df], [order] = frames, orders
        checked = df.withColumn(CHECK, _check_of(df))
        moved = checked.repartition(width, sf.col(CHECK))
        return moved.sortWithinPartitions(*order, CHECK), Wrapping(
            None, len(df.columns), CHECK
        )
    names = [f"__aiomailbox_rows_{number}" for number in range(len(frames))]
    keys = _keys(frames, orders)
    wrapped = [
        df.select(
            sf.lit(number).alias(INPUT),
            _check_of(df).alias(CHECK),
            *(column.alias(key) for key, column in zip(keys, order, strict=False)),
            sf.struct("*").alias(names[number]),
        )
        for number, (df, order) in enumerate(
            zip(frames, map(_columns, orders), strict=True)
        )
    ]
    united = reduce(
        lambda one, other: one.unionByName(other, allowMissingColumns=True), wrapped
    )
    moved = united.repartition(width, CHECK)
    return moved.sortWithinPartitions(*keys, INPUT, CHECK), Wrapping(names, 0, CHECK)


def _check_of(df: Any) -> Any:
    from pyspark.sql import functions as sf

    columns = [sf.col("`" + name.replace("`", "``") + "`") for name in df.columns]
    return row_check(df.schema, columns)


def _columns(order: list[Any]) -> list[Any]:
    from pyspark.sql import functions as sf

    return [sf.col(each) if isinstance(each, str) else each for each in order]


def _keys(frames: list[Any], orders: list[list[Any]]) -> list[str]:
    """Return the names of the columns that all are sorted by.

    Raises:
        InvalidArgumentError: If their types differ.
    """
    given = [
        [
            field.dataType.simpleString()
            for field in df.select(*_columns(order)).schema.fields
        ]
        for df, order in zip(frames, orders, strict=True)
        if order
    ]
    if any(types != given[0] for types in given):
        raise InvalidArgumentError(
            "order_by",
            "the DataFrames are sorted together, and their columns have the types "
            f"{given}",
            "Sort each by the same number of columns, of the same types.",
        )
    return (
        [f"__aiomailbox_order_{index}" for index in range(len(given[0]))]
        if (given)
        else []
    )
