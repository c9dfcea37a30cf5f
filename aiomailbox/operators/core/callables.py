"""Looks at the users' functions: sync or async, how many arguments, from which line."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import CodeType, CoroutineType
from typing import Any, Final, NoReturn, cast

from aiomailbox.errors import (
    BadResultError,
    InvalidArgumentError,
    RecordTypeError,
    WrongTypeError,
    safe_repr,
)
from aiomailbox.signatures import accepts


class CallableKind(Enum):
    """What calling a function gives."""

    SYNC = "a value"
    ASYNC = "a coroutine"
    ASYNC_GENERATOR = "an asynchronous generator"


def callable_kind(function: Callable[..., Any]) -> CallableKind:
    """Return what calling ``function`` gives, without calling it.

    Functions, methods, ``functools.partial`` and objects with a ``__call__`` are
    understood; a plain function that returns a coroutine looks like a sync one.

    Example:
        >>> async def look_up(key): ...
        >>> callable_kind(look_up)
        <CallableKind.ASYNC: 'a coroutine'>
    """
    target = _without_partials(function)
    # An object with `__call__` is as asynchronous as that.
    for candidate in (target, getattr(target, "__call__", None)):  # noqa: B004 -- the method itself is looked at
        # Calling a class makes an instance, whatever that can be called for.
        if inspect.isclass(target):
            break
        if inspect.iscoroutinefunction(candidate):
            return CallableKind.ASYNC
        if inspect.isasyncgenfunction(candidate):
            return CallableKind.ASYNC_GENERATOR
    return CallableKind.SYNC


def is_async_callable(function: Callable[..., Any]) -> bool:
    """Return whether the result of ``function`` has to be awaited or iterated async."""
    return callable_kind(function) is not CallableKind.SYNC


def check_function(
    function: object, parameter: str, *, arity: int | None = None
) -> Callable[..., Any]:
    """Return ``function`` if it can be called with ``arity`` arguments.

    Args:
        function: What the user gave.
        parameter: The name of the parameter it was given for.
        arity: How many positional arguments it will get; None skips the check, and so
            does a function whose signature is unknown (some built-in ones).

    Raises:
        WrongTypeError: If it is not callable, or not with so many arguments.
    """
    refuse_called(function, parameter)
    if not callable(function):
        raise WrongTypeError(
            parameter, f"{function!r} is not a function", "Give a function or method."
        )
    if arity is not None and not accepts(function, arity):
        raise WrongTypeError(
            parameter,
            f"{describe(function)} cannot be called with {arity} positional argument"
            f"{'' if arity == 1 else 's'}",
            f"Its signature is {inspect.signature(function)}.",
        )
    return function


def refuse_called(given: object, parameter: str) -> None:
    """Refuse what a function gave when it was called where it should be named.

    Args:
        given: What the user gave.
        parameter: The name of the parameter it was given for.

    Raises:
        WrongTypeError: If it is a coroutine or a generator.
    """
    if inspect.iscoroutine(given):
        # Python would add, at some later time, that it was never awaited.
        given.close()
    elif not (inspect.isgenerator(given) or inspect.isasyncgen(given)):
        return
    name = given.__name__
    raise WrongTypeError(
        parameter,
        f"{given!r} is what {name}(...) gave",
        f"Give the function itself, without parentheses: {name}.",
    )


def check_methods(
    owner: object, parameter: str, methods: Mapping[str, Sequence[str]]
) -> None:
    """Refuse an object with a method that cannot be called as it will be.

    Args:
        owner: What the user gave, an object with methods.
        parameter: The name of the parameter it was given for.
        methods: By its name what each method is called with; those that ``owner`` has
            not are for others to miss.

    Raises:
        WrongTypeError: Naming the method, its line, and how to write it.
    """
    for name, arguments in methods.items():
        method = getattr(owner, name, None)
        if not callable(method) or accepts(method, len(arguments)):
            continue
        raise WrongTypeError(
            parameter,
            f"{describe(method)} cannot be called with {len(arguments)} argument"
            f"{'' if len(arguments) == 1 else 's'} beside self: its signature is "
            f"{inspect.signature(method)}",
            f"Write def {name}({', '.join(['self', *arguments])}).",
        )


def refuse_undefined(method: Callable[..., Any], parameter: str) -> None:
    """Refuse a method that a base class only declares.

    Raises:
        WrongTypeError: If the user's class does not define it.
    """
    if getattr(method, "__isabstractmethod__", False):
        owner, name = getattr(method, "__self__", method), method.__name__
        arguments = ", ".join(("self", *inspect.signature(method).parameters))
        raise WrongTypeError(
            parameter,
            f"{type(owner).__qualname__} defines no {name}",
            f"Write def {name}({arguments}).",
        )


def refuse_generator(function: object, parameter: str, remedy: str) -> None:
    """Refuse a generator function where one result is expected.

    Raises:
        InvalidArgumentError: If it is one; an iterator would be the result.
    """
    target = inspect.unwrap(_without_partials(cast("Callable[..., Any]", function)))
    call = getattr(type(target), "__call__", None)  # noqa: B004 -- it is looked at
    if inspect.isgeneratorfunction(target) or inspect.isgeneratorfunction(call):
        raise InvalidArgumentError(
            parameter,
            f"{describe(cast('Callable[..., Any]', function))} is a generator",
            remedy,
        )


def refuse_resultless(function: Callable[..., Any], parameter: str) -> None:
    """Refuse a function that was written without the result that is looked at.

    Raises:
        WrongTypeError: If it never returns a value.
    """
    code = getattr(inspect.unwrap(_without_partials(function)), "__code__", None)
    if isinstance(code, CodeType) and _returns_only_none(code):
        raise WrongTypeError(
            parameter,
            f"{describe(function)} never returns a value",
            "Write return before its result.",
        )


def _returns_only_none(code: CodeType) -> bool:
    """Whether a function has ends, and gives None at each of them."""
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        return False
    given = [
        # In one instruction, or in two.
        one if one.opname == "RETURN_CONST" else before
        for before, one in itertools.pairwise(dis.get_instructions(code))
        if one.opname in {"RETURN_CONST", "RETURN_VALUE"}
    ]
    return bool(given) and all(
        "CONST" in one.opname and one.argval is None for one in given
    )


# Iterable, and meant to be one record.
TAKEN_APART: Final = (str, bytes, bytearray, dict)


def taken_apart(result: Any) -> tuple[str, str]:
    """Say what a flat_map makes of a result that is iterable, and what to return instead.

    Args:
        result: Of one of the types `TAKEN_APART`.

    Returns:
        What it is, and the remedy.

    Example:
        >>> taken_apart("to be")[0]
        "text, which flat_map takes apart into letters: 'to be'"
    """
    if isinstance(result, str):
        kind, name, parts = "text", "text", "letters"
    elif isinstance(result, dict):
        kind, name, parts = "a dict", "row", "keys"
    else:
        kind, name, parts = "bytes", "data", "numbers"
    return (
        f"{kind}, which flat_map takes apart into {parts}: {shortened(result)}",
        f"Return [{name}] for one record, or list({name}) for its {parts}.",
    )


def items_of(function: Callable[..., Any], result: Any) -> Iterator[Any]:
    """Return an iterator of what a function of a flat_map returned.

    Raises:
        BadResultError: If that is text, or else of a type that is taken for one record.
        TypeError: If it is not iterable.
    """
    if isinstance(result, TAKEN_APART):
        raise BadResultError(describe(function), *taken_apart(result))
    return iter(result)


def refuse_none(function: Callable[..., Any], record: object) -> NoReturn:
    """Say that a function that folds records has forgotten to return what it made.

    Raises:
        BadResultError: Always.
    """
    raise BadResultError(
        describe(function),
        f"None for the record {shortened(record)}",
        "Return the reduced record.",
    )


async def collected(function: Callable[..., Any], result: Any) -> None:
    """Await a method that emits by its collector, and so returns nothing.

    Args:
        function: The user's method.
        result: What it returned, which is not None.

    Raises:
        BadResultError: If it returned a value, at once or at its end: it would be lost.
    """
    if hasattr(result, "__await__"):
        result = await result
    if result is not None:
        raise BadResultError(
            describe(function),
            f"{shortened(result)}, which no operator gets",
            "Write out.collect(value) for each result, and return nothing.",
        )


def check_sync_function(
    function: object, parameter: str, *, arity: int | None = None
) -> Callable[..., Any]:
    """Return ``function`` if it can be called and gives its result at once.

    Raises:
        WrongTypeError: Also if it is an ``async def`` function.
    """
    checked = check_function(function, parameter, arity=arity)
    if is_async_callable(checked):
        raise WrongTypeError(
            parameter,
            f"{describe(checked)} gives {callable_kind(checked).value}",
            "A plain function is needed here: do the awaiting in map_async before.",
        )
    return checked


def refuse_coroutine(
    coroutine: CoroutineType[Any, Any, Any], function: Callable[..., Any]
) -> NoReturn:
    """Close a coroutine that came where a value is expected, and say whose it is.

    Args:
        coroutine: What ``function`` returned although it is no ``async def`` function.
        function: The user's function.

    Raises:
        RecordTypeError: Always.
    """
    coroutine.close()
    raise RecordTypeError(
        "function",
        f"{describe(function)} returned a coroutine where a value is expected",
        "An async def function: pass the function itself instead of calling it in a "
        "lambda, or use map_async before.",
    )


def refuse_coroutines(
    results: Iterable[object], function: Callable[..., Any]
) -> NoReturn:
    """Close the coroutines among what ``function`` returned, and raise.

    Raises:
        RecordTypeError: As `refuse_coroutine`.
    """
    coroutines = [one for one in results if type(one) is CoroutineType]
    for coroutine in coroutines[1:]:
        coroutine.close()
    refuse_coroutine(coroutines[0], function)


def describe(function: Callable[..., Any]) -> str:
    """Return the function's name and where it is written.

    Example:
        >>> describe(len)
        'len'
    """
    target = _without_partials(function)
    name = _name(target)
    if target is not function:
        name = f"partial of {name}"
    code = getattr(inspect.unwrap(target), "__code__", None)
    if code is None:
        call = getattr(type(target), "__call__", None)  # noqa: B004 -- for its line
        code = getattr(call, "__code__", None)
    if code is None:
        return name
    return f"{name} ({code.co_filename}:{code.co_firstlineno})"


def shortened(value: object, length_max: int = 200) -> str:
    """Return the value's repr for a message, truncated if it is long.

    Example:
        >>> shortened("a" * 300, 10)
        "'aaaaaa..."
    """
    text = safe_repr(value)
    return text if len(text) <= length_max else f"{text[: length_max - 3]}..."


def _without_partials(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", None)
    if name is None:
        return f"{type(function).__qualname__} object"
    last = str(name).rpartition("<locals>.")[2]
    return "lambda" if last == "<lambda>" else last
