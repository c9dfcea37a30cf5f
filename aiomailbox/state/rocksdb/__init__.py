"""Keyed state on disk, for state that is larger than memory; needs ``rocksdict``."""

from __future__ import annotations

from aiomailbox.state.rocksdb.store import RocksDBStateStore

__all__ = ["RocksDBStateStore"]
