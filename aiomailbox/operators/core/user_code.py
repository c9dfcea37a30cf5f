"""The user's code: whose line, how it is called, what it may return, and what if it fails."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dis
import functools
import hashlib
import inspect
import itertools
import linecache
import os
import pathlib
import sys
import sysconfig
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import (
    AsyncGeneratorType,
    BuiltinMethodType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
)
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NoReturn,
    cast,
)

from aiomailbox.errors import (
    BadResultError,
    InvalidArgumentError,
    RecordTypeError,
    WrongTypeError,
    safe_repr,
)
from aiomailbox.logs import library_log
from aiomailbox.records.events import OutputTag
from aiomailbox.signatures import accepts

# Finds the user's line in a traceback.


_PACKAGE: Final = f"{pathlib.Path(__file__).resolve().parents[2]}{os.sep}"
_GENERATED: Final = "<aiomailbox"
_ENDS: Final = (StopIteration, StopAsyncIteration)
_STANDARD_LIBRARY: Final = (sysconfig.get_path("stdlib"), "<frozen ")
# The second one is Debian's.
_INSTALLED: Final = ("site-packages", "dist-packages")


def caller_location() -> str:
    """Return ``file:line`` of the user's call that led here, "" if there is none."""
    frame = _caller()
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def warn_here(what: str, **facts: Any) -> None:
    """Warn of what the program has written where it calls the library."""
    library_log().warning(what, line=caller_location(), **facts)


def is_called_by_import() -> bool:
    """Say whether the user's call that led here runs while its module is imported."""
    frame = _caller()
    return (
        frame is not None
        and frame.f_code.co_name == "<module>"
        and frame.f_globals.get("__name__") != "__main__"
    )


def _caller() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_users_frame(
        frame.f_code.co_filename, frame.f_code.co_name
    ):
        frame = frame.f_back
    return frame


def user_location(error: BaseException) -> str:
    """Return ``file:line`` of the innermost frame that is the user's own; see `users_line`.

    A return value that is lost has the function's own line.
    """
    if isinstance(error, BadResultError) and has_line(error.function):
        return error.function
    cause = error.__cause__
    if isinstance(error, RuntimeError) and isinstance(cause, _ENDS):
        # Python puts a RuntimeError in its place, whose traceback begins outside.
        error = cause
    return users_line(traceback.extract_tb(error.__traceback__))


