"""The committers of a job: checked first, committed with checkpoints, ended always."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from aiomailbox.graph.job_graph import JobGraph, Node
from aiomailbox.ids import OperatorId, SubtaskId, VertexId
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.core.user_code import call_hook, naming_hook
from aiomailbox.operators.sinks.sink import Committer, CommitterContext
from aiomailbox.policies.retry import Retry
from aiomailbox.runtime.services import JobServices

# A commit is retried if the other end does not answer; any other error would only come
# again.
_RETRY: Final = Retry(
    attempts=5, initial=0.1, maximum=5.0, retry_on=(ConnectionError, TimeoutError)
)


@dataclass(frozen=True, slots=True)
class _Entry:
    operator_id: OperatorId
    vertex: VertexId
    context: CommitterContext
    committer: Committer

    async def call(self, hook: str, call: Callable[[], Pending]) -> None:
        operator, uid = self.context.operator_name, self.context.uid
        pending = call_hook(hook, operator, uid, call)
        if pending is not None:
            with naming_hook(hook, operator, uid):
                await pending
                # Where it cancelled the task that runs it, that arrives here.
                await asyncio.sleep(0)


class JobCommitters:
    """What makes the results of a job visible: with each checkpoint, or once at its end.

    Args:
        graph: The job; each of its sinks may have a committer.
        services: Name the execution and the job, and say when it commits.
        lineage: Names the executions that go on from each other's checkpoints.

    Raises:
        UserFunctionError: If a sink cannot make its committer.
    """

    def __init__(
        self, graph: JobGraph, services: JobServices, lineage: str = ""
    ) -> None:
        self._random = random.Random(services.seed)
        self._begun: list[_Entry] = []
        self._entries = [
            entry
            for vertex in graph.vertices
            for node in vertex.nodes
            if (entry := _entry(graph, vertex.id, node, services, lineage)) is not None
        ]

    async def begin(self, *, restored: bool) -> None:
        """Check every target, before any task starts.

        Raises whatever a committer raises; what `ending` yields cleans up what had begun.

        Args:
            restored: Whether the job resumes from a checkpoint.
        """
        for entry in self._entries:
            # Before it is called: one that fails half-way may have something to clean
            # up.
            self._begun.append(entry)
            begin = partial(entry.committer.begin, restored=restored)
            # Noted first: one whose `begin` fails may have made something, which `end`
            # cleans up.
            await entry.call("begin", begin)

    async def commit(
        self,
        prepared: Mapping[OperatorId, Sequence[Any]],
        *,
        checkpoint_id: int,
        is_final: bool,
    ) -> None:
        """Make visible what the writers prepared; may be called again with the same.

        A sink is asked if there is something of it, and at the end.

        Raises whatever a committer raises, after a few attempts if none was answered.

        Args:
            prepared: What `SinkWriter.prepare_commit` returned, by the sink's operator.
            checkpoint_id: The checkpoint that holds it; 0 without checkpoints.
            is_final: Whether nothing follows.
        """
        for entry in self._entries:
            committables = list(prepared.get(entry.operator_id, ()))
            # At the end also without anything: some targets are made visible as a
            # whole.
            if committables or is_final:
                commit = partial(
                    entry.committer.commit,
                    committables,
                    checkpoint_id=checkpoint_id,
                    is_final=is_final,
                )
                await entry.call("commit", partial(self._persist, commit))

    async def recover(self) -> None:
        """Let committers remove what was prepared and nothing refers to.

        To be called when no writer runs and what a restored checkpoint holds has been
        committed. Raises whatever a committer raises.
        """
        for entry in self._entries:
            recover = getattr(entry.committer, "recover", None)
            if recover is not None:
                await entry.call("recover", recover)

    async def recover_writers(self, tasks: Collection[SubtaskId], before: int) -> None:
        """Let committers remove what writers prepared whose tasks begin again.

        To be called when none of these runs, others may, and what a restored checkpoint
        holds has been committed. Raises whatever a committer raises.

        Args:
            tasks: The tasks that begin again.
            before: The attempt that begins: what older ones of theirs left can go.
        """
        for entry in self._entries:
            recover = getattr(entry.committer, "recover_writers", None)
            subtasks = {
                one.subtask_index for one in tasks if one.vertex == entry.vertex
            }
            if recover is not None and subtasks:
                call = partial(recover, subtasks, before)
                await entry.call("recover_writers", call)

    def ending(self, *, succeeded: bool) -> Iterator[Callable[[], Pending]]:
        """Yield what cleans up every target that was begun: each is to be called once.

        Args:
            succeeded: Whether the job has.
        """
        for entry in self._begun:
            end = partial(entry.committer.end, succeeded=succeeded)
            yield partial(entry.call, "end", end)

    async def _persist(self, commit: Callable[[], Pending]) -> None:
        """Retry a few times while the other end does not answer."""
        for attempt in range(1, _RETRY.attempts + 1):
            try:
                pending = commit()
                if pending is not None:
                    await pending
            except Exception as error:
                if attempt == _RETRY.attempts or not _RETRY.wants_error(error):
                    raise
                await asyncio.sleep(_RETRY.delay_s(attempt, self._random))
            else:
                return


def _entry(
    graph: JobGraph, vertex: VertexId, node: Node, services: JobServices, lineage: str
) -> _Entry | None:
    item = node.transformation
    if item.sink is None:
        return None
    context = CommitterContext(
        graph.name,
        services.execution_id,
        item.name,
        item.uid,
        operator_id=node.operator_id,
        job_id=services.job_id,
        commits_at_checkpoints=services.commits_at_checkpoints,
        is_resumable=services.is_resumable,
        lineage=lineage,
    )
    create = item.sink.create_committer
    committer = call_hook("create_committer", item.name, item.uid, create, context)
    if committer is None:
        return None
    return _Entry(node.operator_id, vertex, context, committer)
