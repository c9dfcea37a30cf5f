"""Dead letters as rows of a DataFrame."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pyarrow as pa

from aiomailbox.graph.transformation import Origin, Transformation
from aiomailbox.operators.core.failures import DeadLetter, ErrorAction, OnError
from aiomailbox.records.events import OutputTag

DEAD_LETTER_COLUMNS: Final = pa.schema(
    [
        ("record", pa.string()),
        ("timestamp_ms", pa.int64()),
        ("operator", pa.string()),
        ("uid", pa.string()),
        ("attempts", pa.int32()),
        ("error_type", pa.string()),
        ("error", pa.string()),
        ("traceback", pa.string()),
    ]
)


def dead_letter_origins(items: list[Transformation]) -> list[Origin]:
    """Return where the dead letters of operators come from."""
    return [Origin(item, None, tag) for item in items for tag in _tags(item)]


def plain_letter(letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as a row of `DEAD_LETTER_COLUMNS`."""
    return {
        "record": _as_text(letter.record),
        "timestamp_ms": letter.timestamp,
        "operator": letter.operator,
        "uid": letter.uid,
        "attempts": letter.attempts,
        "error_type": letter.error_type,
        "error": letter.error,
        "traceback": letter.traceback,
    }


def _as_text(record: Any) -> str:
    """Return a record as JSON, where it has such a form, else as Python shows it."""
    if hasattr(record, "_asdict"):
        record = record._asdict()
    try:
        return msgspec.json.encode(record).decode()
    except (TypeError, ValueError):
        return repr(record)


def _tags(item: Transformation) -> list[OutputTag]:
    """Return where an operator's dead letters go."""
    arguments = getattr(item.factory, "args", ())
    named = getattr(item.factory, "keywords", {}).values()
    return [
        argument.tag
        for argument in (*arguments, *named)
        if isinstance(argument, OnError)
        and argument.action is ErrorAction.DEAD_LETTER
        and argument.tag is not None
    ]
