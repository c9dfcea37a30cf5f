"""The messages between a job's parent process and its workers, as frames.

Theory of operation: the frames are those of the data connections, under an id of their
own; the body is the number of an attempt and one tagged struct in MessagePack. Messages
of an older attempt are recognised by its number. A worker runs the user's code, so the
parent believes nothing that it did not check: types by decoding, numbers by placement.
What the parent sends may hold pickles: it has made the worker.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import msgspec

from aiomailbox.errors import (
    CorruptStreamError,
    RemoteFailureError,
    RemoteTaskError,
    TransportError,
    add_note,
    safe_str,
)
from aiomailbox.exchange.remote.wire import FRAME_HEADER, MAGIC, frame
from aiomailbox.ids import SubtaskId
from aiomailbox.policies.restart import culprit_of
from aiomailbox.runtime.failures import place_of_error, shorten, traceback_text
from aiomailbox.runtime.held_loop import HeldLoop
from aiomailbox.runtime.views import TaskView
from aiomailbox.task.messages import (
    Acknowledged,
    DataEnded,
    Declined,
    SplitRequest,
    TaskCancelled,
    TaskEnded,
    TaskEvent,
    TaskRunning,
)

# Errors of workers: text on the way, an exception of ours at the parent.


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
    fault: Literal["caller", "program", "lasting", "world"] = "world"
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


_CONTROL: Final = 72
# What a worker may send at once: the committables of a sink, above all.
FRAME_BYTES_MAX: Final = 64 << 20
# Beside them are a name and numbers.
COMMITTABLES_BYTES_MAX: Final = FRAME_BYTES_MAX - 64 * 1024
_Attempt = Annotated[int, msgspec.Meta(ge=0)]


class _Message(msgspec.Struct, tag=True, array_like=True):
    """Sent as an array: its tag, then its fields."""


class LimitText(msgspec.Struct, frozen=True, array_like=True):
    """A rate limit; ``number`` is its place among those the parent sent, or -1."""

    number: int
    count: float
    per_s: float
    name: str | None
    burst: float | None
    budget: float | None = None
    unit: str = "units"
    on_refusal: Literal["all", "call"] = "all"


class Begin(_Message):
    """Parent: this is the job; get ready for it."""

    peer: int
    limits: list[LimitText]
    payload: bytes


class Deploy(_Message):
    """Parent: all are ready, and listen here; run your tasks of this plan, pickled."""

    addresses: list[tuple[str, int | None]]
    plan: bytes


class Tell(_Message):
    """Parent: a command, pickled, for these tasks of yours; None for all."""

    tasks: list[SubtaskId] | None
    command: bytes


class Granted(_Message):
    """Parent: the first ``count`` leases of the open request may go on.

    If they were refused, they may not: the budget is exhausted.
    """

    limit: LimitText
    count: int
    is_refused: bool = False


class AlignmentLimit(_Message):
    """Parent: readers of a group may go up to here."""

    group: str
    limit_ms: int


class Cancel(_Message):
    """Parent: end these tasks of yours; None for all."""

    tasks: list[SubtaskId] | None = None


class Shutdown(_Message):
    """Parent: everything is over, go."""


class Ready(_Message):
    """Worker: I know the job, listen here for data, and write records this way."""

    host: str
    port: int | None
    codec_digest: bytes


class Prepared(TaskEvent):
    """Worker: a task's sink prepared this; values as `PythonSerializer` writes them."""

    sink: str
    count: int
    values: bytes


class Lease(_Message):
    """Worker: so many wait for units of a limit, in this order."""

    limit: LimitText
    weights: list[float]


class Used(_Message):
    """Worker: so many of the units that were granted are used now."""

    limit: LimitText
    weight: float


class Pause(_Message):
    """Worker: a server wants a limit to pause."""

    limit: LimitText
    delay_s: float


class AlignmentReport(_Message):
    """Worker: how far a reader is."""

    group: str
    max_drift_ms: int
    reader: str
    watermark_ms: int


class Failed(_Message):
    """Worker: I failed, outside of any task."""

    error: BaseException


class Snapshot(_Message):
    """Worker: what can be seen of my tasks."""

    tasks: list[TaskView]