def users_line(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return ``file:line`` of the innermost frame that is the user's own, "" for none.

    A line of a library, or of aiomailbox itself, does not lead to a mistake: whoever
    has no other one names the user's call that made the operator.

    Args:
        frames: The innermost one last.
    """
    for frame in reversed(frames):
        if _is_users_frame(frame.filename, frame.name):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def _is_users_frame(file: str, function: str) -> bool:
    # The methods that Python writes for a dataclass have no file.
    is_made = file == "<string>" and function.startswith("__")
    return is_users(file) and not is_made


def users_line_of(frames: Iterable[FrameType]) -> str:
    """Return ``file:line`` of the innermost frame of a stack; see `users_line`.

    Args:
        frames: Outermost first; no file is looked at.
    """
    for frame in reversed([*frames]):
        code = frame.f_code
        if _is_users_frame(code.co_filename, code.co_name):
            return f"{code.co_filename}:{frame.f_lineno}"
    return ""


def has_line(described: str) -> bool:
    """Say whether what `describe` has returned ends with a line of the user's."""
    line = described.partition("(")[2]
    return bool(line) and is_users(line)


def is_users(location: str) -> bool:
    """Say whether a location is the user's, and not of a library or aiomailbox itself."""
    return not (
        location.startswith((_PACKAGE, _GENERATED, *_STANDARD_LIBRARY))
        or any(name in location for name in _INSTALLED)
    )


def is_of_another_library(location: str) -> bool:
    """Say whether a location is in what is installed beside aiomailbox."""
    return any(name in location for name in _INSTALLED) and not is_own_line(location)


def is_own_line(location: str) -> bool:
    """Say whether a location is in aiomailbox itself.

    Example:
        >>> is_own_line(__file__), is_own_line("job.py:7")
        (True, False)
    """
    return location.startswith((_PACKAGE, _GENERATED))


# Compiles source that is written at run time; tracebacks show its lines.


# Beyond it the source that was not asked for the longest is forgotten. Its functions go
# on, and their lines appear in tracebacks no more.
SOURCES_MAX: Final = 512
_known: Final[OrderedDict[str, CodeType]] = OrderedDict()


def compiled(what: str, source: str) -> CodeType:
    """Return the code of a source; equal sources share it.

    Args:
        what: What the source is for, as tracebacks name it.
        source: Python's.

    Example:
        >>> compiled("example", "n = 1") is compiled("example", "n = 1")
        True
    """
    digest = hashlib.blake2b(source.encode(), digest_size=6).hexdigest()
    filename = f"<aiomailbox {what} {digest}>"
    code = _known.get(filename)
    if code is None:
        code = compile(source, filename, "exec")
        # Entries without a time stamp are never thrown out by linecache.checkcache.
        lines = source.splitlines(keepends=True)
        linecache.cache[filename] = (len(source), None, lines, filename)
        _known[filename] = code
        if len(_known) > SOURCES_MAX:
            linecache.cache.pop(_known.popitem(last=False)[0], None)
    _known.move_to_end(filename)
    return code


# Looks at the users' functions: sync or async, how many arguments, of which name.


class CallableKind(Enum):
    """The kind of result that calling a function gives."""

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
    function: object, parameter: str, *, arity: int | None = None, gets: str = ""
) -> Callable[..., Any]:
    """Return ``function`` if it can be called with ``arity`` arguments.

    Args:
        function: What the user gave.
        parameter: The name of the parameter it was given for.
        arity: How many positional arguments it will get; None skips the check, and so
            does a function whose signature is unknown (some built-in ones).
        gets: What these arguments are, for the error.

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
            f"{'' if arity == 1 else 's'}{gets and f' ({gets})'}",
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
        f"{given!r} is the result of {name}(...), not a function",
        f"Give the function itself, without parentheses: {name}.",
    )


def method_of(owner: object, name: str) -> Callable[..., Any] | None:
    """Return a method; None where the name is that of data, as of a price at opening."""
    found = getattr(owner, name, None)
    return found if callable(found) else None


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
        method = method_of(owner, name)
        if method is None or accepts(method, len(arguments)):
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


def check_run_in(run_in: object, function: Callable[..., Any]) -> None:
    """Raise unless a function may run there.

    Args:
        run_in: ``"loop"``, or ``"thread"``.
        function: The user's.

    Raises:
        InvalidArgumentError: If ``run_in`` is something else, or the function is
            asynchronous and yet to run in a thread.
    """
    if run_in not in {"loop", "thread"}:
        raise InvalidArgumentError(
            "run_in", f"{run_in!r} is not known", 'Use "loop" or "thread".'
        )
    if run_in == "thread" and is_async_callable(function):
        raise InvalidArgumentError(
            "run_in",
            f"{describe(function)} is asynchronous, and runs in the event loop",
            "Leave run_in= out, or give a function that blocks.",
        )


def refuse_generator(
    function: object,
    parameter: str,
    remedy: str,
    error: type[InvalidArgumentError | WrongTypeError] = InvalidArgumentError,
) -> None:
    """Refuse a generator function, also an asynchronous one, where none is iterated.

    Raises:
        InvalidArgumentError: If it is one, or ``error``; an iterator would be the result.
    """
    given = cast("Callable[..., Any]", function)
    target = inspect.unwrap(_without_partials(given))
    call = getattr(type(target), "__call__", None)  # noqa: B004 -- it is looked at
    if inspect.isgeneratorfunction(target) or inspect.isgeneratorfunction(call):
        kind = "a generator"
    elif callable_kind(given) is CallableKind.ASYNC_GENERATOR:
        kind = "an asynchronous generator"
    else:
        return
    raise error(parameter, f"{describe(given)} is {kind}", remedy)


def refuse_resultless(function: Callable[..., Any], parameter: str) -> None:
    """Refuse a function that was written without the result that is looked at.

    Raises:
        WrongTypeError: If it never returns a value.
    """
    if is_resultless(function):
        raise WrongTypeError(
            parameter,
            f"{describe(function)} never returns a value",
            "Write return before its result.",
        )


def is_resultless(function: Callable[..., Any]) -> bool:
    """Say whether a function of the user's is known to return None in any case.

    Example:
        >>> def shout(text):
        ...     text.upper()
        >>> is_resultless(shout), is_resultless(lambda text: text.upper())
        (True, False)
    """
    target: Any = inspect.unwrap(_without_partials(function))
    call = getattr(type(target), "__call__", None)  # noqa: B004 -- for its code
    code = getattr(target, "__code__", getattr(call, "__code__", None))
    return isinstance(code, CodeType) and _returns_only_none(code)


def _returns_only_none(code: CodeType) -> bool:
    """Whether a function has ends, and gives None at each of them."""
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        return False
    ends = _ends_without_value(code)
    return bool(ends) and all(ends)


# Programs that make one pipeline again and again have the same code each time.
@functools.lru_cache(maxsize=256)
def _ends_without_value(code: CodeType) -> tuple[bool, ...]:
    """Say of each end of a function whether it gives None."""
    given = [
        # In one instruction, or in two.
        one if one.opname == "RETURN_CONST" else before
        for before, one in itertools.pairwise(dis.get_instructions(code))
        if one.opname in {"RETURN_CONST", "RETURN_VALUE"}
    ]
    return tuple("CONST" in one.opname and one.argval is None for one in given)


def loses_returned(function: Callable[..., Any]) -> bool:
    """Say whether a generator function returns a value, which nobody gets.

    Example:
        >>> def split(text):
        ...     if not text:
        ...         return ["nothing"]
        ...     yield from text.split()
        >>> loses_returned(split)
        True
    """
    target = inspect.unwrap(_without_partials(function))
    if not inspect.isgeneratorfunction(target):
        return False
    return not all(_ends_without_value(target.__code__))


# Iterable, and meant to be one record.
TAKEN_APART: Final = (str, bytes, bytearray, dict)
# Nearly all results are one of these: nothing else is looked at for them.
_SEVERAL: Final = frozenset({list, tuple, set, GeneratorType})
_NUMBERS: Final = frozenset({int, float, bool})
_SCALARS: Final = _NUMBERS | {str, type(None)}


def is_one_record(result: Any) -> bool:
    """Say whether a result is iterable, and taken for one record nevertheless."""
    if type(result) in _SEVERAL:
        return False
    if isinstance(result, TAKEN_APART):
        return True
    # Named tuples and rows of Spark; models of pydantic.
    marks = (
        ("_fields", "__fields__") if isinstance(result, tuple) else ("model_fields",)
    )
    return any(hasattr(type(result), mark) for mark in marks)


def taken_apart(result: Any, verb: str = "flat_map") -> tuple[str, str]:
    """Say what a verb makes of a result that is iterable, and what to return instead.

    Args:
        result: One that `is_one_record`.
        verb: It takes the items of a result as records.

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
    elif isinstance(result, bytes | bytearray):
        kind, name, parts = "bytes", "data", "numbers"
    else:
        kind, name, parts = f"a {type(result).__name__}", "row", "fields"
    return (
        f"{kind}, which {verb} takes apart into {parts}: {shortened(result)}",
        f"Return [{name}] for one record, or list({name}) for its {parts}.",
    )


