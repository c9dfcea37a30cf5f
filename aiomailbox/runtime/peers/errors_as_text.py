"""Errors of workers: text on the way, an exception of ours at the parent."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from aiomailbox.errors import (
    RemoteFailureError,
    RemoteTaskError,
    TransportError,
    add_note,
    safe_str,
)
from aiomailbox.policies.restart import culprit_of
from aiomailbox.runtime.failures import place_of_error, shorten, traceback_text

_TEXT_MAX: Final = 16 * 1024
_NOTES_MAX: Final = 32


class ErrorText(msgspec.Struct, frozen=True, array_like=True):
    """A worker's exception as text: nothing of it is ever executed in the parent.

    Attributes:
        kind: The name of the exception's type.
        text: What it says.
        traceback: All frames of it and of what led to it.
        notes: What was added to it.
        is_echo: Whether it only says that another task had failed before.
        operator: The operator that failed, None if it was none.
        uid: Its uid.
        location: ``file:line`` of the user's.
        record: The record as text.
        shown: The traceback without the engine's frames, "" if it is the same.
        fault: Whose fault it is.
        culprit: The name of the type of the exception that began it.
    """

    kind: str
    text: str
    traceback: str
    notes: list[str]
    is_echo: bool
    operator: str | None = None
    uid: str | None = None
    location: str | None = None
    record: str | None = None
    shown: str = ""
    fault: Literal["caller", "program", "world"] = "world"
    culprit: str = ""


def text_of_error(error: BaseException) -> ErrorText:
    """Return an exception as text; long parts are truncated.

    Example:
        >>> text = text_of_error(ValueError("no such airport"))
        >>> text.kind, text.text
        ('ValueError', 'no such airport')
    """
    lines = shorten(error)
    shown = traceback_text(error)
    operator, uid, location, record = (
        None if text is None else _cut(text) for text in place_of_error(error)
    )
    culprit = culprit_of(error)
    notes = [safe_str(note) for note in getattr(error, "__notes__", [])]
    return ErrorText(
        type(error).__name__,
        _cut(safe_str(error)),
        # The end says where it happened.
        lines[-_TEXT_MAX:],
        [_cut(note) for note in notes[:_NOTES_MAX]],
        isinstance(error, RemoteFailureError | TransportError),
        operator,
        uid,
        location,
        record,
        # Mostly the same.
        shown="" if shown == lines else shown[-_TEXT_MAX:],
        fault=culprit.fault.value,
        culprit=_cut(culprit.kind),
    )


def error_from_text(worker: str, text: ErrorText) -> RemoteTaskError:
    """Return the exception that stands for one of a worker."""
    error = RemoteTaskError(
        worker,
        text.kind,
        text.text,
        text.traceback,
        is_echo=text.is_echo,
        fault=text.fault,
        culprit=text.culprit,
        operator=text.operator,
        uid=text.uid,
        location=text.location,
        record=text.record,
    )
    for note in text.notes:
        add_note(error, note)
    if text.traceback:
        add_note(error, f"Traceback of {worker}:\n{text.shown or text.traceback}")
    return error


def _cut(text: str) -> str:
    return text[:_TEXT_MAX]
