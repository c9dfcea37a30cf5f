"""Where state is kept between two lives of a job: names, bytes, and one owner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol


class Claim(Protocol):
    """The exclusive right to write below a name; see `Storage.claim`."""

    def renew(self, now_ms: int) -> None:
        """Say that the owner still lives.

        Raises:
            StorageClaimedError: If another owner has taken over.
        """

    def release(self) -> None:
        """Release the right. Idempotent."""


class Storage(Protocol):
    """Files by name, below one place; names are relative, with ``/`` between parts.

    All methods block: call them off the event loop. Each may raise `OSError`.
    """

    @property
    def place(self) -> str:
        """Where it is, for messages: a path or a URL."""

    def write(self, name: str, chunks: Iterable[bytes]) -> int:
        """Write a file that is complete and durable, or not there at all.

        Returns:
            The size in bytes.
        """

    def read(self, name: str) -> Iterator[bytes]:
        """Yield a file's contents in chunks of at most 1 MiB.

        Raises:
            FileNotFoundError: If there is no such file; at the first chunk.
        """

    def view(self, name: str) -> memoryview:
        """Return a file's contents as a whole; of a local file, they stay on the disk.

        Raises:
            FileNotFoundError: If there is no such file.
        """

    def fetch(self, name: str, target: Path) -> None:
        """Put a file's contents at a path of this machine, where there is nothing.

        They may be shared with the storage: they must not be changed.

        Raises:
            FileNotFoundError: If there is no such file.
        """

    def sweep(self, below: str = "") -> None:
        """Remove what crashes left half written; there must be no writer."""

    def names(self, below: str = "") -> list[str]:
        """Return the names of all files below a name, sorted; those half written not."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; those that are not there are passed over."""

    def claim(self, below: str, owner: str, now_ms: int) -> Claim:
        """Claim the right to write below a name.

        Raises:
            StorageClaimedError: If another owner holds it.
        """
