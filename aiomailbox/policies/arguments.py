"""Checks of arguments: numbers, and paths of this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from aiomailbox.errors import InvalidArgumentError, WrongTypeError


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
