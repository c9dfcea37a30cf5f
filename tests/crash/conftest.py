"""A PostgreSQL server for the jobs that crash."""

from __future__ import annotations

from tests.connectors.databases import (
    database,
    mortal,
    mortal_server,
    postgres,
    postgres_server,
    sqlite,
)

__all__ = [
    "database",
    "mortal",
    "mortal_server",
    "postgres",
    "postgres_server",
    "sqlite",
]
