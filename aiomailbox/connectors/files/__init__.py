"""Files as a source."""

from __future__ import annotations

from aiomailbox.connectors.files.enumerator import (
    FileEnumerator,
    FileSplit,
    FilesSeen,
)
from aiomailbox.connectors.files.reader import FileReader
from aiomailbox.connectors.files.source import FileSource

__all__ = ["FileEnumerator", "FileReader", "FileSource", "FileSplit", "FilesSeen"]
