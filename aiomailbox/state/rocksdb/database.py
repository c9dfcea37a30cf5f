"""One RocksDB in a directory of its own: opened, read and written, captured, removed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from aiomailbox.errors import MissingExtraError
from aiomailbox.state.rocksdb.encoding import prefix_end
from aiomailbox.state.snapshot import StateFile

_MIB: Final = 1 << 20
_BLOOM_BITS: Final = 10
_BUFFER_BLOOM_RATIO: Final = 0.1
# RocksDB's words for a write that would have had to wait.
_STALLED: Final = "Write stall"
_STALL_POLL_S: Final = 0.001


def _rocksdict() -> Any:
    try:
        import rocksdict
    except ImportError as error:
        raise MissingExtraError("RocksDBStateBackend", "rocksdb") from error
    return rocksdict


def _options(memory_bytes: int) -> Any:
    """Return options under which RocksDB stays within so many bytes, about."""
    rocks = _rocksdict()
    options = rocks.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(max(memory_bytes // 4, _MIB))
    options.set_max_write_buffer_number(2)
    # Most reads of a growing state are of keys that are new: a filter says so sooner
    # than a walk through the buffer.
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(_BUFFER_BLOOM_RATIO)
    # There is one writer.
    options.set_allow_concurrent_memtable_write(False)
    options.set_compression_type(rocks.DBCompressionType.lz4())
    options.set_max_background_jobs(2)
    options.set_max_open_files(1024)
    # A file's filter is cached as one piece, which has to fit into a shard of the cache.
    options.set_target_file_size_base(4 * _MIB)
    options.set_keep_log_file_num(1)
    blocks = rocks.BlockBasedOptions()
    blocks.set_block_cache(rocks.Cache(max(memory_bytes // 2, _MIB)))
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    blocks.set_bloom_filter(_BLOOM_BITS, False)
    options.set_block_based_table_factory(blocks)
    return options


def _items(
    db: Any, prefix: bytes, start: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    """Yield what begins with ``prefix``, from ``start`` on, in order."""
    end = prefix_end(prefix)
    for place, data in db.items(from_key=start or prefix):
        if end and place >= end:
            return
        yield place, data


def new_directory(parent: Path | None) -> Path:
    """Make an empty directory, in the system's place for temporary files by default."""
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="aiomailbox-state-", dir=parent))


# Half a dozen files cost as many syncs.
FILES_BYTES_MIN: Final = 1 << 20
# Of tables and large values: their numbers are never given twice.
_FINAL_SUFFIXES: Final = (".sst", ".blob")


