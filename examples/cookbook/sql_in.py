"""Rows of a database as a source.

The query gets the id of the last row that the job has processed, and continues behind
it after a failure. Run a blocking client in a thread; use an asynchronous one (asyncpg)
as it is.
"""

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import aiomailbox as am

PAGE = 2


class Order(NamedTuple):
    id: int
    user: str
    price: float


def page_after(database: Path, last: int) -> list[Order]:
    """Return the next orders, in the order of their ids."""
    with closing(sqlite3.connect(database)) as connection, connection:
        query = "select id, user, price from orders where id > ? order by id limit ?"
        return [Order(*row) for row in connection.execute(query, (last, PAGE))]


async def main() -> None:
    database = Path(tempfile.mkdtemp(), "shop.db")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("create table orders (id integer primary key, user, price)")
        rows = [(1, "ann", 3.0), (2, "bob", 1.5), (3, "ann", 2.0)]
        connection.executemany("insert into orders values (?, ?, ?)", rows)

    async def orders(offset: int | None) -> AsyncIterator[Order]:
        last = offset or 0
        while page := await asyncio.to_thread(page_after, database, last):
            for order in page:
                yield order
            last = page[-1].id

    env = am.StreamExecutionEnvironment()
    spent = (
        env.from_async_iterable(orders, offset="id", name="orders")
        .key_by("user")
        .aggregate(am.sum_("price"), include_key=True)
    )
    print(await spent.collect())


if __name__ == "__main__":
    asyncio.run(main())
