"""Why a job failed: the first error, whose it is, on which line, and again or not."""

from __future__ import annotations

import linecache
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, NamedTuple

import msgspec

from aiomailbox.clock import Clock
from aiomailbox.errors import (
    AioMailboxError,
    JobFailedError,
    RemoteFailureError,
    RemoteTaskError,
    TransportError,
    UsageError,
    UserFunctionError,
    WorkerDiedError,
    add_note,
    named_operator,
    safe_repr,
    safe_str,
)
from aiomailbox.graph.job_graph import JobGraph, Node
from aiomailbox.ids import OperatorId, VertexId
from aiomailbox.operators.core.user_code import (
    is_of_another_library,
    is_own_line,
    is_users,
    user_location,
)
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.runtime.job_snapshot import FailureSummary
from aiomailbox.runtime.views import TaskView, positions_of


# Where in a user's job an error happened.
class FailurePlace(NamedTuple):
    """The place that an error names; each part is None if it does not.

    Attributes:
        operator: The operator's name.
        uid: The operator's uid.
        location: ``file:line`` of the innermost line of the user's code.
        record: The record as text.
    """

    operator: str | None
    uid: str | None
    location: str | None
    record: str | None


def place_of_error(error: BaseException) -> FailurePlace:
    """Return where an error happened.

    Example:
        >>> place_of_error(ValueError("never raised"))
        FailurePlace(operator=None, uid=None, location=None, record=None)
    """
    place = FailurePlace(
        *(_text(error, name) for name in ("operator", "uid", "location", "record"))
    )
    if not place.location:
        place = place._replace(location=user_location(error) or None)
    return place


def name_call(error: BaseException, graph: JobGraph) -> None:
    """Let an error in no line of the user's name the call that made its operator.

    Args:
        error: It may name an operator; one of several of its name is not told from them.
        graph: The job.
    """
    place = place_of_error(error)
    if place.operator is None or place.location:
        return
    lines = {
        node.transformation.line
        for node in graph.nodes
        if (node.name, node.transformation.uid) == (place.operator, place.uid)
    }
    if len(lines) == 1:
        found: Any = error
        # An error of the user's may have no room for it.
        with suppress(AttributeError):
            found.location = lines.pop()


def job_failure(
    job: str, cause: BaseException, engine_traceback: str, remark: str = ""
) -> JobFailedError:
    """Return the failure of a job, whose last lines say where in it that was.

    Its message may be long, and what its cause says stands above all frames.

    Args:
        job: The job's name.
        cause: What failed first.
        engine_traceback: See `JobFailedError`.
        remark: What else there is to say.
    """
    failure = JobFailedError(job, cause, engine_traceback, remark)
    failure.__cause__ = cause
    place = place_of_error(cause)
    failure.operator, failure.uid, failure.location, failure.record = place
    where: list[str] = []
    if place.operator is not None:
        where.append(f"in {named_operator(place.operator, place.uid)}")
    if place.location is not None:
        where.append(f"at {place.location}{_source(place.location)}")
    if where:
        add_note(failure, ", ".join(where))
    if place.record is not None:
        add_note(failure, f"the record: {place.record}")
    return failure


def _source(location: str) -> str:
    """Return the text of a line of the user's, as far as it can be read here."""
    file, _, line = location.rpartition(":")
    text = linecache.getline(file, int(line)).strip() if line.isdecimal() else ""
    return f": {text}" if text else ""


def _text(error: BaseException, name: str) -> str | None:
    """Return an attribute of an error, which may be of a type of the user's."""
    try:
        value = getattr(error, name, None)
    except Exception:  # noqa: BLE001 -- a property of the user's
        return None
    return value if isinstance(value, str) else None


