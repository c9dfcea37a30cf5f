"""Disks that refuse, and programs that die before a file operation."""

from __future__ import annotations

from pathlib import Path

from aiomailbox.storage.local import Disk, ExchangeNotSupportedError


class Died(BaseException):
    """The program is no more: nothing that it does has an effect."""


class ScriptedDisk(Disk):
    """Writes down its operations; exchanges or not; dies before the n-th.

    Args:
        dies_at: From 1; None never.
        exchanges: Whether it can.
        fails: Operations that the disk refuses, by name and number of the call.
    """

    def __init__(
        self,
        dies_at: int | None = None,
        *,
        exchanges: bool = True,
        fails: dict[str, int] | None = None,
    ) -> None:
        self.calls: list[tuple[str, ...]] = []
        self._dies_at = dies_at
        self._exchanges = exchanges
        self._fails = fails or {}

    def _enter(self, name: str, *paths: Path) -> None:
        if self._dies_at is not None and len(self.calls) + 1 >= self._dies_at:
            raise Died
        self.calls.append((name, *(path.name for path in paths)))
        number = sum(call[0] == name for call in self.calls)
        if self._fails.get(name) == number:
            raise OSError(5, "the disk refuses")

    def make_directory(self, path: Path) -> None:
        self._enter("make", path)
        super().make_directory(path)

    def create(self, path: Path) -> None:
        self._enter("create", path)
        super().create(path)

    def write(self, path: Path, data: bytes) -> None:
        self._enter("write", path)
        super().write(path, data)

    def move(self, source: Path, target: Path) -> None:
        self._enter("move", source, target)
        super().move(source, target)

    def exchange(self, one: Path, other: Path) -> None:
        self._enter("exchange", one, other)
        if not self._exchanges:
            raise ExchangeNotSupportedError("as told")
        super().exchange(one, other)

    def sync(self, path: Path) -> None:
        self._enter("sync", path)
        super().sync(path)

    def remove_file(self, path: Path) -> None:
        self._enter("remove file", path)
        super().remove_file(path)

    def remove_directory(self, path: Path) -> None:
        self._enter("remove directory", path)
        super().remove_directory(path)
