"""The arguments of functions, with their checks, and the meaning of names that do not exist."""

from __future__ import annotations

import difflib
import inspect
import math
import os
import re
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeVar, cast

from aiomailbox.errors import InvalidArgumentError, WrongTypeError

CalledT = TypeVar("CalledT", bound=Callable[..., Any])
OwnerT = TypeVar("OwnerT", bound=type)


def accepts(function: Callable[..., Any], arity: int) -> bool:
    """Return whether a function can be called with so many positional arguments.

    True where the signature is unknown, as of some built-in functions.

    Example:
        >>> accepts(divmod, 2), accepts(lambda: 1, 2), accepts(max, 2)
        (True, False, True)
    """
    if type(function) is FunctionType and not vars(function):
        # As its signature says, which takes ten microseconds to find out.
        code, defaults = function.__code__, function.__defaults__ or ()
        if code.co_kwonlyargcount > len(function.__kwdefaults__ or ()):
            return False
        takes_more = arity <= code.co_argcount or code.co_flags & inspect.CO_VARARGS
        return bool(takes_more) and arity >= code.co_argcount - len(defaults)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*range(arity))
    except TypeError:
        return False
    return True


def explained(usage: str = "", /, **new: str) -> Callable[[CalledT], CalledT]:
    """Say what to write, where a function does not take the arguments that it is given.

    Args:
        usage: How it is called, where no argument has another name.
        **new: What to write now, by the name of the argument in an earlier version, or
            elsewhere. Text that begins with a space is the whole remedy.

    Example:
        >>> @explained(buffer="capacity=...")
        ... def run(*, capacity: int) -> None: ...
        >>> run(buffer=3)
        Traceback (most recent call last):
            ...
        aiomailbox.errors.InvalidArgumentError: buffer: run() has no such argument. Write
        capacity=....
        >>> run(capactiy=3)
        Traceback (most recent call last):
            ...
        aiomailbox.errors.InvalidArgumentError: capactiy: run() has no such argument. Is
        capacity meant?
    """

    def decorated(called: CalledT) -> CalledT:
        # Of a class what makes its objects: the class itself stays what it is.
        is_class = isinstance(called, type)
        function: Any = (
            inspect.getattr_static(called, "__init__") if is_class else called
        )
        name = called.__name__

        @wraps(function)
        def checked(*args: Any, **named: Any) -> Any:
            # First: a function that passes arguments on would take one.
            for old in new.keys() & named.keys():
                text = new[old]
                remedy = text.strip() if text[0] == " " else f"Write {text}."
                raise _no_such_argument(name, old, remedy)
            try:
                return function(*args, **named)
            except TypeError as error:
                # One of its body, or of what that calls, comes through a frame of it.
                if error.__traceback__ is None or error.__traceback__.tb_next:
                    raise
                known = list(inspect.signature(function).parameters)
                unknown = [other for other in named if other not in known]
                if not unknown and not usage:
                    raise
                told = str(error)
            if not unknown:
                raise WrongTypeError("arguments", told, usage)
            close = difflib.get_close_matches(unknown[0], known, n=1)
            remedy = f"Is {close[0]} meant?" if close else usage
            raise _no_such_argument(name, unknown[0], remedy)

        if is_class:
            setattr(called, "__init__", checked)  # noqa: B010 -- a class, to checkers a function
            return called
        return cast("CalledT", checked)

    return decorated


def _no_such_argument(function: str, name: str, remedy: str) -> InvalidArgumentError:
    return InvalidArgumentError(name, f"{function}() has no such argument", remedy)


# Refuses arguments, and says what to give instead.


def check_count(value: Any, parameter: str, *, minimum: int = 1) -> int:
    """Return ``value`` if it is a whole number of at least ``minimum``.

    Raises:
        WrongTypeError: If it is not an int.
        InvalidArgumentError: If it is less.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongTypeError(
            parameter, f"{value!r} is not a whole number", "Use an int."
        )
    if value < minimum:
        raise InvalidArgumentError(
            parameter, f"{value} is too small", f"Use {minimum} or more."
        )
    return value


def check_number(
    value: Any, parameter: str, *, minimum: float, maximum: float = math.inf
) -> float:
    """Return ``value`` if it is a finite number from ``minimum`` to ``maximum``.

    Raises:
        WrongTypeError: If it is not an int or a float.
        InvalidArgumentError: If it is outside, infinite or not a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongTypeError(
            parameter, f"{value!r} is not a number", "Use an int or a float."
        )
    if not math.isfinite(value) or not minimum <= value <= maximum:
        upper = "" if math.isinf(maximum) else f" and at most {maximum}"
        raise InvalidArgumentError(
            parameter, f"{value!r} is out of range", f"Use at least {minimum}{upper}."
        )
    return value


