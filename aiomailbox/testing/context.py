"""A runtime context without a task."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from aiomailbox.availability import Availability
from aiomailbox.errors import IllegalStateError, InvalidArgumentError
from aiomailbox.eventtime.alignment import AlignmentGroup, AlignmentGroups
from aiomailbox.eventtime.manual_time import ManualProcessingTimeService
from aiomailbox.eventtime.strategy import AlignmentConfig
from aiomailbox.eventtime.timers import InternalTimerService, Triggerable
from aiomailbox.journal.journals import Journals, SubtaskJournal
from aiomailbox.keygroups.assignment import KeyGroupRange, key_group_range
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.mailbox.mail import MailFuture, MailOptions
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.operators.core.context import RepeatedWarnings
from aiomailbox.operators.core.mutations import MutationCheck, SharedRecords
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.records.run import Run
from aiomailbox.state.backends import HeapStateBackend, StateBackend
from aiomailbox.state.operator_state import OperatorStateStore
from aiomailbox.state.store import NoKeysStateStore
from aiomailbox.state.table_store import KeyedStateStore

# A clock that advances only when a test advances it.


DEFAULT_START = datetime(2013, 1, 1, tzinfo=UTC)


# Far below a millisecond, far above the rounding of sums of seconds: a timer for a
# whole millisecond finds exactly that millisecond on the clock when it fires.
_ROUNDING_MS = 1e-6


class ManualClock:
    """A `Clock` whose two times stand still until `advance` or `advance_to` is called.

    ``monotonic`` starts at 0.0 seconds, ``now_ms`` at ``start``; both move together.

    Args:
        start: The wall-clock time at the start, an aware datetime.

    Raises:
        InvalidArgumentError: If ``start`` has no time zone.

    Example:
        >>> clock = ManualClock()
        >>> clock.advance(1.5)
        >>> clock.monotonic(), clock.now_ms()
        (1.5, 1356998401500)
    """

    def __init__(self, start: datetime = DEFAULT_START) -> None:
        if start.tzinfo is None:
            raise InvalidArgumentError(
                "start", "it is a naive datetime", "Give one with a time zone, as UTC."
            )
        self._start_ms = round(start.timestamp() * 1000)
        self._monotonic = 0.0

    def now_ms(self) -> int:
        """Return wall-clock time, integer milliseconds since the epoch."""
        elapsed_ms = self._monotonic * 1000
        return self._start_ms + math.floor(elapsed_ms + _ROUNDING_MS)

    def monotonic(self) -> float:
        """Return the seconds advanced since the clock was made."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both times forward.

        Args:
            seconds: How far, at least 0.

        Raises:
            InvalidArgumentError: If ``seconds`` is negative.
        """
        if not seconds >= 0:
            raise InvalidArgumentError(
                "seconds", f"{seconds!r} would turn time back", "Give 0 or more."
            )
        self._monotonic += seconds

    def advance_to(self, now_ms: int) -> None:
        """Move both times forward to a wall-clock time.

        Args:
            now_ms: Milliseconds since the epoch, not before ``now_ms()``.

        Raises:
            InvalidArgumentError: If ``now_ms`` has passed already.
        """
        if now_ms < self.now_ms():
            raise InvalidArgumentError(
                "now_ms", f"{now_ms} is before {self.now_ms()}", "Time only advances."
            )
        elapsed = (now_ms - self._start_ms) / 1000
        self._monotonic = max(self._monotonic, elapsed)


# A mailbox that runs its mail when a test requests it.


class HarnessWatch:
    """Looks like a `SliceWatch`: no slice is ever over."""

    def __init__(self, mailbox: HarnessMailbox) -> None:
        self._mailbox = mailbox

    def start(self) -> None:
        """Do nothing."""

    @property
    def has_waited(self) -> bool:
        """Whether mail is waiting."""
        return self._mailbox.has_mail

    def is_over(self) -> bool:
        """Return False."""
        return False


class HarnessMailbox:
    """Keeps mail until `run_all`; looks like a `MailboxExecutor`.

    For one task and thread. Mail runs in the order sent, options are ignored.

    Example:
        >>> mailbox = HarnessMailbox()
        >>> mailbox.execute(print, "now")
        >>> mailbox.try_run()
        now
        True
    """

    priority = 0

    def __init__(self) -> None:
        self._mail: deque[Callable[[], Any]] = deque()
        self._arrived = Availability()

    def __len__(self) -> int:
        return len(self._mail)

    def execute(
        self,
        function: Callable[..., object],
        *args: object,
        description: str = "",
        description_args: tuple[object, ...] = (),
        options: MailOptions = MailOptions.DEFAULT,
    ) -> None:
        """Keep work to be run later."""
        self._mail.append(lambda: function(*args))
        self._arrived.set_available()

    def submit(
        self,
        function: Callable[..., object],
        *args: object,
        description: str = "",
        options: MailOptions = MailOptions.DEFAULT,
    ) -> MailFuture[Any]:
        """Keep work to be run later; its result goes to the returned future."""
        future: MailFuture[Any] = MailFuture()

        async def run() -> None:
            try:
                result = function(*args)
                if inspect.isawaitable(result):
                    result = await result
            except Exception as error:  # noqa: BLE001 -- it belongs to the future
                future.set_exception(error)
            else:
                future.set_result(result)

        self.execute(run)
        return future

    def try_run(self) -> bool:
        """Run one mail; say whether there was one. Its awaitable is not allowed."""
        if not self._mail:
            return False
        outcome = self._mail.popleft()()
        if inspect.iscoroutine(outcome):
            outcome.close()
        assert not inspect.isawaitable(outcome), "this mail waits: use run_all()"
        return True

    async def run_all(self) -> None:
        """Run mail until there is none."""
        while self._mail:
            await self._run_one()

    async def yield_to_mail(self) -> None:
        """Wait for one mail and run it."""
        while not self._mail:
            self._arrived.reset()
            await self._arrived.wait()
        await self._run_one()

    async def try_yield_to_mail(self, *, ignore_deferrable: bool = False) -> bool:
        """Run one mail if there is one, and say so."""
        if not self._mail:
            return False
        await self._run_one()
        return True

    async def yield_until(
        self,
        future: asyncio.Future[Any] | concurrent.futures.Future[Any],
        *,
        ignore_deferrable: bool = False,
    ) -> Any:
        """Run mail as it arrives until ``future`` is done, and return its result."""
        if isinstance(future, concurrent.futures.Future):
            future = asyncio.wrap_future(future)
        future.add_done_callback(lambda _: self._arrived.set_available())
        while not future.done():
            if self._mail:
                await self._run_one()
            else:
                self._arrived.reset()
                await self._arrived.wait()
        return future.result()

    async def yield_until_any(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Run one mail, or wait until there is one or a task is done."""
        for task in tasks:
            task.add_done_callback(lambda _: self._arrived.set_available())
        if self._mail:
            await self._run_one()
        elif not any(task.done() for task in tasks):
            self._arrived.reset()
            await self._arrived.wait()

    def is_idle(self) -> bool:
        """Whether there is no mail."""
        return not self._mail

    def disregard(self) -> None:
        """Nothing: a harness counts no steps."""

    def count_change(self) -> None:
        """Nothing: a harness counts no steps."""

    def should_interrupt(self, *, any_mail: bool = False) -> bool:
        """Whether long work should pause: never, in a harness."""
        return False

    async def pause(self) -> None:
        """Run the mail that is there."""
        for _ in range(len(self._mail)):
            await self.try_yield_to_mail()

    @property
    def has_mail(self) -> bool:
        """Whether mail is waiting."""
        return bool(self._mail)

    def watch(self) -> HarnessWatch:
        """Return what says that it is time to look for mail when there is some."""
        return HarnessWatch(self)

    async def pause_until(self, availability: Availability) -> None:
        """Run mail as it arrives until something is available."""
        while not availability.available:
            await self.yield_until(availability.waiter())

    # In a harness nothing else waits for these.
    run_waiting = pause
    wait_until = pause_until

    async def _run_one(self) -> None:
        outcome = self._mail.popleft()()
        if isinstance(outcome, Awaitable):
            await outcome