def looks_like_record(result: Any) -> bool:
    """Say whether a plain tuple of results is rather one record: its items differ in kind.

    Example:
        >>> looks_like_record(("tea", 2)), looks_like_record(("tea", "jam"))
        (True, False)
    """
    if type(result) is not tuple:
        return False
    kinds = {type(one) for one in result}
    # Numbers of several types may well be results of one kind.
    return str in kinds and not kinds.isdisjoint(_NUMBERS) and kinds.issubset(_SCALARS)


def warn_of_tuple(
    log: Any, function: Callable[..., Any], result: Any, verb: str
) -> None:
    """Warn that the values of one tuple become a record each."""
    log.warning(
        "a function returns a tuple of values of several types: each value is a record "
        "of its own",
        verb=verb,
        function=describe(function),
        result=shortened(result),
        remedy="return [(...)], a list with the tuple, for one record; a list of the "
        "values if each is meant to be one",
    )


def items_of(function: Callable[..., Any], result: Any) -> Iterator[Any]:
    """Return an iterator of what a function of a flat_map returned.

    Raises:
        BadResultError: If that is text, or else of a type that is taken for one record.
        TypeError: If it is not iterable.
    """
    if is_one_record(result):
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
    function: object,
    parameter: str,
    *,
    arity: int | None = None,
    gets: str = "",
    may_yield: bool = True,
) -> Callable[..., Any]:
    """Return ``function`` if it can be called and gives its result at once.

    Raises:
        WrongTypeError: Also if it is an ``async def`` function.
        InvalidArgumentError: If it is a generator, and may be none.
    """
    checked = check_function(function, parameter, arity=arity, gets=gets)
    if is_async_callable(checked):
        raise WrongTypeError(
            parameter,
            f"{describe(checked)} gives {callable_kind(checked).value}",
            "A plain function is needed here: do the awaiting in map_async before.",
        )
    if not may_yield:
        refuse_generator(function, parameter, "Use it with flat_map.")
    return checked


