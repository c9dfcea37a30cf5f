"""The runtime context of one operator in one task."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping
from typing import Any

from aiomailbox.errors import IllegalStateError, named_operator
from aiomailbox.eventtime.alignment import AlignmentGroup
from aiomailbox.eventtime.processing_time import NoTimers, ProcessingTimeService
from aiomailbox.eventtime.strategy import AlignmentConfig
from aiomailbox.eventtime.timers import InternalTimerService, Triggerable
from aiomailbox.journal.subtask import SubtaskJournal
from aiomailbox.keygroups.assignment import key_group_range
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.operators.core.context import Handover, Limiter
from aiomailbox.operators.core.failures import Context
from aiomailbox.operators.core.mutations import MutationCheck
from aiomailbox.operators.core.repeated import RepeatedWarnings
from aiomailbox.policies.rate_limit import RateLimit
from aiomailbox.records.elements import OutputTag
from aiomailbox.state.operator_state import OperatorStateStore
from aiomailbox.state.store import KeyedStateStore, NoKeysStateStore
from aiomailbox.task.environment import OperatorPlan, TaskEnvironment
from aiomailbox.task.helpers import HelperTasks


class TaskRuntimeContext(Context):
    """What an operator may use of its task and job; see `RuntimeContext`.

    Args:
        environment: The task's facts and services.
        plan: The operator.
        mailbox: The task's mailbox at the operator's priority.
        processing_time: Timers as mail of the operator.
        helpers: Owns the coroutines that operators start.
    """

    def __init__(
        self,
        environment: TaskEnvironment,
        plan: OperatorPlan,
        mailbox: MailboxExecutor,
        processing_time: ProcessingTimeService,
        helpers: HelperTasks,
    ) -> None:
        self._environment = environment
        self._helpers = helpers
        self.job_name: str = environment.job_name
        self.execution_id: str = environment.execution_id
        self.job_id: str = environment.job_id
        self.task_name: str = environment.task_name
        self.operator_name: str = plan.name
        self.uid: str | None = plan.uid
        self.operator_id: str = str(plan.operator_id)
        self.subtask_index: int = environment.subtask_index
        self.parallelism: int = environment.parallelism
        self.max_parallelism: int = environment.max_parallelism
        self.attempt: int = environment.task_id.attempt
        self.commits_at_checkpoints: bool = environment.commits_at_checkpoints
        self.is_resumable: bool = environment.is_resumable
        self.lineage: str = environment.lineage
        self.latency_interval_ms: int | None = environment.latency_interval_ms
        self.cancel_timeout_s: float = environment.cancel_timeout_s
        self.trace_carrier: Mapping[str, str] | None = environment.trace_carrier
        self.key_group_range = key_group_range(
            environment.max_parallelism,
            environment.parallelism,
            environment.subtask_index,
        )
        self.clock = environment.clock
        # Seeded with text, which `Random` hashes itself: `hash()` of it differs per
        # process.
        self.random = random.Random(
            f"{environment.seed}/{plan.name}/{plan.uid}/{environment.subtask_index}"
        )
        self.log: Any = environment.log.bind(operator=plan.name)
        self.repeated: RepeatedWarnings = RepeatedWarnings(self.log, self.clock)
        self.metrics = environment.metrics.child(plan.metrics_name or plan.name)
        self.mailbox = mailbox
        self.processing_time: ProcessingTimeService = processing_time
        self._operator_id = plan.operator_id
        self._functions = plan.functions
        self._tags_given = plan.tags_given
        self.keyed_state: KeyedStateStore = self._keyed_state(plan)
        self.operator_state: OperatorStateStore = OperatorStateStore()
        self.mutations: MutationCheck | None = (
            MutationCheck(plan.name, plan.uid) if environment.check_mutations else None
        )

    def close(self) -> None:
        """Log the warnings held back, and release what state holds outside of memory.

        Idempotent.
        """
        self.repeated.flush()
        self.keyed_state.close()

    def _keyed_state(self, plan: OperatorPlan) -> KeyedStateStore:
        if not plan.is_keyed:
            return NoKeysStateStore(plan.name)
        store = self._environment.state_backend.create_store(
            self.max_parallelism, self.key_group_range, self.clock
        )
        self.metrics.gauge("state_keys", store.estimated_keys)
        self.metrics.gauge("state_bytes", store.size_bytes)
        return store

    @property
    def state(self) -> KeyedStateStore:
        """The keyed state, under the name that it has in ``process_element``."""
        return self.keyed_state

    def on_unread(self, tag: OutputTag, count: int) -> None:
        """Say that records of a side output are dropped, unless the job has at its start."""
        if count and tag not in self._tags_given:
            self.repeated.unread(tag, count, self._functions)

    def commit_later(self, committables: list[Any]) -> None:
        """Hand over what a sink's writer prepared.

        It is filed under the operator's id: names are the user's, and two sinks may
        have one.
        """
        self._environment.prepared(self._operator_id, committables)

    def limiter(self, limit: RateLimit) -> Limiter:
        """Return the job-wide limiter that this limit names."""
        return self._environment.limiter(limit)

    def journal(self) -> SubtaskJournal:
        """Return this operator's journal of finished calls."""
        journals = self._environment.journals
        if journals is None:
            raise IllegalStateError(
                f"{named_operator(self.operator_name, self.uid)} has journal=True, "
                "and the job has no place for a journal: write "
                "env.enable_checkpointing(interval, directory=...)"
            )
        return journals.journal(self.operator_id, self.subtask_index)

    def alignment(self, config: AlignmentConfig) -> AlignmentGroup:
        """Return the job-wide group of sources that wait for each other."""
        return self._environment.alignment(config)

    def handover(self, name: str) -> Handover:
        """Return the job's hand-over of this name."""
        return self._environment.handover(name)

    def timer_service(self, target: Triggerable) -> InternalTimerService:
        """Return a timer service of this operator."""
        refusal = self._environment.no_processing_time
        processing_time = self.processing_time
        return InternalTimerService(
            target,
            self.keyed_state,
            NoTimers(processing_time, refusal) if refusal else processing_time,
            self.max_parallelism,
            self.key_group_range,
            cancellation=self.mailbox.cancellation,
        )

    def spawn(
        self, work: Coroutine[Any, Any, None], *, name: str
    ) -> asyncio.Task[None]:
        """Start a coroutine that belongs to this task."""
        return self._helpers.spawn(work, name=f"{self.task_name}/{name}")
