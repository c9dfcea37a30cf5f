"""Files as a source."""

from __future__ import annotations

from aiomailbox.connectors.files.source import (
    FileEnumerator,
    FileReader,
    FileSource,
    FileSplit,
    FilesSeen,
)

__all__ = ["FileEnumerator", "FileReader", "FileSource", "FileSplit", "FilesSeen"]
