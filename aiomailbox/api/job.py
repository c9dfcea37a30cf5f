"""A running job as its user sees it."""

from __future__ import annotations

import asyncio
import html
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import timedelta
from itertools import count
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    NoReturn,
    Protocol,
)
from weakref import WeakSet, WeakValueDictionary

from aiomailbox import supervision
from aiomailbox.api.stream import DataStream
from aiomailbox.api.verbs import folded, looking_on, verb, warn_if_loop_ends
from aiomailbox.connectors.inbox import (
    Answers,
    Inbox,
    Publication,
    Questions,
    Subscription,
)
from aiomailbox.durations import duration_s
from aiomailbox.errors import (
    AsyncTimeoutError,
    IllegalStateError,
    JobCancelledError,
    JobFailedError,
    UsageError,
)
from aiomailbox.graph.describe import describe_svg
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.operators.core.user_code import is_own_line
from aiomailbox.records.events import SnapshotType, StopMode
from aiomailbox.runtime.bottleneck import BackpressureReport, Bottleneck
from aiomailbox.runtime.config import JobState
from aiomailbox.runtime.coordinator import CheckpointCoordinator
from aiomailbox.runtime.job_snapshot import JobMetrics, JobSnapshot
from aiomailbox.runtime.master import WITHIN, JobMaster, JobResult
from aiomailbox.runtime.observer import JobObserver
from aiomailbox.runtime.stuck_watch import await_tree
from aiomailbox.runtime.views import (
    CheckpointView,
    CompletedCheckpoint,
    place_of_savepoint,
    record_totals,
)
from aiomailbox.signatures import (
    Misnamed,
    check_choice,
    check_count,
    check_type,
    explained,
)
from aiomailbox.supervision import check_loop, outlast
from aiomailbox.typevars import T

# The body of a block in which a job runs: what becomes of it when the job fails.
#
# Concept:
#     asyncio, ``TaskGroup``: the body is cancelled once, and that is taken back at the end.


class Body:
    """The running asyncio task, for as long as it is in the block.

    Args:
        is_cancelled: Whether a failure of the job cancels it.

    Attributes:
        loop: The event loop on which it and the job run.
    """

    def __init__(self, *, is_cancelled: bool) -> None:
        task = asyncio.current_task()
        assert task is not None, "a block is entered by an asyncio task"
        self.loop: asyncio.AbstractEventLoop = task.get_loop()
        self._task: asyncio.Task[Any] = task
        self._cancels_before = task.cancelling()
        # It is to be cancelled, and nothing is in the way.
        self._may_cancel = is_cancelled
        self._has_failed = False
        self._is_cancelled = False
        self._waits = 0

    def on_failed(self) -> None:
        """Be notified that the job has failed."""
        self._has_failed = True
        self._interrupt()

    @contextmanager
    def told(self) -> Iterator[None]:
        """Leave it alone while it waits for something that raises the job's failure."""
        if asyncio.current_task() is not self._task:
            yield
            return
        self._waits += 1
        try:
            yield
        except JobFailedError:
            self._may_cancel = False
            raise
        finally:
            self._waits -= 1
            self._interrupt()

    async def leave(self) -> bool:
        """Take the cancellation back, and say whether it was the only one.

        The body is not cancelled any more from now on.

        Raises:
            asyncio.CancelledError: If it was cancelled from outside, too.
        """
        self._may_cancel = False
        if not self._is_cancelled:
            return False
        self._is_cancelled = False
        met: asyncio.CancelledError | None = None
        try:
            # One that is not delivered yet must not hit what comes after the block.
            await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            met = error
        is_only = self._task.uncancel() <= self._cancels_before
        if met is not None and not is_only:
            raise met
        return is_only

    def _interrupt(self) -> None:
        if self._has_failed and self._may_cancel and not self._waits:
            self._may_cancel = False
            self._is_cancelled = self._task.cancel("the job of the block has failed")


# All of this program that are still referenced, in the order of their start: by whoever
# has started them, as long as they run.
_held: WeakValueDictionary[int, JobClient] = WeakValueDictionary()
_numbers: Final = count()


class JobWatcher(Protocol):
    """An object that is told of each job that starts, as a page is."""

    def add(self, job: JobClient) -> None:
        """Take note of a job that starts."""