# Warns of functions that do less than what they seem to do.


def warn_if_resultless(function: Any, verb: str) -> None:
    """Warn of a function that makes each record None: its return was forgotten.

    A lambda gives what it is written for.
    """
    name = getattr(function, "__name__", "")
    if name != "<lambda>" and is_resultless(function):
        warn_here(
            f"the function of {verb} never returns a value: each of its results is None",
            function=describe(function),
            remedy="write return before its result; one that is called for its effect "
            "alone may return the record",
        )


def warn_if_returned_is_lost(function: Any, verb: str) -> None:
    """Warn of a generator that returns a value at one of its ends."""
    if callable(function) and loses_returned(function):
        warn_here(
            f"the function of {verb} is a generator that returns a value, which is lost: "
            "what it yields are its results",
            function=describe(function),
            remedy="yield the value, or write `yield from values` and `return`",
        )


def warn_of_unopened(function: object, verb: str) -> None:
    """Warn of an object whose `open` nobody calls, as it would be of Flink's functions."""
    kind = type(function)
    opens, closes = getattr(kind, "open", None), getattr(kind, "close", None)
    if not callable(opens) or isinstance(function, type):
        return
    # With a context as its argument, or beside a close.
    if callable(closes) or accepts(functools.partial(opens, function), 1):
        warn_here(
            f"{verb} calls neither open() nor close() of the object that it is given",
            function=describe(cast("Any", function)),
            remedy="derive its class from am.ProcessFunction, and write "
            "stream.process(...), or give map_async an object with async def __call__: "
            "both open it and close it",
        )


# What stands for a value that is still to be made: the function was not called, or its
# result not awaited, or not taken out. A look at the type of a result finds it.
UNMADE: Final[frozenset[type]] = frozenset(
    {
        AsyncGeneratorType,
        BuiltinMethodType,
        CoroutineType,
        GeneratorType,
        MethodType,
        asyncio.Future,
        asyncio.Task,
        concurrent.futures.Future,
        filter,
        map,
        zip,
    }
)
# All of it is true, and so is a function. That can be a record, but no verdict.
UNDECIDED: Final[frozenset[type]] = UNMADE | {FunctionType}
_CALL_IT: Final = "Call it, with parentheses"


