"""A file for the one record that is too large to be put together in memory.

Theory of operation: the file has no name from the beginning, so that it is gone when it
is closed or when the process dies, however it dies. A complete record is mapped into
memory, so that the pages that were read can be dropped again.
"""

from __future__ import annotations

import mmap
import os
from types import TracebackType

__all__ = ["SpillFile"]


class SpillFile:
    """Bytes that are appended, then read once.

    Args:
        directory: Where; None for the system's place for temporary files.

    Example:
        >>> with SpillFile() as file:
        ...     file.append(b"large ")
        ...     file.append(b"record")
        ...     bytes(file.content())
        b'large record'
    """

    __slots__ = ("_file", "_map", "size_bytes")

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        # Late: its import takes long, and few jobs spill.
        import tempfile

        self._file = tempfile.TemporaryFile(  # noqa: SIM115 -- closed by close()
            dir=directory, prefix="aiomailbox-", suffix=".inputchannel"
        )
        self._map: mmap.mmap | None = None
        self.size_bytes: int = 0

    def __enter__(self) -> SpillFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Write bytes at the end."""
        self._file.write(data)
        self.size_bytes += len(data)

    def content(self) -> memoryview:
        """Return all bytes, read-only; valid as long as a view of them exists."""
        self._file.flush()
        if self._map is None:
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return memoryview(self._map)

    def close(self) -> None:
        """Delete the file; views of its content stay valid. Idempotent."""
        # Closing the map would fail while views exist; the last of them ends it.
        self._map = None
        self._file.close()
