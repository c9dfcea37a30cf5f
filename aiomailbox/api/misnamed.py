"""Says what is meant by a name that streams do not have."""

from __future__ import annotations

import difflib
import re
from typing import Final

__all__ = ["no_such_verb"]

# What other libraries call it.
_MEANT: Final = {
    "print": "sink_to(print), or `await stream.show()` for the first records",
    "pprint": "sink_to(print), or `await stream.show()` for the first records",
    "add_sink": "sink_to(...)",
    "foreach": "sink_to(function)",
    "for_each": "sink_to(function)",
    "sum": "key_by(...).aggregate(am.sum_(field))",
    "min": "key_by(...).aggregate(am.min_(field))",
    "max": "key_by(...).aggregate(am.max_(field))",
    "group_by": "key_by(...)",
    "to_list": "collect(), awaited",
    "execute_and_collect": "collect(), awaited",
    "time_window": "window(am.TumblingEventTimeWindows.of(...))",
}


def no_such_verb(kind: type, name: str) -> str:
    """Return what to say where a stream has no such attribute.

    Args:
        kind: The class of the stream.
        name: What was asked for.

    Example:
        >>> from aiomailbox.api import DataStream
        >>> no_such_verb(DataStream, "keyBy")
        "'DataStream' object has no attribute 'keyBy'; write stream.key_by(...)"
        >>> no_such_verb(DataStream, "reduce")
        'reduce needs a key: write stream.key_by(...).reduce(...)'
    """
    text = f"{kind.__name__!r} object has no attribute {name!r}"
    # As PyFlink had it, and Java has it.
    snake = re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: f"_{found[1].lower()}", name)
    if name.startswith("_"):
        return text
    if hasattr(kind, snake):
        return f"{text}; write stream.{snake}(...)"
    subclasses: list[type] = kind.__subclasses__()
    if any(snake in vars(keyed) for keyed in subclasses):
        return f"{name} needs a key: write stream.key_by(...).{snake}(...)"
    if snake in _MEANT:
        return f"{text}; write stream.{_MEANT[snake]}"
    verbs = [verb for verb in dir(kind) if not verb.startswith("_")]
    close = difflib.get_close_matches(snake, verbs, n=1)
    return f"{text}; is stream.{close[0]} meant?" if close else text