_watchers: WeakSet[JobWatcher] = WeakSet()


def watch_jobs(watcher: JobWatcher) -> None:
    """Tell of each job that starts from now on, as long as the watcher is referenced."""
    _watchers.add(watcher)


_ENDED: Final = {
    JobState.FINISHED: "has finished",
    JobState.FAILED: "has failed",
    JobState.CANCELED: "was cancelled",
}


def inboxes_of(graph: JobGraph) -> list[Inbox[Any]]:
    """Return the inboxes that a job reads."""
    sources = [node.transformation.source for node in graph.nodes]
    return [source for source in sources if isinstance(source, Inbox)]


@contextmanager
def inboxes_kept_open(graph: JobGraph) -> Iterator[None]:
    """Let the inboxes of a job take records that begins after the block."""
    inboxes = inboxes_of(graph)
    for inbox in inboxes:
        inbox._begin()
    try:
        yield
    except BaseException:
        for inbox in inboxes:
            inbox._end("the job that was to take it over did not begin")
        raise
    for inbox in inboxes:
        inbox._hand_over()


def held_jobs() -> list[JobClient]:
    """Return the jobs that this program has started and still references, oldest first."""
    return [job for _, job in sorted(_held.items())]


def running_job(identity: str) -> JobClient | None:
    """Return the job with an identity that runs on this event loop, if there is one.

    One that is about to end because it failed or was cancelled does not run any more.
    """
    loop = asyncio.get_running_loop()
    for job in held_jobs():
        if (
            job._job.services.job_id == identity
            and job._body.loop is loop
            and job.state in {JobState.CREATED, JobState.RUNNING, JobState.RESTARTING}
        ):
            return job
    return None


class _InboxWatch:
    """Says once of a job whose end is awaited that it waits for open inboxes."""

    def __init__(self, job: JobMaster) -> None:
        self._job = job
        self._read = 0

    def look(self) -> bool:
        """Look whether nothing was read since the last time; say whether that is all."""
        job, given = self._job, inboxes_of(self._job.graph)
        if not given or any(isinstance(one, Questions) for one in given):
            # What answers questions is meant to wait for them.
            return True
        inboxes = [
            node.name
            for node in job.graph.nodes
            if isinstance(node.transformation.source, Inbox)
            and node.transformation.source.is_waiting
        ]
        if not inboxes:
            return False
        before = self._read
        self._read = record_totals(job.graph, job.views())["records_in"]
        if self._read > before:
            return False
        job.services.log.warning(
            "the job waits for records: an inbox is empty and open",
            inboxes=inboxes,
            remedy="inbox.close() ends its stream, and then the job",
        )
        return True


class OperatorWatermark(NamedTuple):
    """The progress of event time at an operator.

    Attributes:
        timestamp_ms: The smallest watermark of its subtasks, in milliseconds;
            `MIN_TIMESTAMP` before the first.
        is_idle: Whether all inputs of all its subtasks are idle.
    """

    timestamp_ms: int
    is_idle: bool