# Small fakes of what a job provides to its operators.


class RecordingLog:
    """A logger that keeps its entries.

    Example:
        >>> log = RecordingLog()
        >>> log.bind(operator="map").warning("skipped", count=2)
        >>> log.entries
        [('warning', 'skipped', {'count': 2})]
    """

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, dict[str, Any]]] = []

    def bind(self, **_: Any) -> RecordingLog:
        """Return the same log."""
        return self

    def debug(self, event: str, **fields: Any) -> None:
        """Keep an entry."""
        self.entries.append(("debug", event, fields))

    def info(self, event: str, **fields: Any) -> None:
        """Keep an entry."""
        self.entries.append(("info", event, fields))

    def warning(self, event: str, **fields: Any) -> None:
        """Keep an entry."""
        self.entries.append(("warning", event, fields))

    def error(self, event: str, **fields: Any) -> None:
        """Keep an entry."""
        self.entries.append(("error", event, fields))

    def exception(self, event: str, **fields: Any) -> None:
        """Keep an entry."""
        self.entries.append(("exception", event, fields))


class FreeLimiter:
    """A `Limiter` that counts units and never waits.

    Attributes:
        leased: The sum of the weights.
        pauses_s: The pauses asked for.
    """

    def __init__(self) -> None:
        self.leased: float = 0.0
        self.pauses_s: list[float] = []

    @property
    def free(self) -> float:
        """Infinitely many units."""
        return math.inf

    async def lease(self, weight: float = 1.0) -> None:
        """Count ``weight``."""
        self.leased += weight

    def pause(self, delay_s: float) -> None:
        """Note the pause."""
        self.pauses_s.append(delay_s)