class DatabaseSnapshot:
    """A database as it was at one moment; its directory goes with the object."""

    def __init__(self, directory: Path) -> None:
        rocks = _rocksdict()
        self._directory = directory
        # Before it is opened, which adds files of its own.
        entries = list(os.scandir(directory / "db"))
        self._names = sorted(entry.name for entry in entries)
        self._size = sum(entry.stat().st_size for entry in entries)
        self._db = rocks.Rdict(
            str(directory / "db"),
            rocks.Options(raw_mode=True),
            access_type=rocks.AccessType.read_only(),
        )
        self._finalizer = weakref.finalize(self, _remove, self._db, directory)

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield what begins with ``prefix``, in order."""
        return _items(self._db, prefix, None)

    def files(self) -> tuple[StateFile, ...]:
        """Return the files that it consists of; they are there while it is.

        None if they are small: then to encode its contents takes less time.
        """
        if self._size < FILES_BYTES_MIN:
            return ()
        return tuple(
            StateFile(
                name, self._directory / "db" / name, name.endswith(_FINAL_SUFFIXES)
            )
            for name in self._names
        )


class RocksDatabase:
    """A RocksDB that lives as long as a store; nothing in it outlives the process.

    Args:
        parent: Where to make its directory; None for the system's place.
        memory_bytes: The bytes that its buffers and its cache may take.

    Raises:
        MissingExtraError: If ``rocksdict`` is not installed.
    """

    def __init__(self, parent: Path | None, memory_bytes: int) -> None:
        rocks = self._rocks = _rocksdict()
        self._parent = parent
        self.directory: Path = new_directory(parent)
        self._pending: PendingSnapshot | None = None
        self._db = rocks.Rdict(str(self.directory / "db"), _options(memory_bytes))
        # Snapshots are what survives, so a log would only cost.
        self._patient, self._impatient = rocks.WriteOptions(), rocks.WriteOptions()
        self._patient.disable_wal = self._impatient.disable_wal = True
        self._impatient.no_slowdown = True
        self._db.set_write_options(self._impatient)
        self._finalizer = weakref.finalize(self, _remove, self._db, self.directory)

    def get(self, place: bytes) -> bytes | None:
        """Return what is at a place, or None."""
        return self._db.get(place)

    def get_all(self, places: list[bytes]) -> list[bytes | None]:
        """Return what is at each place, in one call."""
        return self._db.get(places)

    def write(self, fill: Callable[[Any], None]) -> None:
        """Write a batch, once the buffers have room for it.

        RocksDB itself waits for ever where a full disk keeps it from making room.

        Args:
            fill: Puts what is to be written into a batch, with ``put(place, data)`` and
                ``delete(place)``; called again for each attempt.

        Raises:
            OSError: If there will be no room.
        """
        while not self._has_written(fill):
            if not self._outwait_stop():
                # It only slows down, and knows best by how much.
                self._db.set_write_options(self._patient)
                try:
                    self._has_written(fill)
                finally:
                    self._db.set_write_options(self._impatient)
                return

    def _has_written(self, fill: Callable[[Any], None]) -> bool:
        batch = self._rocks.WriteBatch(raw_mode=True)
        fill(batch)
        try:
            self._db.write(batch)
        except Exception as error:
            if _STALLED in str(error):
                return False
            raise
        return True

    def _outwait_stop(self) -> bool:
        """Wait until writes go on, and say whether they had stopped at all."""
        had_stopped = False
        while self.number("is-write-stopped"):
            had_stopped = True
            # A full disk stops writes for ever: that is an error and no wait.
            if self.number("background-errors"):
                free_bytes = shutil.disk_usage(self.directory).free
                raise OSError(
                    errno.ENOSPC,
                    "RocksDB cannot write its buffers to the disk, where "
                    f"{free_bytes:,} bytes are free",
                    str(self.directory),
                )
            # RocksDB does not tell when it goes on, so it is asked.
            threading.Event().wait(_STALL_POLL_S)
        return had_stopped

    def items(
        self, prefix: bytes, start: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield what begins with ``prefix``, from ``start`` on, as it is now."""
        return _items(self._db, prefix, start)

    def clear(self) -> None:
        """Forget everything."""
        # Above all places, which begin with a key group below 2**15.
        self.write(lambda batch: batch.delete_range(b"", b"\xff" * 8))

    def number(self, name: str) -> int:
        """Return one of RocksDB's properties."""
        return int(self._db.property_value(f"rocksdb.{name}") or 0)

    def snapshot(self) -> DatabaseSnapshot:
        """Return what is there now; its files are shared until either side changes."""
        directory = new_directory(self._parent)
        # There is no log, so what is in the buffers is in no file yet.
        self._db.flush()
        self._rocks.Checkpoint(self._db).create_checkpoint(str(directory / "db"))
        return DatabaseSnapshot(directory)

    @property
    def is_taking_snapshot(self) -> bool:
        """Whether a snapshot was begun, so that nothing may be written."""
        return self._pending is not None

    def forget_snapshot(self, pending: PendingSnapshot) -> None:
        """Let things be written again."""
        if self._pending is pending:
            self._pending = None

    def begin_snapshot(
        self, write: Callable[[], None], forget: Callable[[], None]
    ) -> PendingSnapshot:
        """Let a snapshot be made later, in any thread; nothing is written until then.

        Args:
            write: Writes what belongs to the snapshot and is not here yet; maybe repeated.
            forget: Called when that is here, and before anything else is written.
        """
        self.end_snapshot()
        pending = self._pending = PendingSnapshot(self, write, forget)
        return pending

    def end_snapshot(self) -> None:
        """Finish what `begin_snapshot` began; it may take long."""
        if self._pending is not None:
            self._pending.end()

    def close(self) -> None:
        """Close the database and remove its directory; again is a no-op."""
        # A full disk is an error of the read of the snapshot.
        with contextlib.suppress(Exception):
            self.end_snapshot()
        self._finalizer()


class PendingSnapshot:
    """A snapshot that has begun, and is made when it is first read.

    Args:
        database: Of the snapshot; nothing is written there until it is made.
        write: Writes what belongs to it; maybe repeated.
        forget: Called when that is done.

    Attributes:
        reader: The snapshot that will read it; once that is gone, it is not needed.
    """

    def __init__(
        self,
        database: RocksDatabase,
        write: Callable[[], None],
        forget: Callable[[], None],
    ) -> None:
        self.reader: weakref.ref[Any] | None = None
        self._database = database
        self._write = write
        self._forget = forget
        self._lock = threading.Lock()
        self._is_over = False
        self._snapshot: DatabaseSnapshot | None = None

    def made(self) -> DatabaseSnapshot:
        """Return the snapshot; it is made now, if it has not been.

        Raises:
            OSError: If there is no room on the disk; another attempt may be made.
        """
        # Locked: the thread that writes and the loop may both need it now.
        with self._lock:
            if self._snapshot is None:
                self._write()
                self._snapshot = self._database.snapshot()
                self._end()
            return self._snapshot

    def end(self) -> None:
        """Make it, or without a reader do only what must not get lost; or wait."""
        with self._lock:
            if self._is_over:
                return
            self._write()
            if self.reader is not None and self.reader() is not None:
                self._snapshot = self._database.snapshot()
            self._end()

    def _end(self) -> None:
        # In this order: what is written from now on is newer than what is forgotten.
        self._forget()
        self._is_over = True
        self._database.forget_snapshot(self)


def _remove(db: Any, directory: Path) -> None:
    # It writes once more what is about to be removed, which a full disk refuses.
    with contextlib.suppress(Exception):
        db.close()
    shutil.rmtree(directory, ignore_errors=True)