class JobClient(Misnamed):
    """Watches, stops, cancels and waits for one job.

    Made by `StreamExecutionEnvironment.start`. All methods except the awaitable ones
    return at once. A running job is awaited on its own event loop: on another one, they
    raise an `IllegalStateError`.

    Concept:
        Flink, ``JobClient``.
    """

    _called = "job"
    _meant: ClassVar[Mapping[str, str]] = {
        "status": "state",
        "get_job_status": "state",
        "is_running": "state",
        "wait": "result(), awaited",
        "join": "result(), awaited",
        "done": "state",
        "await_termination": "result(), awaited",
        "get_job_execution_result": "result(), awaited",
        "kill": "cancel(), awaited",
        "terminate": "cancel(), awaited",
        "close": "stop(), awaited",
        "savepoint": "trigger_savepoint(path), awaited",
        "collect": "subscribe(stream)",
        "query": "ask(value), awaited",
        "get_accumulators": "metrics()",
        "progress": "snapshot()",
    }

    def __init__(
        self, job: JobMaster, body: Body, warn_of_late: Callable[[], None]
    ) -> None:
        self._job = job
        self._warn_of_late = warn_of_late
        self._body = body
        self._loop = asyncio.get_running_loop()
        self._observer = JobObserver(job)
        _held[next(_numbers)] = self
        # Of the graph, which a job in workers has here, too.
        self._inboxes = inboxes_of(job.graph)
        self._questions = [one for one in self._inboxes if isinstance(one, Questions)]
        # Where questions are put, once that was found.
        self._asked_there: Questions | None = None
        self._publications = [
            (node.transformation, sink)
            for node in job.graph.nodes
            if isinstance(sink := node.transformation.sink, Publication)
        ]
        self._answers = any(
            isinstance(node.transformation.sink, Answers) for node in job.graph.nodes
        )
        for inbox in self._inboxes:
            inbox._begin()
        if self._inboxes or self._publications:
            job.call_when_over(self._end_feeds)
        for watcher in list(_watchers):
            watcher.add(self)

    @property
    def name(self) -> str:
        """The job's name."""
        return self._job.graph.name

    @property
    def state(self) -> JobState:
        """The job's current state."""
        return self._job.state

    def snapshot(self) -> JobSnapshot:
        """Return the observable state of the job now, as one value.

        It contains the graph, states, metrics, rates, watermarks, checkpoints, the calls in
        flight and the failures. Every tool that shows a job reads this.

        Concept:
            docs/observability.md.
        """
        return self._observer.snapshot(with_stacks=True)

    def metrics(self) -> JobMetrics:
        """Return the metrics as they are now: records, calls, retries, watermarks."""
        return JobMetrics.of(self._observer.snapshot(with_stacks=False))

    def watermarks(self) -> dict[str, OperatorWatermark]:
        """Return the progress of event time per operator."""
        seen = self._observer.snapshot(with_stacks=False)
        return {
            operator.name: OperatorWatermark(
                operator.watermark_ms, operator.metrics.get("is_idle") == 1
            )
            for operator in seen.operators
            if operator.watermark_ms is not None
        }

    def backpressure(self) -> BackpressureReport:
        """Return where the job has waited recently, and which task is the bottleneck.

        Example:
            >>> import aiomailbox as am
            >>> async def main() -> None:
            ...     env = am.StreamExecutionEnvironment()
            ...     env.from_collection([1, 2]).sink_to(print)
            ...     async with env.start() as job:
            ...         report = job.backpressure()
            ...     print(report.bottleneck)
            >>> am.run(main())
            None

        Concept:
            Flink, the back pressure tab; docs/concepts/backpressure.md.
        """
        return self._observer.backpressure()

    def bottleneck(self) -> Bottleneck | None:
        """Return the operator that is the bottleneck, and why; None if there is none.

        The meters of each task show how it spent the last five seconds, and samples
        show the reason.

        Concept:
            docs/observability.md.
        """
        return self._observer.snapshot(with_stacks=False).bottleneck

    @explained("Write ask(value), or ask(value, timeout=...).")
    async def ask(self, value: Any, *, timeout: timedelta | float | None = None) -> Any:
        """Put a question to the running job, and return its answer.

        The question is a record of the stream of `env.from_questions`, and its answer
        comes back from the sink ``am.Answers()``. While as many questions are open as
        there may be, callers wait, first come, first served. Cancelling discards the
        question.

        Args:
            value: The value of the question.
            timeout: How long to wait for the answer, including for room for the question: a
                timedelta or seconds; None for as long as the job runs.

        Raises:
            UsageError: If the job has no source of questions, or several, or no sink
                ``am.Answers()``.
            AsyncTimeoutError: If there is no answer in time: it may be late, or its
                record was skipped.
            JobFailedError: If the job failed meanwhile.
            JobCancelledError: If it was cancelled.
            IllegalStateError: If it has ended.

        Example:
            >>> import aiomailbox as am
            >>> async def main() -> None:
            ...     env = am.StreamExecutionEnvironment()
            ...     questions = env.from_questions()
            ...     answers = questions.map(lambda q: q.answer(q.value.upper()))
            ...     answers.sink_to(am.Answers())
            ...     async with env.start() as job:
            ...         print(await job.ask("oslo"))
            >>> am.run(main())
            OSLO
        """
        # Each question comes by here: what is checked was mostly checked before.
        if asyncio._get_running_loop() is not self._loop:
            self._check_loop()
        questions = self._asked_there or self._find_questions()
        within_s = None if timeout is None else duration_s(timeout, "timeout")
        with folded:
            try:
                if within_s is None:
                    return await questions.ask(value)
                return await _answer_within(questions, value, within_s)
            except IllegalStateError:
                # It ended before it could answer: how it ended says more.
                await self._job.wait()
                raise

    def _find_questions(self) -> Questions:
        """Return where questions are put; raises UsageError where none is answered."""
        if len(self._questions) != 1:
            raise UsageError(
                "ask() needs one source of questions, and the job has "
                f"{len(self._questions)}: begin a stream with env.from_questions(), "
                "and end it in am.Answers()"
            )
        if not self._answers:
            raise UsageError(
                "no question of this job is ever answered: end the stream of answers "
                "in .sink_to(am.Answers())"
            )
        self._asked_there = self._questions[0]
        return self._asked_there

    @explained(buffer="size=...")
    def subscribe(
        self,
        stream: DataStream[T],
        *,
        size: int = 1024,
        on_full: Literal["drop", "wait"] = "drop",
    ) -> Subscription[T]:
        """Read a published stream of the running job, starting now.

        Args:
            stream: A stream that was published with ``stream.publish()``.
            size: The maximum number of records that wait for this reader.
            on_full: The behaviour when it is full: ``"drop"`` drops the oldest record
                and counts it in ``dropped``, ``"wait"`` exerts back pressure on the
                job.

        Returns:
            An asynchronous iterator that ends with the job; ``async with`` closes it
            earlier.

        Raises:
            UsageError: If the stream is not published by this job.
            InvalidArgumentError: If an argument is out of its range.
        """
        self._check_loop()
        check_type(stream, DataStream, "stream", "Give a published stream.", "a stream")
        check_count(size, "size")
        check_choice(on_full, "on_full", "drop", "wait")
        for item, publication in self._publications:
            if item.inputs and stream._is_of(item.inputs[0]):
                return publication.subscribe(size, waits=on_full == "wait")
        raise UsageError(
            "the stream is not published by this job: call stream.publish() before the "
            "job starts"
        )

    def _end_feeds(self) -> None:
        how = _ENDED.get(self.state, "has ended")
        refusal = f"job {self.name!r}, which read it, {how}, and no other job reads it"
        unread = 0
        for inbox in self._inboxes:
            unread += inbox._end(refusal)
        if unread:
            self._job.services.log.warning(
                "records were put into an inbox and never read: they wait in it for "
                "the next job that reads it",
                records=unread,
            )
        for _, publication in self._publications:
            publication.end()

    def await_tree(self) -> str:
        """Return what every task of the job is doing or waiting for, as text."""
        return self._job.await_tree()

    @property
    def restarts(self) -> int:
        """How often the job, or a part of it, has been restarted after a failure."""
        return self._job.restarts

    def checkpoints(self) -> list[CheckpointView]:
        """Return the statistics of the latest completed checkpoints, oldest first."""
        coordinator = self._job.coordinator
        return [] if coordinator is None else coordinator.views

    @verb
    async def trigger_checkpoint(self) -> CompletedCheckpoint:
        """Take a checkpoint now.

        Returns:
            The checkpoint, once it is complete and its results are committed.

        Raises:
            UsageError: If the job takes no checkpoints, or a function of the job awaits
                it that the checkpoint waits for.
            CheckpointFailedError: If it did not complete.

        Example:
            >>> import aiomailbox as am
            >>> async def main() -> None:
            ...     env = am.StreamExecutionEnvironment().enable_checkpointing(None)
            ...     env.from_collection([1, 2]).sink_to(print)
            ...     async with env.start() as job:
            ...         await job.result()
            ...     print(job.checkpoints()[-1].completed.checkpoint_id)
            >>> am.run(main())
            1
            2
            1
        """
        self._check_between("trigger_checkpoint")
        # The caller may be cancelled; the checkpoint continues.
        return await asyncio.shield(self._coordinator().request())

    async def trigger_savepoint(self, path: str | PathLike[str]) -> CompletedCheckpoint:
        """Take a savepoint now: a checkpoint that you own. The job continues.

        Args:
            path: An empty or new directory, or its URL, that workers can access too;
                not among the job's checkpoints.

        Raises:
            InvalidArgumentError: If it is not such a directory.
            UsageError: If the job takes no checkpoints, or a function of the job awaits
                it that the checkpoint waits for.
            CheckpointFailedError: If it did not complete.
        """
        self._check_between("trigger_savepoint")
        coordinator = self._coordinator()
        place = place_of_savepoint(path, coordinator.own_places)
        request = coordinator.request(SnapshotType.SAVEPOINT_CANONICAL, place)
        return await asyncio.shield(request)

    @explained("Write stop_with_savepoint(path), or with drain=True.")
    async def stop_with_savepoint(
        self, path: str | PathLike[str], *, drain: bool = False
    ) -> CompletedCheckpoint:
        """Stop the job gracefully, with a savepoint from which another job can resume.

        Its sources stop reading, and the job processes the records read so far. Then it
        takes the savepoint, and the sinks commit. A job that is starting, or starting
        again, does so once all of its tasks run.

        Args:
            path: As in `trigger_savepoint`.
            drain: Whether event time ends first, so that all windows fire: for a job
                that is not to be resumed.

        Raises:
            InvalidArgumentError: If the path is not such a directory.
            UsageError: If the job takes no checkpoints.
            CheckpointFailedError: If it did not complete; the job then continues.
            JobFailedError: If the job failed after the savepoint.
        """
        mode = StopMode.DRAIN if drain else StopMode.NO_DRAIN
        self._check_caller("stop_with_savepoint")
        place = place_of_savepoint(path, self._coordinator().own_places)
        with self._body.told():
            savepoint = await self._job.stop_with_savepoint(place, mode)
            # The savepoint is complete before the job has ended.
            await self._job.wait()
        return savepoint

    def _check_loop(self) -> None:
        # What has ended can be asked for anywhere.
        if not self._job.lifecycle.is_terminal:
            check_loop(self._loop, f"job {self.name!r}")

    def _check_caller(self, call: str) -> None:
        """Refuse to wait for the end of the job in a function that the job waits for.

        Raises:
            UsageError: If the caller is such a function: neither would end.
        """
        self._check_loop()
        if self._is_within() and _engine_task():
            raise UsageError(
                f"job.{call}() waits for the end of job {self.name!r}, and is awaited in "
                "a function of this job, whose end the job waits for: neither would end. "
                "Call it in a task of its own, and keep the task: "
                f"`self.ending = asyncio.create_task(job.{call}(...))`"
            )

    def _check_between(self, call: str) -> None:
        """Refuse to wait for a checkpoint in a function that the checkpoint waits for.

        Calls of async operators may wait for one: it holds their records.

        Raises:
            UsageError: If the caller is such a function.
        """
        if self._is_within() and _engine_task() == _OF_TASKS:
            raise UsageError(
                f"job.{call}() waits for a checkpoint of job {self.name!r}, and is awaited "
                "in a function of this job, whose task takes part in it only when the "
                "function has returned. Call it in a task of its own, and keep the task: "
                f"`self.saving = asyncio.create_task(job.{call}(...))`"
            )

    def _is_within(self) -> bool:
        """Say whether the caller is a function of this job, which still runs."""
        return WITHIN.get() is self._job and not self._job.lifecycle.is_terminal

    def _coordinator(self) -> CheckpointCoordinator:
        self._check_loop()
        coordinator = self._job.coordinator
        if coordinator is None:
            raise UsageError(
                "checkpointing is not enabled: call env.enable_checkpointing(...) "
                "before the job starts, with interval=None for checkpoints on "
                "request only"
            )
        return coordinator

    @verb
    async def stop(self, *, drain: bool = False) -> JobResult:
        """Stop the job gracefully now, even one that never ends by itself.

        Its sources stop reading. The job fully processes the records read so far: it
        completes calls in flight, and the sinks commit.

        Args:
            drain: Whether event time ends, so that all windows and event-time timers
                fire and functions are finished, as at the end of bounded sources.
                Otherwise they do not: operators drop what they hold for them, with a
                warning, and `stop_with_savepoint` keeps it.

        Returns:
            How the job ended.

        Raises:
            JobFailedError: If it failed; the cause is the first error.
            JobCancelledError: If it was cancelled.

        Concept:
            Flink, ``JobClient.stopWithSavepoint`` and its ``advanceToEndOfEventTime``.

        Example:
            >>> import asyncio
            >>> import aiomailbox as am
            >>> async def ticks():
            ...     while True:
            ...         yield 1
            ...         await asyncio.sleep(0.01)
            >>> async def main() -> None:
            ...     env = am.StreamExecutionEnvironment()
            ...     seen: list[int] = []
            ...     env.from_async_iterable(ticks).sink_to(seen.append)
            ...     async with env.start() as job:
            ...         while not seen:
            ...             await asyncio.sleep(0.01)
            ...         await job.stop()
            ...     print(job.state.value)
            >>> am.run(main())
            finished
        """
        self._check_caller("stop")
        if not drain:
            self._warn_of_held()
        self._job.stop(StopMode.DRAIN if drain else StopMode.NO_DRAIN)
        with self._body.told():
            return await self._job.wait()

    def _warn_of_held(self) -> None:
        """Warn of what is dropped where a job stops before event time ends."""
        held = {
            node.name: node.transformation.held
            for node in self._job.graph.nodes
            if node.transformation.held
        }
        if held and not self._job.lifecycle.is_terminal:
            self._job.services.log.warning(
                "the job stops before event time ends: operators drop what they hold",
                operators=held,
                remedy="`await job.stop(drain=True)` emits what waits for event time, "
                "`await job.stop_with_savepoint(path)` keeps it for another job",
            )

    @verb
    async def cancel(self) -> None:
        """Cancel the job and wait until all its tasks and resources are gone.

        It waits even if the caller is cancelled meanwhile, however often. The job ends
        within ``JobConfig.cancel_timeout`` and a moment, whatever the user code does.
        """
        self._check_caller("cancel")
        self._job.cancel()
        with self._body.told():
            await self._job.outlast()

    @verb
    async def result(self) -> JobResult:
        """Wait for the end of the job.

        Cancelling the caller does not cancel the job. A warning says after some seconds
        that the job waits for an inbox that is empty and open.

        Raises:
            JobFailedError: If the job failed; the cause is the first error.
            JobCancelledError: If it was cancelled.
        """
        self._check_caller("result")
        self._warn_of_late()
        look = _InboxWatch(self._job).look
        with looking_on(look), self._body.told():
            return await self._job.wait()

    if not TYPE_CHECKING:

        def __await__(self) -> NoReturn:
            """Say what can be awaited.

            Raises:
                UsageError: Always.
            """
            message = "a job cannot be awaited: write `await job.result()` for its end"
            raise UsageError(message)

    def _repr_html_(self) -> str:
        """Return graph and progress as HTML, for notebooks."""
        title = html.escape(f"{self.name} {self.state.value}")
        return f"<p><code>{title}</code></p>{describe_svg(self._job.graph)}"

    def __repr__(self) -> str:
        return f"<JobClient {self.name!r} {self.state.value}>"