class MemoryHandover:
    """A `Handover` with room for ``runs_max`` runs; a test takes them out.

    Attributes:
        runs: The records that were offered and taken, in order.
    """

    def __init__(self, runs_max: int = 1) -> None:
        self.runs: list[Run] = []
        self._runs_max = runs_max
        self.room: Availability = Availability(available=True)

    def offer(self, run: Run) -> bool:
        """Take the run if there is room."""
        if len(self.runs) >= self._runs_max:
            return False
        self.runs.append(run)
        if len(self.runs) >= self._runs_max:
            self.room.reset()
        return True

    def writable(self) -> asyncio.Future[None]:
        """Return a fresh future that completes when there is room."""
        return self.room.waiter()

    def take(self) -> Run:
        """Take out the oldest run, which makes room."""
        run = self.runs.pop(0)
        self.room.set_available()
        return run


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GIVE_KEYS: Final = (
    "Call key_by(...) before it; in a harness, write keyed=True: "
    "OneInputHarness(operator, keyed=True)."
)


class TestRuntimeContext:
    """A `RuntimeContext` made of fakes, for operators that are driven by hand.

    Wall-clock time starts at the epoch, 0 ms, and moves only by
    `set_processing_time`; keyed state is on the heap; the random source is seeded.

    Args:
        operator_name: The operator's name.
        uid: The operator's uid.
        keyed: Whether the operator has keyed state.
        max_parallelism: Key groups of the job.
        parallelism: Subtasks of the operator.
        subtask_index: Which of them this is, from 0.
        attempt: How often the job was restarted.
        commits_at_checkpoints: Whether the job takes checkpoints.
        is_resumable: Whether a checkpoint may outlive the execution.
        seed: Of the random source.
        state_backend: Where keyed state is kept.
        journals: Where finished calls are kept, for operators that do.

    Attributes:
        run_mail: The same mailbox as ``mailbox``, as the fake that it is.
        manual_time: The same service as ``processing_time``, as the fake that it is.
        prepared: The prepared results of a sink's writer.
        tasks: The tasks that the operator spawned.

    Example:
        >>> context = TestRuntimeContext("enrich", keyed=True)
        >>> context.clock.now_ms(), context.key_group_range
        (0, KeyGroupRange(start=0, end=127))
    """

    __test__ = False

    def __init__(
        self,
        operator_name: str = "operator",
        *,
        uid: str | None = None,
        keyed: bool = False,
        max_parallelism: int = 128,
        parallelism: int = 1,
        subtask_index: int = 0,
        attempt: int = 0,
        seed: int = 0,
        state_backend: StateBackend | None = None,
        commits_at_checkpoints: bool = False,
        is_resumable: bool = False,
        journals: Journals | None = None,
    ) -> None:
        self.job_name = "test"
        self.execution_id = "0123456789abcdef" * 2
        self.job_id = "test"
        self.task_name: str = f"{operator_name} ({subtask_index + 1}/{parallelism})"
        self.operator_name = operator_name
        self.uid = uid
        self.line: str = ""
        self.operator_id: str = uid or operator_name
        self.subtask_index = subtask_index
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        self.attempt = attempt
        self.cancel_timeout_s: float = 30.0
        self.commits_at_checkpoints = commits_at_checkpoints
        self.is_resumable = is_resumable
        self.lineage: str = ""
        self.latency_interval_ms: int | None = None
        self.trace_carrier: Mapping[str, str] | None = None
        self.key_group_range: KeyGroupRange = key_group_range(
            max_parallelism, parallelism, subtask_index
        )
        self.clock: ManualClock = ManualClock(_EPOCH)
        self.random: random.Random = random.Random(seed)
        self.log: RecordingLog = RecordingLog()
        self.mutations: MutationCheck | None = None
        self.shared: SharedRecords | None = None
        self.repeated: RepeatedWarnings = RepeatedWarnings(self.log, self.clock)
        self.metrics: MetricGroup = MetricGroup(operator_name)
        self.run_mail: HarnessMailbox = HarnessMailbox()
        self.mailbox: MailboxExecutor = cast("MailboxExecutor", self.run_mail)
        self.manual_time: ManualProcessingTimeService = ManualProcessingTimeService()
        self.processing_time: ManualProcessingTimeService = self.manual_time
        self.keyed_state: KeyedStateStore = (
            (state_backend or HeapStateBackend()).create_store(
                max_parallelism, self.key_group_range, self.clock
            )
            if keyed
            else cast("KeyedStateStore", NoKeysStateStore(operator_name, _GIVE_KEYS))
        )
        self.operator_state: OperatorStateStore = OperatorStateStore()
        self.prepared: list[Any] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._journals = journals
        self._limiters: dict[RateLimit, FreeLimiter] = {}
        self._handovers: dict[str, MemoryHandover] = {}
        self._alignments = AlignmentGroups()

    def commit_later(self, committables: list[Any]) -> None:
        """Keep what a sink's writer prepared; see `prepared`."""
        self.prepared += committables

    def limiter(self, limit: RateLimit) -> FreeLimiter:
        """Return the limiter of this limit, which only counts."""
        return self._limiters.setdefault(limit, FreeLimiter())

    def journal(self) -> SubtaskJournal:
        """Return the operator's journal, if there are any.

        Raises:
            IllegalStateError: If there are none.
        """
        if self._journals is None:
            raise IllegalStateError("give the context journals=, made by Journals()")
        return self._journals.journal(self.operator_id, self.subtask_index)

    def alignment(self, config: AlignmentConfig) -> AlignmentGroup:
        """Return the group of this name, which knows only this operator."""
        return self._alignments.get(config)

    def handover(self, name: str) -> MemoryHandover:
        """Return the hand-over of this name, with room for one run."""
        return self._handovers.setdefault(name, MemoryHandover())

    def timer_service(self, target: Triggerable) -> InternalTimerService:
        """Return a new timer service of the operator."""
        return InternalTimerService(
            target,
            self.keyed_state,
            self.processing_time,
            self.max_parallelism,
        )

    def spawn(
        self, work: Coroutine[Any, Any, None], *, name: str
    ) -> asyncio.Task[None]:
        """Start a coroutine on the running loop; see `tasks`."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.append(task)
        return task
