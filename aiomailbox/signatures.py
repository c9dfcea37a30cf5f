"""Whether a function can be called with so many arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def accepts(function: Callable[..., Any], arity: int) -> bool:
    """Return whether a function can be called with so many positional arguments.

    True where the signature is unknown, as of some built-in functions.

    Example:
        >>> accepts(divmod, 2), accepts(lambda: 1, 2), accepts(max, 2)
        (True, False, True)
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*range(arity))
    except TypeError:
        return False
    return True
