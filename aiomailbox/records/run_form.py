"""What a form of runs has to bring along to travel as bytes."""

from __future__ import annotations

from typing import Protocol, TypeVar

from aiomailbox.records.byte_reader import ByteReader
from aiomailbox.records.run import Run

__all__ = ["RunForm"]

R = TypeVar("R", bound=Run)


class RunForm(Protocol[R]):
    """Writes and reads the runs of one class.

    Attributes:
        tag: The byte that announces it, 64 to 127; 64 is the list of rows.
        kind: The class of its runs.
    """

    @property
    def tag(self) -> int:
        """The byte that announces it."""
        ...

    @property
    def kind(self) -> type[R]:
        """The class of its runs."""
        ...

    def write(self, run: R, output: bytearray) -> None:
        """Append a run, without its tag."""
        ...

    def read(self, source: ByteReader) -> R:
        """Read a run whose tag was read already.

        Raises:
            CorruptStreamError: If the bytes are none.
        """
        ...