def unmade(result: object) -> tuple[str, str]:
    """Say what a function returned in the place of a value, and what is right.

    Args:
        result: Of one of the types `UNDECIDED`. A coroutine is closed: else Python would
            warn that it was never awaited.

    Returns:
        What it is, and the remedy.

    Example:
        >>> unmade("tea".upper)
        ('the method upper', 'Call it, with parentheses. A method that is a record goes into a tuple.')
    """
    if isinstance(result, CoroutineType):
        result.close()
        return "a coroutine", (
            "An async def function: pass the function itself instead of calling it in a "
            "lambda, or use map_async."
        )
    if isinstance(result, asyncio.Future | concurrent.futures.Future):
        return f"a {type(result).__name__}, which is to be awaited", (
            "Use map_async, with an async def function that awaits it."
        )
    if isinstance(result, MethodType | BuiltinMethodType):
        return f"the method {result.__name__}", (
            f"{_CALL_IT}. A method that is a record goes into a tuple."
        )
    if isinstance(result, FunctionType):
        return f"the function {_name(result)}", f"{_CALL_IT}."
    kind = type(result).__name__.replace("_", " ")
    return f"a {kind}, whose items can be taken only once", (
        "Return list(...) of it, or use flat_map for a record for each item; all(...) or "
        "any(...) of it is a verdict."
    )


def refuse_unmade(
    result: object, function: Callable[..., Any], *, is_awaited: bool = False
) -> NoReturn:
    """Say whose result is none, and what is right.

    Args:
        result: What ``function`` returned, of one of the types `UNDECIDED`.
        function: The user's function.
        is_awaited: Whether the function may await.

    Raises:
        RecordTypeError: Always.
    """
    what, remedy = unmade(result)
    if is_awaited and hasattr(result, "__await__"):
        remedy = "Await it inside the function."
    raise RecordTypeError(
        "function",
        f"{describe(function)} returned {what} where a value is expected",
        remedy,
    )


def refuse_all_unmade(
    results: Iterable[object], function: Callable[..., Any]
) -> NoReturn:
    """Say of the first of the results that are none whose it is; close coroutines.

    Raises:
        RecordTypeError: As `refuse_unmade`.
    """
    first, *others = [one for one in results if type(one) in UNMADE]
    for other in others:
        if isinstance(other, CoroutineType):
            other.close()
    refuse_unmade(first, function)


