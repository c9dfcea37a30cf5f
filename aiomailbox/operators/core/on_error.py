"""What happens to a record whose function raised: fail, skip, or dead letter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NoReturn

from aiomailbox.errors import (
    OverdraftCeilingError,
    RecordMutatedError,
    StopTask,
    WrongTypeError,
)
from aiomailbox.records.elements import OutputTag

# What a function may raise for a record. A GeneratorExit of its own, from a generator
# that it uses, is a failure like others.
USER_ERRORS: Final = (Exception, GeneratorExit)
# What fails the task whatever on_error says.
FATAL_ERRORS: Final = (StopTask, OverdraftCeilingError, RecordMutatedError)


def is_closing(error: BaseException) -> bool:
    """Say whether ``error`` came to close the coroutine or generator that caught it.

    Such a ``GeneratorExit`` begins in the frame that catches it, and one of a user's
    function begins in the function.

    Example:
        >>> def paused():
        ...     try:
        ...         yield
        ...     except GeneratorExit as error:
        ...         print(is_closing(error))
        >>> generator = paused()
        >>> next(generator)
        >>> generator.close()
        True
    """
    traceback = error.__traceback__
    return type(error) is GeneratorExit and (
        traceback is None or traceback.tb_next is None
    )


def raise_as(failure: BaseException, error: BaseException) -> NoReturn:
    """Raise what an error was made into, with the error as its cause.

    Raises:
        BaseException: ``failure``; as it is, if that is the error itself.
    """
    if failure is error:
        raise error
    raise failure from error


class ErrorAction(Enum):
    """The three ends of a record that cannot be processed."""

    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True)
class OnError:
    """What an operator does with a record whose function raised.

    Use the constants `fail` and `skip` or the function `dead_letter`.
    """

    action: ErrorAction
    tag: OutputTag[DeadLetter] | None = None


fail: Final = OnError(ErrorAction.FAIL)
skip: Final = OnError(ErrorAction.SKIP)


def dead_letter(tag: OutputTag[DeadLetter]) -> OnError:
    """Send records that cannot be processed to a side output, as `DeadLetter`.

    Example:
        >>> dead_letter(OutputTag("failed")).tag.id
        'failed'
    """
    if not isinstance(tag, OutputTag):
        raise WrongTypeError(
            "tag", f"{tag!r} is not an OutputTag", "Write am.OutputTag('failed')."
        )
    return OnError(ErrorAction.DEAD_LETTER, tag)


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
