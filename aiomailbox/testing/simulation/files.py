"""Files of a simulated world, as fsspec knows them: some cannot be written."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Final, NoReturn

import fsspec
from fsspec.spec import AbstractFileSystem

from aiomailbox.testing.simulation.world import Life, World

_PROTOCOL: Final = "aiomailbox-simulation"


_METADATA: Final = "_metadata"


_LEASE: Final = ".lease"


# By the first part of the path: the life that has the files of a world now.
_MOUNTED: dict[str, Life] = {}


def mount(life: Life) -> str:
    """Give a life of a program its way to the files, and return it as a URL.

    It is the same for all lives in a world; what one has left behind is over by then.
    """
    name = f"world-{id(life.world):x}"
    _MOUNTED[name] = life
    return f"{_PROTOCOL}://{name}"


def unmount(place: str) -> None:
    """Undo `mount`: the URL is no longer used."""
    del _MOUNTED[place.rpartition("/")[2]]


class SimulatedFiles(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """An object store in memory; the first part of a path says of which world."""

    protocol = _PROTOCOL
    cachable = False

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        """Store a file."""
        self._write(rpath, Path(lpath).read_bytes())

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        """Store bytes."""
        self._write(path, value)

    def cat_file(self, path: str, **_: Any) -> bytes:
        """Return what a file holds."""
        world, name = self._look(path)
        self._life(path).note(f"read {name}")
        try:
            return world.files[name]
        except KeyError:
            _raise_missing(path)

    def open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        """Open a file to read it."""
        assert mode == "rb", "files are written as a whole"
        return io.BytesIO(self.cat_file(path))

    def find(self, path: str, **_: Any) -> list[str]:
        """Return the names of all files below one."""
        world, name = self._look(path)
        start = path.removesuffix(name)
        return sorted(
            f"{start}{found}"
            for found in world.files
            if found == name or found.startswith(f"{name}/" if name else "")
        )

    def rm_file(self, path: str) -> None:
        """Delete a file."""
        world, name = self._look(path)
        if name not in world.files:
            _raise_missing(path)
        self._life(path).note(f"delete {name}")
        del world.files[name]

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: there are no directories."""

    def invalidate_cache(self, path: str | None = None) -> None:
        """Do nothing: nothing is cached."""

    def _write(self, path: str, data: bytes) -> None:
        life = self._life(path)
        world, name = self._look(path)
        faults = world.faults
        life.note(f"write {name}")
        is_metadata = name.endswith(f"/{_METADATA}")
        if is_metadata and world.chance(faults.failing_metadata):
            # The caller that gets the error cannot know whether it was written.
            if world.random.random() < 0.5:
                world.files[name] = data
            raise life.fault(f"writing {name} failed")
        if not is_metadata and world.chance(faults.failing_write):
            raise life.fault(f"writing {name} failed")
        world.files[name] = data
        # A lease names the process, with as many digits as its number has.
        size = "" if name.endswith(_LEASE) else f", {len(data)} bytes"
        life.note(f"written {name}{size}")

    def _look(self, path: str) -> tuple[World, str]:
        life = self._life(path)
        life.check()
        return life.world, path.partition("/")[2]

    def _life(self, path: str) -> Life:
        return _MOUNTED[path.partition("/")[0]]


def _raise_missing(path: str) -> NoReturn:
    raise FileNotFoundError(f"there is no {path}")


fsspec.register_implementation(_PROTOCOL, SimulatedFiles, clobber=True)
