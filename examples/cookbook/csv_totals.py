"""Totals of a CSV file.

The columns of a CSV file are text; the record class gives them their types. A full
partition emits one result per key, when the file has ended.
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
        .key_by("shop")
        .full_window_partition()
        .aggregate(
            am.aggregates(
                sales=am.count(),
                total=am.sum_(lambda sale: sale.price * sale.pieces),
            )
        )
    )
    for row in sorted(await totals.collect()):
        print(row.key, row.sales, row.total)


if __name__ == "__main__":
    sales = Path(tempfile.mkdtemp(), "sales.csv")
    sales.write_text("shop,price,pieces\nnorth,2.5,2\nsouth,1.0,4\nnorth,3.0,1\n")
    asyncio.run(main(sales))
