"""Results into a database, each key one row.

Each checkpoint moves rows into the table in one transaction: exactly once, whatever
crashes. `upsert_by=` replaces the row of a key. PostgreSQL works in the same way:
`am.SqlSink("postgresql://user@host/shop", "spent", upsert_by=["user"])`.
"""

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import aiomailbox as am


class Spent(NamedTuple):
    user: str
    total: float


async def main() -> None:
    database = Path(tempfile.mkdtemp(), "shop.db")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("create table spent (user text primary key, total real)")

    env = am.StreamExecutionEnvironment()
    env.enable_checkpointing(am.seconds(10))
    orders = env.from_collection([("ann", 3.0), ("bob", 1.5), ("ann", 2.0)])
    (
        orders.map(lambda order: Spent(*order))
        .key_by("user")
        .reduce(lambda one, other: Spent(one.user, one.total + other.total))
        .sink_to(am.SqlSink(database, "spent", upsert_by=["user"]))
    )
    await env.execute("spent")

    with closing(sqlite3.connect(database)) as connection, connection:
        print(connection.execute("select * from spent order by user").fetchall())


if __name__ == "__main__":
    asyncio.run(main())
