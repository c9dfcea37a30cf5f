"""State that was kept as the files of a database: opened when it is asked for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from aiomailbox.errors import CorruptStreamError, MissingExtraError
from aiomailbox.state.rocksdb.database import DatabaseSnapshot, new_directory
from aiomailbox.state.rocksdb.encoding import KeyCodec
from aiomailbox.state.rocksdb.store import Rows
from aiomailbox.state.serializers import ObjectSerializer, serializer_of
from aiomailbox.state.snapshot import Entries, FetchFile, StateMeta

_PIECE: Final = 1024


class FilesKeyGroups(Mapping[int, dict[int, Entries]]):
    """The entries of a database by key group; its files are fetched with the first.

    Args:
        files: By the names that the database has for them.
        max_parallelism: The number of key groups.
        metas: The states, in their order.
        objects: Read the objects of each; None for a state that is not wanted.
    """

    makes_new = True

    __slots__ = ("_files", "_max_parallelism", "_rows", "_snapshot", "_widths")

    def __init__(
        self,
        files: Mapping[str, FetchFile],
        max_parallelism: int,
        metas: Sequence[StateMeta],
        objects: Sequence[ObjectSerializer | None],
    ) -> None:
        self._files = files
        self._max_parallelism = max_parallelism
        self._snapshot: DatabaseSnapshot | None = None
        self._rows = {
            position: Rows(
                position,
                KeyCodec(max_parallelism, own.codec),
                serializer_of(meta.serializer, own),
                namespaced=meta.namespaced,
            )
            for position, (meta, own) in enumerate(zip(metas, objects, strict=True))
            if own is not None
        }
        self._widths = [3 if meta.namespaced else 2 for meta in metas]

    def __getitem__(self, group: int) -> dict[int, Entries]:
        found: dict[int, Entries] = {}
        for position, entries in self.pieces(group):
            if position in found:
                found[position].extend(entries)
            else:
                found[position] = entries
        if not found:
            raise KeyError(group)
        return found

    def pieces(self, group: int) -> Iterator[tuple[int, Entries]]:
        """Yield positions and entries of a key group, a piece at a time."""
        snapshot = self._opened()
        for position, rows in self._rows.items():
            read = (rows.entry(*row) for row in snapshot.items(rows.prefix(group)))
            while piece := list(islice(read, _PIECE)):
                yield position, Entries.of(piece, self._widths[position])

    def __iter__(self) -> Iterator[int]:
        snapshot = self._opened()
        for group in range(self._max_parallelism):
            if any(
                next(snapshot.items(rows.prefix(group)), None) is not None
                for rows in self._rows.values()
            ):
                yield group

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __reduce__(self) -> tuple[Any, ...]:
        # What travels are the contents, to a subtask that reads them anyway.
        return dict, (dict(self),)

    def _opened(self) -> DatabaseSnapshot:
        if self._snapshot is None:
            directory = new_directory(None)
            try:
                (directory / "db").mkdir()
                for name, fetch in self._files.items():
                    fetch(directory / "db" / name)
                self._snapshot = _snapshot_of(directory)
            except BaseException:
                shutil.rmtree(directory, ignore_errors=True)
                raise
        return self._snapshot


def _snapshot_of(directory: Path) -> DatabaseSnapshot:
    try:
        return DatabaseSnapshot(directory)
    except MissingExtraError:
        raise
    except Exception as error:
        # Whatever the library raises.
        raise CorruptStreamError(f"a database cannot be opened: {error}") from error
