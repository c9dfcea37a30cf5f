"""Which side outputs operators were given, and which ones their code may emit to.

Theory of operation: what an operator was given says where it sends late records and dead
letters. Where a user's function emits to, only its code knows: it is read, and never run.
A tag that the code names in any way (a global, a closure, an attribute, a text that is the
tag's name) is taken for one that it emits to, so that no error is false.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
    WrapperDescriptorType,
)
from typing import Any, Final

from aiomailbox.graph.transformation import Transformation
from aiomailbox.records.events import OutputTag

_STANDARD: Final = sys.stdlib_module_names
_OURS: Final = frozenset({__name__.partition(".")[0], "builtins", "typing", "abc"})
# What leads nowhere, and is met most.
_ATOMS: Final = (int, float, bytes, str, NoneType)
# What lies behind so many objects is not looked for any more, and taken for emitted.
_OBJECTS_MAX: Final = 10_000
_UNKNOWN: Final = object()


def tags_given(item: Transformation) -> frozenset[OutputTag]:
    """Return the side outputs that an operator was given, as of dead letters."""
    found = _seen(item, own=True)
    return frozenset(one for one in found if type(one) is OutputTag)


def problem_of_side_output(item: Transformation, tag: OutputTag) -> str:
    """Return why a side output of an operator would stay empty; "" if it may not."""
    named = set(_seen(item, own=False))
    if tag in named or tag.id in named or None in named:
        return ""
    tags = in_order(found for found in named if type(found) is OutputTag)
    others = ", ".join(repr(tag.id) for tag in tags)
    return "nothing there emits to it" + (f": it has {others}" if others else "")


def in_order(tags: Iterable[OutputTag]) -> list[OutputTag]:
    """Return side outputs by their names."""
    return sorted(tags, key=lambda tag: tag.id)


def _seen(item: Transformation, *, own: bool) -> Iterator[OutputTag | str | None]:
    """Yield the tags and texts that an operator's definition leads to.

    Yields:
        None if there is more than is looked at.
    """
    found: deque[Any] = deque([item.factory])
    # They are kept, so that no other object gets their identity.
    known: dict[int, Any] = {}
    while found:
        value = found.popleft()
        if type(value) is OutputTag or (type(value) is str and not own):
            yield value
        elif value is _UNKNOWN:
            yield None
        elif isinstance(value, _ATOMS):
            continue
        elif id(value) not in known and not isinstance(value, type | ModuleType):
            known[id(value)] = value
            if len(known) > _OBJECTS_MAX:
                yield None
                return
            found += _parts(value, own=own)


def _parts(value: Any, *, own: bool) -> Iterable[Any]:
    """Return what an object leads to, without running any of its code."""
    match value:
        case partial():
            return (value.func, *value.args, *value.keywords.values())
        case list() | tuple() | set() | frozenset():
            return value
        case dict():
            return value.values()
        case MethodType():
            return (value.__self__, value.__func__)
        case FunctionType() if own:
            return ()
        case FunctionType():
            cells = [_content(cell) for cell in value.__closure__ or ()]
            code = () if _is_ours(value.__module__) else _of_code(value)
            return (*cells, *(value.__defaults__ or ()), *code)
        case BuiltinFunctionType() if not own and _is_foreign(value.__module__):
            # Compiled, so that it cannot be read: it may emit to any.
            return (_UNKNOWN,)
        case BuiltinFunctionType():
            return ()
        case _ if own:
            return _attributes(value) if _is_ours(type(value).__module__) else ()
        case _ if callable(value) and _is_compiled(type(value)):
            return (_UNKNOWN,)
        case _:
            return (*_attributes(value), *_methods(type(value)))


def _attributes(value: Any) -> Iterator[Any]:
    with suppress(AttributeError):
        yield from object.__getattribute__(value, "__dict__").values()
    kind: type = type(value)
    # Only classes of ours are met in every job. One of the user's may have no hash.
    for member in (
        _slots(kind) if _is_ours(kind.__module__) else _slots.__wrapped__(kind)
    ):
        with suppress(AttributeError):  # Nothing may be in the slot.
            yield member.__get__(value)


@lru_cache(maxsize=1024)
def _slots(kind: type) -> tuple[MemberDescriptorType, ...]:
    return tuple(
        member
        for owner in kind.__mro__
        for member in vars(owner).values()
        if isinstance(member, MemberDescriptorType)
    )


def _methods(kind: type) -> Iterator[Any]:
    for owner in kind.__mro__:
        if not _is_ours(owner.__module__):
            for member in vars(owner).values():
                if isinstance(member, FunctionType | OutputTag):
                    yield member


def _is_ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _OURS


def _is_foreign(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] not in _STANDARD


def _is_compiled(kind: type) -> bool:
    """Say whether objects of a class of another library are called by compiled code."""
    call: object = kind.__call__
    return isinstance(call, WrapperDescriptorType) and _is_foreign(kind.__module__)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # It is filled later.
        return None


def _of_code(function: FunctionType) -> Iterator[Any]:
    """Yield the texts of a function's code, and what its names stand for."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        yield from (each for each in code.co_consts if isinstance(each, str))
        for name in code.co_names:
            value = function.__globals__.get(name)
            yield value
            if isinstance(value, ModuleType):
                yield from (vars(value).get(each) for each in code.co_names)