_API: Final = str(Path(__file__).parent)
# Where the coroutine is written in which a task of a job processes its records.
_OF_TASKS: Final = supervision.__file__


def _engine_task() -> str:
    """Return the file whose coroutine the running asyncio task is, if it is the engine's.

    "" for one that a user's function has made.
    """
    task = asyncio.current_task()
    code = getattr(task and task.get_coro(), "cr_code", None)
    place = "" if code is None else code.co_filename
    return place if is_own_line(place) and not place.startswith(_API) else ""


# A remote job of which only the snapshots arrive here.


class LatestSnapshot:
    """The latest snapshot of a remote job, which is shown like a job of this program.

    It is called with each snapshot, as `Pipeline.run_on` does for a job inside Spark, and
    passed to `progress`, to a dashboard or to an exporter in place of a job. Such a job
    cannot be stopped from here.

    Example:
        >>> import aiomailbox as am
        >>> seen = am.observe.LatestSnapshot()
        >>> page = am.observe.dashboard(seen)
        >>> seen.snapshot() is None  # await pipeline.run_on(df, path, on_snapshot=seen)
        True
    """

    def __init__(self) -> None:
        self._last: JobSnapshot | None = None

    def __call__(self, snapshot: JobSnapshot) -> None:
        """Replace the previous snapshot."""
        self._last = snapshot

    def snapshot(self) -> JobSnapshot | None:
        """Return the latest snapshot; None before the first."""
        return self._last

    def await_tree(self) -> str:
        """Return what the tasks of the job waited for at that time, as text."""
        seen = self._last
        if seen is None:
            return "no snapshot of the job has arrived yet"
        return await_tree(seen.job, seen.state, seen.tasks)


