"""Totals of a CSV file.

Columns of CSV are text until a record type says what they are. In a bounded stream the
last update of a key is its total; a window over everything emits just that one.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import NamedTuple

import aiomailbox as am


class Sale(NamedTuple):
    shop: str
    price: float
    pieces: int


async def main(file: Path) -> None:
    env = am.StreamExecutionEnvironment()
    totals = (
        env.from_source(am.FileSource(file, records=Sale))
        .assign_timestamps_and_watermarks(at_one_time())
        .key_by("shop")
        .window(am.TumblingEventTimeWindows.of(am.days(1)))
        .aggregate(
            am.aggregates(
                sales=am.count(),
                total=am.sum_(lambda sale: sale.price * sale.pieces),
            )
        )
    )
    for row in sorted(await totals.collect()):
        print(row.key, row.sales, row.total)


def at_one_time() -> am.WatermarkStrategy:
    """Return event times for a file that is one day's."""
    strategy = am.WatermarkStrategy.for_monotonous_timestamps()
    return strategy.with_timestamp_assigner(lambda sale: 0)


if __name__ == "__main__":
    sales = Path(tempfile.mkdtemp(), "sales.csv")
    sales.write_text("shop,price,pieces\nnorth,2.5,2\nsouth,1.0,4\nnorth,3.0,1\n")
    asyncio.run(main(sales))