def describe(function: Callable[..., Any]) -> str:
    """Return the function's name and where it is written, or how the user wrote it.

    A function of the library's own has no line that leads to a mistake; what reads a
    field, such as a `FieldSelector`, is the name of the field and the user's line.

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
    if is_own_line(code.co_filename):
        kind = type(target)
        texts: list[object] = [kind.__str__, kind.__repr__]
        says_it = texts != [object.__str__, object.__repr__]
        return str(target) if says_it and not inspect.isroutine(target) else name
    return f"{name} ({code.co_filename}:{code.co_firstlineno})"


def line_of(function: Callable[..., Any]) -> str:
    """Return the function's name and line if it is the user's own, else "".

    Example:
        >>> line_of(len)
        ''
    """
    described = describe(function)
    return described if has_line(described) else ""


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


class CheckpointListener:
    """A base class for functions that are notified of checkpoints.

    For side effects that wait until a checkpoint covers them. Process and window functions,
    and objects given to ``map``, ``filter``, ``flat_map``, ``map_async`` and ``sink_to``, are
    notified in each subtask, between two records. Both methods may be ``async def``; to have
    one of them is enough, without deriving from this class. If one raises, the task fails.

    A notification may be missed: a task that ends or fails first gets none, and the next
    one stands for all before it.

    Concept:
        Flink, ``CheckpointListener``.

    Example:
        >>> import asyncio
        >>> import aiomailbox as am
        >>> class Seen(am.ProcessFunction, am.CheckpointListener):
        ...     def process_element(self, value, context, out):
        ...         out.collect(value)
        ...
        ...     def notify_checkpoint_complete(self, checkpoint_id):
        ...         print("complete", checkpoint_id)
        >>> once_or_more = am.CheckpointingMode.AT_LEAST_ONCE
        >>> async def main():
        ...     env = am.StreamExecutionEnvironment()
        ...     env.enable_checkpointing(None, mode=once_or_more)
        ...     env.from_source(am.Inbox()).process(Seen()).sink_to(print)
        ...     async with env.start() as job:
        ...         await job.trigger_checkpoint()
        ...         await job.cancel()
        >>> asyncio.run(main())
        complete 1
    """

    def notify_checkpoint_complete(self, checkpoint_id: int, /) -> Any:
        """Be notified that a checkpoint is complete: no failure goes back before it."""

    def notify_checkpoint_aborted(self, checkpoint_id: int, /) -> Any:
        """Be notified that a checkpoint will not complete; the next one stands for it."""


_NOTIFICATIONS: Final = ("notify_checkpoint_complete", "notify_checkpoint_aborted")


def checkpoint_listener(function: Any) -> Any:
    """Return a function object if it wants to be notified of checkpoints, or else None.

    Raises:
        WrongTypeError: If such a method cannot be called with a checkpoint's id.
    """
    if inspect.isroutine(function) or inspect.isclass(function):
        return None
    if not any(callable(getattr(function, name, None)) for name in _NOTIFICATIONS):
        return None
    wanted = dict.fromkeys(_NOTIFICATIONS, ("checkpoint_id",))
    check_methods(function, "function", wanted)
    return function


# What becomes of a record whose function raised: fail, skip, or dead letter.


class ErrorAction(Enum):
    """The three ends of a record that cannot be processed."""

    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True)
class OnError:
    """The handling of a record whose function raised.

    Use the constants `fail` and `skip` or the function `dead_letter`.
    """

    action: ErrorAction
    tag: OutputTag[DeadLetter] | None = None

    if not TYPE_CHECKING:

        def __call__(self) -> NoReturn:
            """Say how it is written, to who calls ``am.skip()``.

            Raises:
                WrongTypeError: Always.
            """
            raise WrongTypeError(
                "on_error",
                f"am.{self.action.value} is a policy and not a function",
                f"Write on_error=am.{self.action.value}, without parentheses.",
            )


fail: Final = OnError(ErrorAction.FAIL)


skip: Final = OnError(ErrorAction.SKIP)


def dead_letter(tag: OutputTag[DeadLetter]) -> OnError:
    """Send records that cannot be processed to a side output, as `DeadLetter`.

    Example:
        >>> dead_letter(OutputTag("failed")).tag.id
        'failed'
    """
    return OnError(ErrorAction.DEAD_LETTER, check_tag(tag, called="failed"))


def check_tag(
    tag: object, parameter: str = "tag", *, called: str = "late"
) -> OutputTag:
    """Return ``tag`` if it is an `OutputTag`, else raise with how one is written."""
    if isinstance(tag, OutputTag):
        return tag
    raise WrongTypeError(
        parameter, f"{tag!r} is not an OutputTag", f"Write am.OutputTag({called!r})."
    )


def check_on_error(on_error: object) -> OnError:
    """Return ``on_error`` if it is an `OnError`, else raise with what would be."""
    if isinstance(on_error, OnError):
        return on_error
    raise WrongTypeError(
        "on_error",
        f"{on_error!r} is not an error policy",
        "Use am.fail, am.skip or am.dead_letter(tag).",
    )


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be processed, and why.

    Attributes:
        record: The original value; for a window whose firing failed a `FailedWindow`.
        timestamp: Its event time in milliseconds, or None.
        operator: The operator's name.
        uid: The operator's uid, or None.
        attempts: How often it was tried.
        error_type: The exception's class name.
        error: The exception's message.
        traceback: The exception's traceback, as text.
    """

    record: Any
    timestamp: int | None
    operator: str
    uid: str | None
    attempts: int
    error_type: str
    error: str
    traceback: str
