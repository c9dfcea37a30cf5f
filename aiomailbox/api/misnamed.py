"""Says what is meant by a name that streams and environments do not have."""

from __future__ import annotations

from typing import Final

from aiomailbox.operators.core.misnamed import no_such_name, snake_case

__all__ = ["no_such_method", "no_such_verb"]

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
_MEANT_OF_ENV: Final = {
    "add_source": "from_source(...)",
    "from_elements": "from_collection([...])",
    "from_data": "from_collection([...])",
    "from_list": "from_collection([...])",
    "from_iterable": "from_collection(values)",
    "from_dataframe": "from_source(am.SparkSource(df))",
    "read_text_file": "from_source(am.FileSource(path))",
    "read_file": "from_source(am.FileSource(path))",
    "get_execution_plan": "explain()",
}
_GIVEN_WHEN_MADE: Final = ("parallelism", "max_parallelism", "clock", "config")


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
    snake = snake_case(name)
    subclasses: list[type] = kind.__subclasses__()
    is_verb = not name.startswith("_") and not hasattr(kind, snake)
    if is_verb and any(snake in vars(keyed) for keyed in subclasses):
        return f"{name} needs a key: write stream.key_by(...).{snake}(...)"
    return no_such_name(kind, name, "stream", _MEANT)


def no_such_method(kind: type, name: str) -> str:
    """Return what to say where an environment has no such attribute.

    Example:
        >>> from aiomailbox.api import StreamExecutionEnvironment
        >>> no_such_method(StreamExecutionEnvironment, "fromCollection")
        "...has no attribute 'fromCollection'; write env.from_collection(...)"
        >>> no_such_method(StreamExecutionEnvironment, "set_parallelism")
        "...; write am.StreamExecutionEnvironment(parallelism=...)"
    """
    setting = snake_case(name).removeprefix("set_")
    if setting in _GIVEN_WHEN_MADE:
        text = f"{kind.__name__!r} object has no attribute {name!r}"
        return f"{text}; write am.{kind.__name__}({setting}=...)"
    return no_such_name(kind, name, "env", _MEANT_OF_ENV)