def check_type(
    value: Any,
    kind: Any,
    parameter: str,
    remedy: str = "Give an instance of one.",
    what: str = "",
) -> Any:
    """Return ``value`` if it is an instance of a type or a union.

    Args:
        value: The argument.
        kind: The type.
        parameter: The argument's name as the caller wrote it.
        remedy: A correct value or call.
        what: What it should be; by default, the name of the type with an article.

    Raises:
        WrongTypeError: If it is of another type.
    """
    if isinstance(value, kind):
        return value
    if isinstance(value, type) and issubclass(value, kind):
        maker = f"{value.__qualname__}{'.of' if hasattr(value, 'of') else ''}"
        raise WrongTypeError(
            parameter,
            f"{value.__qualname__} is a class",
            f"Give an instance of it: {maker}(...).",
        )
    problem = f"{value!r} is not {what or f'a {kind.__name__}'}"
    raise WrongTypeError(parameter, problem, remedy)


def check_choice(value: Any, parameter: str, *choices: str | None) -> None:
    """Raise unless ``value`` is one of the choices there are.

    Raises:
        InvalidArgumentError: If it is not; the error names them.

    Example:
        >>> check_choice("ask", "mode", "read", "write")
        Traceback (most recent call last):
        aiomailbox.errors.InvalidArgumentError: mode: 'ask' is unknown. Use "read" or "write".
    """
    if value not in choices:
        *others, last = ("None" if one is None else f'"{one}"' for one in choices)
        raise InvalidArgumentError(
            parameter, f"{value!r} is unknown", f"Use {', '.join(others)} or {last}."
        )


# Text would be taken apart, a set has no order, and a mapping says more than names.
_NO_LISTS: Final = (str, set, frozenset, Mapping)


def check_names(names: Any, parameter: str) -> tuple[str, ...]:
    """Return ``names`` if they are names, each once.

    Raises:
        InvalidArgumentError: If one is there twice.
        WrongTypeError: If it is no list of names.
    """
    if isinstance(names, _NO_LISTS) or not isinstance(names, Iterable):
        raise WrongTypeError(
            parameter, f"{names!r} is not a list of names", 'Give a list, as ["user"].'
        )
    found = tuple(names)
    if not all(isinstance(name, str) and name for name in found):
        raise WrongTypeError(
            parameter, f"{names!r} has an item that is not a name", "Use strings."
        )
    if len(set(found)) < len(found):
        raise InvalidArgumentError(parameter, "it has duplicates", "Name each once.")
    return found


def refuse_home(path: str | os.PathLike[str], parameter: str) -> str:
    """Return a path as text, unless it begins with the ``~`` of a shell.

    Raises:
        InvalidArgumentError: If it does: it would be a directory of that name here.
        WrongTypeError: If it is no path.

    Example:
        >>> refuse_home("rows", "path")
        'rows'
    """
    check_type(path, str | os.PathLike, parameter, "Give a str or a Path.", "a path")
    text = os.fspath(path)
    if text == "~" or text.startswith("~/"):
        raise InvalidArgumentError(
            parameter,
            f"{text!r} begins with ~, which stands for a home directory only in a shell",
            f"Write Path.home() / {text[2:]!r}, or os.path.expanduser({text!r}).",
        )
    return text


def local_path(path: str | os.PathLike[str], parameter: str) -> Path:
    """Return a path of this machine.

    Raises:
        InvalidArgumentError: If it is a URL, which as a path would be a directory of
            that name here; or as `refuse_home`.

    Example:
        >>> local_path("rows", "path")
        PosixPath('rows')
    """
    text = refuse_home(path, parameter)
    if "://" in text:
        raise InvalidArgumentError(
            parameter,
            f"{text!r} is a URL, and files are written to a file system of this machine",
            "Give a path, e.g. one where the storage is mounted.",
        )
    return Path(text)


# Others, as `.txt` and `.log`, say little of what is in a file.
_TELLING: Final = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}


def check_suffix(path: str | os.PathLike[str], format_: str) -> None:
    """Refuse a path that ends like files of another format.

    Raises:
        InvalidArgumentError: If it does.

    Example:
        >>> check_suffix("orders.csv", "csv")
        >>> check_suffix("orders.csv", "parquet")
        Traceback (most recent call last):
        aiomailbox.errors.InvalidArgumentError: path: 'orders.csv' ends like csv, and the format is parquet. ...
    """
    text = os.fspath(path)
    suffix = os.path.splitext(text.removesuffix(".gz"))[1].lower()
    meant = _TELLING.get(suffix, format_)
    if meant != format_:
        raise InvalidArgumentError(
            "path",
            f"{text!r} ends like {meant}, and the format is {format_}",
            f'Give format="{meant}", or a path without {suffix}.',
        )


