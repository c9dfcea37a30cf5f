"""The committers of a job: checked first, committed last, cleaned up always."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from aiomailbox.graph import JobGraph, Node
from aiomailbox.ids import OperatorId
from aiomailbox.operators import Committer, CommitterContext, Pending, naming_hook
from aiomailbox.runtime.services import JobServices


@dataclass(frozen=True, slots=True)
class _Entry:
    operator_id: OperatorId
    context: CommitterContext
    committer: Committer

    async def call(self, hook: str, call: Callable[[], Pending]) -> None:
        with naming_hook(hook, self.context.operator_name, self.context.uid):
            pending = call()
            if pending is not None:
                await pending


class JobCommitters:
    """What makes the results of a job visible, all of it or nothing.

    Args:
        graph: The job; each of its sinks may have a committer.
        services: Name the execution; writers leave there what is to be committed.

    Raises:
        UserFunctionError: If a sink cannot make its committer.
    """

    def __init__(self, graph: JobGraph, services: JobServices) -> None:
        self._committables = services.committables
        self._begun: list[_Entry] = []
        self._entries = [
            entry
            for vertex in graph.vertices
            for node in vertex.nodes
            if (entry := _entry(graph, node, services)) is not None
        ]

    async def begin(self) -> None:
        """Check every target, before any task starts.

        Raises whatever a committer raises; what `ending` yields cleans up what had begun.
        """
        for entry in self._entries:
            self._begun.append(entry)
            await entry.call("begin", entry.committer.begin)

    async def commit(self) -> None:
        """Make everything visible that the writers prepared; nothing follows.

        Raises whatever a committer raises; what `ending` yields takes back what was committed.
        """
        for entry in self._entries:
            prepared = self._committables.take(entry.operator_id)
            commit = partial(entry.committer.commit, prepared, is_final=True)
            await entry.call("commit", commit)

    def ending(self, *, succeeded: bool) -> Iterator[Callable[[], Pending]]:
        """Yield what cleans up every target that was begun: each is to be called once.

        Args:
            succeeded: Whether the job has.
        """
        for entry in self._begun:
            end = partial(entry.committer.end, succeeded=succeeded)
            yield partial(entry.call, "end", end)


def _entry(graph: JobGraph, node: Node, services: JobServices) -> _Entry | None:
    item = node.transformation
    if item.sink is None:
        return None
    context = CommitterContext(graph.name, services.execution_id, item.name, item.uid)
    with naming_hook("create_committer", item.name, item.uid):
        committer = item.sink.create_committer(context)
    return None if committer is None else _Entry(node.operator_id, context, committer)
