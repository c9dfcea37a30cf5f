"""What each operator waits for, as a sentence, and which one holds the job up (pure).

Theory of operation: a task that waits for room or input waits for another task; one
that waits for its calls or limit, or is in its function, is what others wait for. So
the operator that spends most of its time in causes of its own is the bottleneck; a
source that waits for what it reads is one, if it does so more than any operator works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from aiomailbox.operators.core.operator import BlockCause
from aiomailbox.runtime.loop_watch import BlockShare
from aiomailbox.runtime.views import TaskView

# An operator that holds others up has something of its own for that part of the time.
_SHARE_MIN: Final = 0.3
_MINUTE_S: Final = 55.0
_SKEWED: Final = 2.0
_OWN: Final = frozenset(
    {
        BlockCause.LIMIT,
        BlockCause.CALLS,
        BlockCause.RETRY,
        BlockCause.KEY,
        BlockCause.AWAIT,
        BlockCause.FUNCTION,
    }
)


class OperatorPlace(msgspec.Struct, frozen=True):
    """Where an operator is in the job.

    Attributes:
        label: What it is called in the job.
        name: What it is called in its tasks.
        uid: The user's stable name for it, or None.
        vertex: The vertex whose tasks run it.
        readers: The labels of the operators that read what its task emits.
    """

    label: str
    name: str
    uid: str | None
    vertex: int
    readers: tuple[str, ...] = ()


class Bottleneck(msgspec.Struct, frozen=True, kw_only=True):
    """The operator that holds a job up, and why.

    Attributes:
        operator: Its label.
        uid: Its uid, or None.
        cause: What it waits for, or does.
        share: For how much of the time, from 0 to 1.
        observed_s: How long it was looked at, seconds.
        subtask_index: The subtask that does so most, from 0.
        why: All of this as a sentence.

    Concept:
        docs/observability.md.
    """

    operator: str
    uid: str | None
    cause: BlockCause
    share: float
    observed_s: float
    subtask_index: int
    why: str

    def __str__(self) -> str:
        return self.why


def blocked_sentence(place: OperatorPlace, tasks: Sequence[TaskView]) -> str:
    """Return what an operator waits for most, as a sentence; "" before the first look.

    Args:
        place: The operator.
        tasks: All tasks of the job.
    """
    mine = [task for task in tasks if task.vertex == place.vertex and task.blocked]
    if not mine:
        return ""
    shares: dict[str, float] = {}
    for task in mine:
        for share in task.blocked:
            text = _text(place, share)
            shares[text] = shares.get(text, 0.0) + share.share / len(mine)
    text = max(shares, key=lambda each: shares[each])
    observed_s = max(share.observed_s for task in mine for share in task.blocked)
    return f"{place.label} {text}, {_of_time(shares[text], observed_s)}"


def find_operator(
    places: Iterable[OperatorPlace], tasks: Sequence[TaskView]
) -> Bottleneck | None:
    """Return the operator that holds the job up; None if none does.

    Args:
        places: All operators, sources first; of equals the last one is named.
        tasks: All tasks.
    """
    found: tuple[float, OperatorPlace, TaskView] | None = None
    for place in places:
        for task in tasks:
            if task.vertex == place.vertex:
                share = sum(one.share for one in _own(place, task))
                if share >= _SHARE_MIN and (found is None or share >= found[0]):
                    found = share, place, task
    if found is None:
        return None
    share, place, task = found
    most = _most(_own(place, task))
    observed_s = most.observed_s
    why = f"{place.label} {_text(place, most)}, {_of_time(share, observed_s)}"
    return Bottleneck(
        operator=place.label,
        uid=place.uid,
        cause=most.cause,
        share=share,
        observed_s=observed_s,
        subtask_index=task.subtask_index,
        why=why + _skew(place, task, tasks),
    )


def _own(place: OperatorPlace, task: TaskView) -> list[BlockShare]:
    """Return what a task does because of an operator."""
    return [
        share
        for share in task.blocked
        if place.name in share.operator.split(" -> ")
        and (share.cause in _OWN or share.cause is BlockCause.SOURCE)
    ]


def _most(shares: list[BlockShare]) -> BlockShare:
    """Return the cause that has most of the time, with its most frequent line."""
    by_cause: dict[BlockCause, float] = {}
    for share in shares:
        by_cause[share.cause] = by_cause.get(share.cause, 0.0) + share.share
    cause = max(by_cause, key=lambda each: by_cause[each])
    return next(share for share in shares if share.cause is cause)


def _skew(place: OperatorPlace, worst: TaskView, tasks: Sequence[TaskView]) -> str:
    """Return what is to be said of uneven subtasks, "" if they are even."""
    counts = {
        task.subtask_index: _records(place, task)
        for task in tasks
        if task.vertex == place.vertex
    }
    total, mine = sum(counts.values()), counts[worst.subtask_index]
    if len(counts) < 2 or not total or mine * len(counts) < _SKEWED * total:
        return ""
    keys = next((one.hot_keys for one in worst.operators if one.name == place.name), [])
    hot = f", most of all {keys[0].key}" if keys else ""
    return (
        f"; subtask {worst.subtask_index + 1} of {len(counts)} has "
        f"{mine / total:.0%} of its records: the keys are skewed{hot}"
    )


def _records(place: OperatorPlace, task: TaskView) -> int:
    """Return how many records a subtask was given, and has waiting."""
    waiting = task.metrics.get("input_queue_records")
    given = next(
        (
            count
            for operator in task.operators
            if operator.name == place.name
            and isinstance(count := operator.metrics.get("num_records_in"), int)
        ),
        0,
    )
    return given + (waiting if isinstance(waiting, int) else 0)


def _of_time(share: float, observed_s: float) -> str:
    period = "minute" if observed_s >= _MINUTE_S else f"{max(observed_s, 1.0):.0f} s"
    return f"{share * 100:.0f} % of the last {period}"


_TEXTS: Final[dict[BlockCause, Callable[[str], str]]] = {
    BlockCause.INPUT: lambda _: "waits for input",
    BlockCause.SOURCE: lambda _: "waits for what it reads",
    BlockCause.LOOP: lambda _: "waits for its turn on the event loop",
    BlockCause.LIMIT: lambda what: (
        f"waits for limiter {what}" if what else "waits for its limiter"
    ),
    BlockCause.CALLS: lambda what: f"waits for its calls ({what})",
    BlockCause.RETRY: lambda _: "waits to retry calls that failed",
    BlockCause.KEY: lambda _: "waits for calls of the same key",
    BlockCause.AWAIT: lambda what: (
        "awaits its function, for one record at a time" + (f" ({what})" if what else "")
    ),
    BlockCause.FUNCTION: lambda what: (
        "runs its function" + (f" ({what})" if what else "")
    ),
}


def _text(place: OperatorPlace, share: BlockShare) -> str:
    if share.cause is BlockCause.OUTPUT:
        readers = " and ".join(place.readers)
        return (
            f"waits for room: {readers} falls behind" if readers else "waits for room"
        )
    if not share.operator or place.name in share.operator.split(" -> "):
        return _TEXTS[share.cause](share.what)
    return f"waits for {share.operator}"