class Ended(_Message):
    """Worker: all my tasks of this attempt have ended, and have said all they had to."""


class Beat(_Message):
    """Worker, from a thread: my process lives; and what has held its loop, how long."""

    held_s: float
    held: HeldLoop | None


FromParent = Begin | Deploy | Tell | Granted | AlignmentLimit | Cancel | Shutdown
FromWorker = (
    Ready
    | TaskRunning
    | DataEnded
    | SplitRequest
    | Acknowledged
    | Declined
    | TaskCancelled
    | TaskEnded
    | Prepared
    | Lease
    | Used
    | Pause
    | AlignmentReport
    | Failed
    | Snapshot
    | Ended
)


def _as_text(value: Any) -> Any:
    """Return what stands for an exception in a message.

    Raises:
        TypeError: If it is something else that cannot be sent.
    """
    if isinstance(value, BaseException):
        return text_of_error(value)
    raise TypeError(f"{type(value).__name__} cannot be sent")


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_as_text)
_FROM_PARENT: Final[Any] = msgspec.msgpack.Decoder(tuple[_Attempt, FromParent])
_BEAT: Final[Any] = msgspec.msgpack.Decoder(tuple[_Attempt, Beat])


def encode(message: msgspec.Struct, attempt: int = 0) -> bytes:
    """Return a message as one frame.

    Example:
        >>> encode(Cancel(), 3).hex()
        '00000014badc0ffe48920392a643616e63656cc0'
    """
    try:
        body = _ENCODER.encode((attempt, message))
    except UnicodeEncodeError:
        # A name or a path with bytes that are no text.
        body = _ENCODER.encode((attempt, _without_surrogates(message)))
    return frame(_CONTROL, body)


def _without_surrogates(value: Any) -> Any:
    """Replace what UTF-8 cannot carry, in all texts of a message."""
    built_in: Any = msgspec.to_builtins(
        value, builtin_types=(bytes,), enc_hook=_as_text
    )
    if isinstance(built_in, str):
        return built_in.encode("utf-8", "backslashreplace").decode()
    if isinstance(built_in, list | tuple):
        return [_without_surrogates(each) for each in built_in]
    if isinstance(built_in, dict):
        return {
            _without_surrogates(key): _without_surrogates(each)
            for key, each in built_in.items()
        }
    return built_in


def body_bytes(header: bytes | bytearray | memoryview, bytes_max: int) -> int:
    """Return how long the body is after a frame's first nine bytes.

    Raises:
        CorruptStreamError: If it is no frame of ours, or longer than ``bytes_max``.
    """
    length, magic, number = FRAME_HEADER.unpack_from(header)
    if magic != MAGIC or number != _CONTROL:
        raise CorruptStreamError("the bytes are no frame of the control channel")
    size = length - FRAME_HEADER.size
    if not 0 < size <= bytes_max:
        raise CorruptStreamError(
            f"a control message of {size} bytes exceeds {bytes_max}"
        )
    return int(size)


def decode_from_parent(body: bytes | memoryview) -> tuple[int, FromParent]:
    """Return the attempt that a message of the parent is about, and the message.

    Raises:
        CorruptStreamError: If it is none.
    """
    return _decode(_FROM_PARENT, body)


def decode_from_worker(
    body: bytes | memoryview, worker: str = "a worker"
) -> tuple[int, FromWorker]:
    """Return the attempt that a message of a worker is about, and the message.

    Raises:
        CorruptStreamError: If it is none.
    """
    return _decode(_from_worker(worker), body)


@lru_cache(maxsize=256)
def _from_worker(worker: str) -> Any:
    def error(_: type, built_in: Any) -> RemoteTaskError:
        return error_from_text(worker, msgspec.convert(built_in, ErrorText))

    return msgspec.msgpack.Decoder(tuple[_Attempt, FromWorker], dec_hook=error)


def decode_beat(body: bytes | memoryview) -> Beat:
    """Return a worker's heartbeat.

    Raises:
        CorruptStreamError: If it is none.
    """
    _, beat = _decode(_BEAT, body)
    assert isinstance(beat, Beat), "the decoder takes nothing else"
    return beat


def _decode(decoder: Any, body: bytes | memoryview) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptStreamError(
            f"a control message cannot be read: {error}"
        ) from error