# Which of several errors counts: the first one that is not an echo.
class FirstError:
    """The error that counts; the others are its notes.

    Attributes:
        error: The error, or None.

    Example:
        >>> first = FirstError()
        >>> first.add(ValueError("a"))
        >>> first.add(KeyError("b"))
        >>> first.error, first.error.__notes__
        (ValueError('a'), ["later error: KeyError('b')"])
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def add(self, error: BaseException, note: str | None = None) -> None:
        """Keep an error if it counts, else note it.

        Args:
            error: The error.
            note: What to say about it if it counts.
        """
        first = self.error
        # A broken connection often arrives before the reason why it broke.
        if first is None or (is_echo(first) and not is_echo(error)):
            if note is not None:
                add_note(error, note)
            self.error = error
            if first is not None:
                add_note(error, f"also: {safe_repr(first)}")
        elif error is not first:
            add_note(first, f"later error: {safe_repr(error)}")


def is_echo(error: BaseException) -> bool:
    """Say whether an error may only report another one.

    What tells of a failure travels on other ways than what follows from it, and may
    come later.
    """
    if isinstance(error, RemoteTaskError):
        return error.is_echo
    return isinstance(error, RemoteFailureError | TransportError)


# What a user is shown of a failure: the lines of the user's own, and one of ours.
def shorten(failure: BaseException) -> str:
    """Leave out the engine's frames of a failure and of what led to it.

    Of a failure that is no `AioMailboxError`, which is one of the engine itself, all
    stay.

    Returns:
        The text of all frames, as they were.
    """
    texts = [traceback_text(failure)]
    if not isinstance(failure, AioMailboxError):
        return texts[0]
    waiting: list[BaseException | None] = [failure]
    # Errors may refer to each other in a ring.
    seen: set[int] = set()
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        if isinstance(error, RemoteTaskError) and error.remote_traceback:
            texts.append(f"Traceback of {error.worker}:\n{error.remote_traceback}")
        # A user's error may have attributes of its own making; then it stays as it is.
        with suppress(BaseException):
            shown = _from_the_users_first
            if isinstance(error, UsageError):
                # What the user has to change needs no line of ours.
                shown = _from_what_is_not_ours
            elif isinstance(error, UserFunctionError) and error.__cause__ is not None:
                # Its cause, shown before it, has the user's lines.
                shown = users_part
            error.__traceback__ = shown(error.__traceback__)
            waiting += [error.__cause__, error.__context__]
            if isinstance(error, BaseExceptionGroup):
                waiting += error.exceptions
    return "\n".join(texts)


def short_text(failure: BaseException) -> str:
    """Return a failure as text as `shorten` leaves it, and leave it as it is.

    The engine's own failures have all of their frames.
    """
    if not isinstance(failure, AioMailboxError):
        return traceback_text(failure)
    try:
        text = traceback.TracebackException.from_exception(failure)
        waiting: list[traceback.TracebackException | None] = [text]
        while waiting:
            each = waiting.pop()
            if each is None:
                continue
            first = _first_shown([frame.filename for frame in each.stack])
            each.stack = traceback.StackSummary.from_list(each.stack[first:])
            waiting += [each.__cause__, each.__context__, *(each.exceptions or ())]
        return "".join(text.format())
    except BaseException:  # noqa: BLE001 -- a user's error may raise anything
        return traceback_text(failure)


def traceback_text(failure: BaseException) -> str:
    """Return a failure and what led to it as text, also if the user's error cannot."""
    try:
        return "".join(traceback.format_exception(failure))
    except BaseException as broken:  # noqa: BLE001 -- a user's error may raise anything
        return f"<the traceback cannot be shown: {type(broken).__name__}>"


