"""Which modules a worker can import: functions of all others go by value."""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["ModulesByValue", "import_path", "is_importable"]


class ModulesByValue:
    """Tells cloudpickle, while in use, which modules no other process could import.

    Tests that pytest imported by their files, code blocks, modules made at run time:
    their functions and classes are sent with their code.

    Args:
        cloudpickle: The module.
    """

    def __init__(self, cloudpickle: Any) -> None:
        self._cloudpickle = cloudpickle
        self._seen: set[str] = set()
        self._registered: list[ModuleType] = []

    def __enter__(self) -> ModulesByValue:
        return self

    def __exit__(self, *_: object) -> None:
        for module in self._registered:
            self._cloudpickle.unregister_pickle_by_value(module)

    def look_at(self, value: Any) -> None:
        """Look at the module of a function or class that is about to be pickled."""
        if not isinstance(value, type | FunctionType):
            return
        name = value.__module__
        if not isinstance(name, str) or name in self._seen:
            return
        self._seen.add(name)
        module = sys.modules.get(name)
        if module is None or name == "__main__" or is_importable(module):
            return
        if name not in self._cloudpickle.list_registry_pickle_by_value():
            self._cloudpickle.register_pickle_by_value(module)
            self._registered.append(module)


def is_importable(module: ModuleType) -> bool:
    """Say whether a new process with our ``sys.path`` finds this very module.

    Example:
        >>> import json.decoder
        >>> is_importable(json.decoder)
        True
    """
    file = getattr(module, "__file__", None)
    if file is None:
        # Built in, frozen or a namespace: if not, nothing could be done about it.
        return getattr(module, "__spec__", None) is not None
    path = Path(file)
    names = {module.__name__.replace(".", "/") + end for end in ("", "/__init__")}
    for entry in import_path():
        try:
            relative = path.relative_to(entry)
        except ValueError:
            continue
        # "x.cpython-311-linux.so" is found as x, like "x.py".
        if str(relative.parent / relative.name.partition(".")[0]) in names:
            return True
    return _is_found_by_a_finder(module, file)


def import_path() -> list[str]:
    """Return ``sys.path`` as it means the same from anywhere."""
    return [str(Path(entry).absolute()) for entry in sys.path]


def _is_found_by_a_finder(module: ModuleType, file: str) -> bool:
    """Say whether an installed finder knows it, as for editable installs."""
    for finder in sys.meta_path:
        # Those of pytest and the like are not there in a worker.
        if not getattr(finder, "__module__", "").startswith("__editable__"):
            continue
        spec: importlib.machinery.ModuleSpec | None = finder.find_spec(
            module.__name__, None
        )
        if spec is not None and spec.origin == file:
            return True
    return False