# Says what is meant by a name that an object or a class of the library does not have.


def no_such_name(
    owner: object, name: str, what: str, meant: Mapping[str, str], instead: str = ""
) -> str:
    """Return what to say where an object or a class has no such attribute.

    Args:
        owner: The object, or its class.
        name: What was asked for.
        what: What users call the object.
        meant: What to write, by what others call it; where that is no attribute of the
            object, it begins with a space.
        instead: What there is to write in place of any other name.

    Example:
        >>> no_such_name([], "reverze", "items", {})
        "'list' object has no attribute 'reverze'; is items.reverse meant?"
    """
    kind = owner if isinstance(owner, type) else type(owner)
    text = f"{kind.__name__!r} object has no attribute {name!r}"
    if name.startswith("_"):
        return text
    snake = snake_case(name)
    names = [each for each in dir(owner) if not each.startswith("_")]
    if snake in names:
        call = "(...)" if callable(getattr(kind, snake, None)) else ""
        return f"{text}; write {what}.{snake}{call}"
    if snake in meant:
        return _with_remedy(text, what, meant[snake])
    close = difflib.get_close_matches(snake, names, n=1)
    if close:
        return f"{text}; is {what}.{close[0]} meant?"
    return f"{text}; write {what}.{instead}" if instead else text


def _with_remedy(text: str, what: str, remedy: str) -> str:
    return f"{text};{remedy}" if remedy[0] == " " else f"{text}; write {what}.{remedy}"


def snake_case(name: str) -> str:
    """Return a name as PyFlink had it, where Java has another."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: f"_{found[1].lower()}", name)


class Misnamed:
    """The base of objects that are asked for names of another library.

    The class says in ``_called`` what users call the object, and in ``_meant`` what to
    write for such names; see `no_such_name`.
    """

    __slots__ = ()
    _called: ClassVar[str]
    _meant: ClassVar[Mapping[str, str]]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say what is meant.

            Raises:
                AttributeError: Always.
            """
            text = no_such_name(self, name, self._called, self._meant)
            raise AttributeError(text, name=name, obj=None)


class Unchanging:
    """The base of objects that do not change, as streams: they refuse to be set.

    The class says in ``_called`` what users call the object.
    """

    # So that subclasses may have slots or not.
    __slots__ = ()
    _called: ClassVar[str]

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            """Set nothing that users would take for a setting.

            Raises:
                AttributeError: If the name is public.
            """
            if not name.startswith("_"):
                _refuse_setting(self, name, self._called)
            super().__setattr__(name, value)


def _refuse_setting(owner: object, name: str, called: str) -> NoReturn:
    """Refuse a public attribute of what does not change, where it is set.

    Raises:
        AttributeError: Always. Nothing would ever read it.
    """
    kind = type(owner)
    if callable(getattr(kind, name, None)):
        text = f"{name!r} of {kind.__name__!r} is a method and cannot be set; write "
        text += f"{called} = {called}.{name}(...)"
    else:
        text = no_such_name(kind, name, called, {})
    raise AttributeError(text, name=name, obj=None)


def with_other_names(
    called: str, meant: Mapping[str, str]
) -> Callable[[OwnerT], OwnerT]:
    """Give a class properties that say what to write for names of other libraries.

    It is for classes that are used for each record: CPython 3.11 finds the attributes of
    a class with ``__getattr__``, such as `Misnamed`, more slowly.

    Args:
        called: What users call the object.
        meant: As in `no_such_name`.

    Example:
        >>> @with_other_names("out", {"append": "collect(value)"})
        ... class Out: ...
        >>> Out().append
        Traceback (most recent call last):
        AttributeError: 'Out' object has no attribute 'append'; write out.collect(value)
    """

    def refuse(name: str, self: object) -> NoReturn:
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(_with_remedy(text, called, meant[name]), name=name)

    def give(owner: OwnerT) -> OwnerT:
        for name in meant:
            # Without a docstring, so that the reference does not list them.
            setattr(owner, name, property(partial(refuse, name), doc=""))
        return owner

    return give


class Suggesting(ABCMeta):
    """The class of a class that is asked for names of another library.

    The class says in ``_meant`` what to write for them; see `no_such_name`.
    """

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> NoReturn:
            """Say what is meant.

            Raises:
                AttributeError: Always.
            """
            if name in vars(cls).get("__annotations__", ()):
                # A dataclass asks whether its field has a default.
                raise AttributeError(name=name, obj=cls)
            meant = {} if name.startswith("_") else cls._meant
            text = no_such_name(cls, name, f"am.{cls.__name__}", meant)
            text = text.replace(" object has", " has", 1)
            raise AttributeError(text, name=name, obj=None)
