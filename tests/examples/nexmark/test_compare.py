"""Spark SQL is the judge: over the same events it gives the same rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from examples.nexmark.catalogue import QUERIES
from examples.nexmark.compare import compare, compare_query, table, tables
from examples.nexmark.generator import GeneratorConfig

# Two minutes around midnight: two days, many sessions, closed and open auctions.
CONFIG = GeneratorConfig(seed=5, rate=30)
EVENTS = 4_000


@pytest.mark.spark
async def test_every_comparable_query_equals_spark_sql(spark: Any) -> None:
    comparisons = await compare(spark, CONFIG, EVENTS)
    printed = table(comparisons)
    assert [each.query.name for each in comparisons] == list(QUERIES)
    assert not any(each.is_wrong for each in comparisons), printed
    compared = [each for each in comparisons if each.spark_rows is not None]
    assert all(each.rows == each.spark_rows > 1 for each in compared), printed
    cells = [
        [cell.strip() for cell in line.split("|")] for line in printed.splitlines()
    ]
    assert [row[5] for row in cells].count("yes") == 22
    assert [row[4] for row in cells].count("–") == 1
    assert all(row[3] == row[4] for row in cells if row[5] == "yes")
    assert "not comparable: its windows are of processing time" in printed


@pytest.mark.spark
async def test_a_difference_is_noticed(spark: Any) -> None:
    """Without this the comparison could be one that finds nothing."""
    ours = QUERIES["q2"]
    other = replace(ours, sql="select auction, price + 1 from bid where auction < 1050")
    with tables(spark, CONFIG, EVENTS):
        comparison = await compare_query(spark, other, CONFIG, EVENTS)
    assert comparison.is_wrong
    assert comparison.extra == comparison.rows > 0
    assert comparison.missing == comparison.spark_rows > 0
    assert "NO" in table([comparison])
