"""A runtime context without a task."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from aiomailbox.errors import IllegalStateError
from aiomailbox.eventtime.alignment import AlignmentGroup, AlignmentGroups
from aiomailbox.eventtime.manual_time import ManualProcessingTimeService
from aiomailbox.eventtime.strategy import AlignmentConfig
from aiomailbox.eventtime.timers import InternalTimerService, Triggerable
from aiomailbox.journal.journals import Journals
from aiomailbox.journal.subtask import SubtaskJournal
from aiomailbox.keygroups.assignment import KeyGroupRange, key_group_range
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.metrics.instruments import MetricGroup
from aiomailbox.operators.core.mutations import MutationCheck
from aiomailbox.operators.core.repeated import RepeatedWarnings
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.state.backends import HeapStateBackend, StateBackend
from aiomailbox.state.operator_state import OperatorStateStore
from aiomailbox.state.store import KeyedStateStore, NoKeysStateStore
from aiomailbox.testing.clock import ManualClock
from aiomailbox.testing.mailbox import HarnessMailbox
from aiomailbox.testing.services import (
    FreeLimiter,
    MemoryHandover,
    RecordingLog,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
        prepared: What a sink's writer prepared.
        tasks: What was spawned.

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
            else NoKeysStateStore(operator_name)
        )
        self.operator_state: OperatorStateStore = OperatorStateStore()
        self.prepared: list[Any] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._journals = journals
        self._limiters: dict[RateLimit, FreeLimiter] = {}
        self._handovers: dict[str, MemoryHandover] = {}
        self._alignments = AlignmentGroups()

    @property
    def state(self) -> KeyedStateStore:
        """The keyed state, under the name that it has in ``process_element``."""
        return self.keyed_state

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
            self.key_group_range,
        )

    def spawn(
        self, work: Coroutine[Any, Any, None], *, name: str
    ) -> asyncio.Task[None]:
        """Start a coroutine on the running loop; see `tasks`."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.append(task)
        return task
