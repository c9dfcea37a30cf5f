"""A PostgreSQL server for the jobs that crash."""

from __future__ import annotations

from tests.connectors.databases import postgres, postgres_server

__all__ = ["postgres", "postgres_server"]
