"""Says what is meant by a name that an object of the library does not have."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn

__all__ = ["STATE_OF_ELSEWHERE", "Context", "no_such_name", "snake_case"]

STATE_OF_ELSEWHERE: Final = {
    "get_state": "get_value(descriptor)",
    "get_list_state": "get_list(descriptor)",
    "get_map_state": "get_map(descriptor)",
    "get_reducing_state": "get_reducing(descriptor)",
    "get_aggregating_state": "get_aggregating(descriptor)",
}
# What Flink and PyFlink call it.
_MEANT: Final = {
    **{name: f"state.{method}" for name, method in STATE_OF_ELSEWHERE.items()},
    "keyed_state": "state",
    "get_current_key": "current_key",
    "get_timer_service": "timer_service",
    "timers": "timer_service",
    "element_timestamp": "timestamp",
    "get_metrics_group": "metrics",
    "get_metric_group": "metrics",
    "get_index_of_this_subtask": "subtask_index",
    "get_number_of_parallel_subtasks": "parallelism",
    "get_max_number_of_parallel_subtasks": "max_parallelism",
    "get_attempt_number": "attempt",
    "get_task_name": "task_name",
}


class Context:
    """What the methods of a function object may ask; knows names of other libraries."""

    __slots__ = ()
    # The names that are meant here, by what others call them.
    meant: ClassVar[Mapping[str, str]] = _MEANT

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say what is meant.

            Raises:
                AttributeError: Always.
            """
            names = dir(type(self)) if name.startswith("_") else dir(self)
            meant = {
                other: here
                for other, here in self.meant.items()
                if here.partition(".")[0] in names
            }
            text = no_such_name(self, name, "context", meant)
            raise AttributeError(text, name=name, obj=self)


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
        found = meant[snake]
        return f"{text};{found}" if found[0] == " " else f"{text}; write {what}.{found}"
    close = difflib.get_close_matches(snake, names, n=1)
    if close:
        return f"{text}; is {what}.{close[0]} meant?"
    return f"{text}; write {what}.{instead}" if instead else text


def snake_case(name: str) -> str:
    """Return a name as PyFlink had it, where Java has another."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: f"_{found[1].lower()}", name)