# The block of ``async with env.start(...)``: it says so where it is used otherwise.


_INSTEAD = (
    "write `async with env.start(...) as job:`, or `job = await env.execute_async(...)` "
    "for a job without a block"
)


class JobBlock(AbstractAsyncContextManager[JobClient]):
    """A job that runs as long as a block does.

    Args:
        block: Starts the job when it is entered, and ends it when it is left.
    """

    __slots__ = ("_block", "_has_begun")

    def __init__(self, block: AbstractAsyncContextManager[JobClient]) -> None:
        self._has_begun = False
        self._block = block

    async def __aenter__(self) -> JobClient:
        self._has_begun = True
        with folded:
            return await self._block.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        with folded:
            return await self._block.__aexit__(kind, error, traceback)

    def __del__(self) -> None:
        if not self._has_begun:
            message = f"a job was made and never started: {_INSTEAD}"
            warnings.warn(message, RuntimeWarning, stacklevel=2, source=self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say where the job is.

            Raises:
                AttributeError: Always.
            """
            # A notebook that shows it asks for `_repr_html_` and others.
            if not name.startswith("_"):
                self._has_begun = True
            message = f"env.start() gives a block, which has no {name!r}: {_INSTEAD}"
            raise AttributeError(message, name=name, obj=None)

        def __await__(self) -> NoReturn:
            """Say what can be awaited.

            Raises:
                UsageError: Always.
            """
            self._has_begun = True
            message = f"env.start() gives a block, which cannot be awaited: {_INSTEAD}"
            raise UsageError(message)

        def __enter__(self) -> NoReturn:
            """Say which kind of block it is.

            Raises:
                UsageError: Always.
            """
            self._has_begun = True
            message = f"the block of a job is entered with `async with`: {_INSTEAD}"
            raise UsageError(message)

        def __exit__(self, *_: object) -> None:
            """Be there, for `with` to look at."""


# Jobs that no block of the program encloses, as in the cells of a notebook.


# An event loop holds its tasks weakly.
_running: set[asyncio.Task[None]] = set()


async def in_background(block: AbstractAsyncContextManager[JobClient]) -> JobClient:
    """Return a job that runs in a block, which is left when the job has ended.

    The job's log and `JobClient.result` report how it ended. It is cancelled
    with the event loop, as asyncio's tasks are.
    """
    loop = asyncio.get_running_loop()
    started: asyncio.Future[JobClient] = loop.create_future()
    task = loop.create_task(_keep(block, started), name="a job in the background")
    _running.add(task)
    task.add_done_callback(_running.discard)
    try:
        return await asyncio.shield(started)
    except asyncio.CancelledError:
        task.cancel()
        await outlast(task)
        raise


async def _keep(
    block: AbstractAsyncContextManager[JobClient], started: asyncio.Future[JobClient]
) -> None:
    try:
        async with block as job:
            started.set_result(job)
            try:
                # Nobody waits for it here: it may wait for records as long as it likes.
                await job._job.wait()
            except asyncio.CancelledError:
                # Not by `JobClient.cancel`, which the result reports.
                warn_if_loop_ends(job._job, is_sure=True)
                raise
    except BaseException as error:
        if started.done():
            # The job's log and its result report how it ended.
            if not isinstance(error, (JobFailedError, JobCancelledError)):
                raise
        elif isinstance(error, asyncio.CancelledError):
            started.cancel()
            raise
        else:
            # Also that a job failed: one that has to end before this one can start.
            started.set_exception(error)


async def _answer_within(questions: Questions, value: Any, within_s: float) -> Any:
    """Return an answer; raises AsyncTimeoutError if there is none in so many seconds."""
    limit = asyncio.timeout(within_s)
    try:
        async with limit:
            return await questions.ask(value)
    except TimeoutError as error:
        # A timeout of the caller's, further out.
        if not limit.expired():
            raise
        raise AsyncTimeoutError(f"no answer within {within_s:g} s") from error