def users_part(first: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the user's first frame on, None if there is none."""
    while first is not None and not is_users(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    return first


def _from_the_users_first(first: TracebackType | None) -> TracebackType | None:
    each, files = first, list[str]()
    while each is not None:
        files.append(each.tb_frame.f_code.co_filename)
        each = each.tb_next
    for _ in range(_first_shown(files)):
        assert first is not None, "there are as many frames as files"
        first = first.tb_next
    return first


def _from_what_is_not_ours(first: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the user's first frame on, or another library's, or None."""
    shown = users_part(first)
    while shown is None and first is not None:
        if is_of_another_library(first.tb_frame.f_code.co_filename):
            shown = first
        first = first.tb_next
    return shown


def _first_shown(files: Sequence[str]) -> int:
    """Return the index of the user's first frame, of a library's, or of the last one."""
    for is_shown in (is_users, lambda file: not is_own_line(file)):
        for index, file in enumerate(files):
            if is_shown(file):
                return index
    return max(len(files) - 1, 0)


# Reports once that a job has failed permanently: to the log, and to its subscriber.


_TRACEBACK_MAX: Final = 16 * 1024
# What a page shows of one.
_SHOWN_MAX: Final = 8 * 1024
_TEXT_MAX: Final = 1_000
_FAILURES_MAX: Final = 20


class FailureReport:
    """The one report of a job's failure, and what has failed before.

    Args:
        log: A structlog logger with the job bound.
        clock: The job's clock.

    Attributes:
        failures: The last failures, also those after which the job started again.
    """

    def __init__(self, log: Any, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self.failures: deque[FailureSummary] = deque(maxlen=_FAILURES_MAX)
        self._has_failed = False
        self._is_logged = False
        self._call: Callable[[], None] | None = None

    def announce(self, error: BaseException) -> None:
        """Report that the job fails, while its tasks are still being ended.

        An error that only reports another one is not logged: that one comes with `add`.
        """
        # An echo is reported later, if nothing better comes.
        if not is_echo(error):
            self._write(error)
        self._notify()

    def add(self, error: BaseException) -> None:
        """Report an error that the job keeps, unless one has been reported."""
        self._write(error)
        self._notify()

    def keep(self, error: BaseException, restarts: int) -> None:
        """Keep a failure for people to look at.

        Args:
            error: What failed.
            restarts: How often the job had been started again before.
        """
        place = place_of_error(error)
        if self.failures:
            # Each look at the job has all of them.
            before = msgspec.structs.replace(self.failures[-1], traceback="")
            self.failures[-1] = before
        self.failures.append(
            FailureSummary(
                error=f"{type(error).__name__}: {safe_str(error)}"[:_TEXT_MAX],
                at_ms=self._clock.now_ms(),
                restarts=restarts,
                operator=place.operator,
                uid=place.uid,
                line=place.location,
                record=place.record,
                traceback=short_text(error)[-_SHOWN_MAX:].rstrip(),
            )
        )

    def call(self, function: Callable[[], None] | None) -> None:
        """Call a function when the job has failed: once, at once if it has already."""
        self._call = function
        if self._has_failed:
            self._notify()

    def _notify(self) -> None:
        self._has_failed = True
        function, self._call = self._call, None
        if function is not None:
            function()

    def _write(self, error: BaseException) -> None:
        # What ends the program is no failure of the job's.
        if self._is_logged or isinstance(error, KeyboardInterrupt | SystemExit):
            return
        self._is_logged = True
        place = place_of_error(error)
        about = {
            "operator": place.operator,
            "uid": place.uid,
            "line": place.location,
            "record": place.record,
        }
        self._log.error(
            "the job failed",
            **{name: text for name, text in about.items() if text is not None},
            error=f"{type(error).__name__}: {safe_str(error)}",
            # The end says where it happened.
            traceback=short_text(error)[-_TRACEBACK_MAX:].rstrip(),
        )


# Notices that a job fails at one place again and again, and says what was read there.
#
# Theory of operation: a record that no attempt survives lies behind the checkpoint that
# all of them went on from. Its exact position is known where the function's error names
# the record; what its sources had read when the last attempt ended bounds it from
# above. Nothing is coordinated for that: tasks that have ended say how far their
# readers were.


_SPLITS_MAX: Final = 5


class _Failure(NamedTuple):
    kind: str
    place: FailurePlace

    @property
    def is_of_a_record(self) -> bool:
        """Whether a record is to blame, or may be: one that ended its whole process."""
        return self.place.record is not None or self.kind == WorkerDiedError.__name__


class PoisonWatch:
    """Counts the failures in a row that come from one place.

    Args:
        graph: The job.
    """

    def __init__(self, graph: JobGraph) -> None:
        self._graph = graph
        self._last: _Failure | None = None
        self._times = 0

    def on_failure(self, error: BaseException) -> None:
        """Take a failure of the job, or of a part of it."""
        failure = _Failure(type(error).__name__, place_of_error(error))
        self._times = self._times + 1 if failure == self._last else 1
        self._last = failure

    def describe(
        self,
        restored_id: int,
        restored: Mapping[OperatorId, Iterable[OperatorSnapshot | None]],
        views: Collection[TaskView],
    ) -> str:
        """Return what people are to know; "" if the last failure was not one of several.

        Args:
            restored_id: The checkpoint that the last attempt went on from, -1 for none.
            restored: What operators went on from.
            views: The tasks, which have ended.
        """
        last = self._last
        if last is None or self._times < 2 or not last.is_of_a_record:
            return ""
        place = last.place
        where = "" if place.operator is None else f" in operator {place.operator!r}"
        record = "" if place.record is None else f", with record {place.record}"
        since = "the beginning" if restored_id < 0 else f"checkpoint {restored_id}"
        has = "may have" if place.record is None else "has"
        read = [
            text
            for node in self._sources(place)
            for text in _read_by(
                node,
                self._graph.vertex_of(node).id,
                restored.get(node.operator_id, ()),
                views,
            )
        ]
        found = f": {'; '.join(read)}" if read else ""
        return (
            f"{self._times} attempts in a row failed{where} the same way{record}: "
            f"what was read after {since} {has} something in it that fails every "
            f"time{found}. Skip such records, or emit them as dead letters, with "
            "on_error=am.skip or am.dead_letter(tag)"
        )

    def _sources(self, place: FailurePlace) -> list[Node]:
        """Return the sources that feed an operator; all if it is not known."""
        waiting = [
            node
            for node in self._graph.nodes
            if place.operator is None
            or (node.name, node.transformation.uid) == (place.operator, place.uid)
        ]
        seen: dict[int, Node] = {}
        while waiting:
            node = waiting.pop()
            if node.index not in seen:
                seen[node.index] = node
                waiting += [one.source for united in node.in_edges for one in united]
        return [
            seen[index]
            for index in sorted(seen)
            if seen[index].transformation.source is not None
        ]


def _read_by(
    node: Node,
    vertex: VertexId,
    restored: Iterable[OperatorSnapshot | None],
    views: Collection[TaskView],
) -> Iterator[str]:
    """Yield what of each split a source has read since it was restored."""
    began: dict[str, str] = {}
    for snapshot in restored:
        if snapshot is not None:
            began |= positions_of(snapshot.own.elements("splits"))
    ended: dict[str, str] = {}
    for view in views:
        if view.vertex == vertex:
            ended |= view.positions
    known = [*began, *(one for one in ended if one not in began)]
    for split_id in known[:_SPLITS_MAX]:
        start = began.get(split_id, "its beginning")
        end = ended.get(split_id, "its end, or somewhere before")
        if start != end:
            yield f"source {node.name!r}, split {split_id!r}, from {start} to {end}"
    if len(known) > _SPLITS_MAX:
        yield f"and {len(known) - _SPLITS_MAX} more splits"
