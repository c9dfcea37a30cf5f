"""Finds what of a function cannot be pickled, and says where it is held."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

from aiomailbox.errors import safe_str

__all__ = ["why_unpicklable"]

_DEPTH_MAX: Final = 8
_PARTS_MAX: Final = 100


def why_unpicklable(value: Any, probe: Callable[[Any], None]) -> str | None:
    """Return what cannot be pickled and the way to it, or None if all can.

    Args:
        value: Where to begin.
        probe: Pickles a value, or raises.

    Example:
        >>> import pickle, threading
        >>> why_unpicklable({"lock": threading.Lock()}, pickle.dumps)
        "its item 'lock' is a lock: cannot pickle '_thread.lock' object"
        >>> why_unpicklable([1, 2], pickle.dumps)
    """
    problem = _problem(value, probe)
    if problem is None:
        return None
    way: list[str] = []
    for _ in range(_DEPTH_MAX):
        for name, part in _seen_parts(value):
            found = _problem(part, probe)
            if found is not None:
                way.append(name)
                value, problem = part, found
                break
        else:
            break
    named = [name for name in way if name]
    where = ", in ".join(reversed(named))
    kind = type(value).__name__
    return f"its {where} is a {kind}: {problem}" if where else f"{kind}: {problem}"


def _problem(value: Any, probe: Callable[[Any], None]) -> str | None:
    try:
        probe(value)
    except Exception as error:  # noqa: BLE001 -- whatever the user's __reduce__ raises
        return safe_str(error) or type(error).__name__
    return None


def _seen_parts(value: Any) -> list[tuple[str, Any]]:
    """Return what a value holds, as far as it shows it."""
    seen: list[tuple[str, Any]] = []
    # An object may fail when it is asked for what it has.
    with contextlib.suppress(Exception):
        seen.extend(islice(_parts(value), _PARTS_MAX))
    return seen


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value holds, with a name for people; "" where it is not theirs."""
    if isinstance(value, functools.partial):
        yield from (("", part) for part in (value.func, *value.args))
        yield from (("", part) for part in value.keywords.values())
    elif isinstance(value, FunctionType):
        variables = inspect.getclosurevars(value)
        named = {**variables.nonlocals, **variables.globals}
        name = value.__qualname__
        for key, part in named.items():
            # Not isinstance(): it asks the object.
            if not issubclass(type(part), ModuleType):
                yield f"variable {key!r} of {name}", part
        yield from ((f"default of {name}", part) for part in value.__defaults__ or ())
    elif isinstance(value, MethodType):
        yield "object", value.__self__
        yield "", value.__func__
    elif isinstance(value, dict):
        yield from ((f"item {key!r}", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (("", part) for part in value)
    elif not isinstance(value, type):
        yield from _fields(value)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    own = type(value).__module__.startswith("aiomailbox.")
    fields = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                fields[name] = getattr(value, name)
    yield from (("" if own else f"attribute {name!r}", fields[name]) for name in fields)
