"""The committers of a job: checked first, committed last, cleaned up always."""

from __future__ import annotations

from dataclasses import dataclass

from aiomailbox.graph import JobGraph
from aiomailbox.operators import Committer, Pending
from aiomailbox.runtime.services import CommittableCollector


@dataclass(frozen=True, slots=True)
class _Entry:
    key: str
    committer: Committer


class JobCommitters:
    """What makes the results of a job visible, all of it or nothing.

    Args:
        graph: The job; each of its sinks may have a committer.
        committables: Where writers leave what is to be committed.
    """

    def __init__(self, graph: JobGraph, committables: CommittableCollector) -> None:
        self._committables = committables
        self._begun: list[_Entry] = []
        self._entries: list[_Entry] = []
        for vertex in graph.vertices:
            for node in vertex.nodes:
                sink = node.transformation.sink
                committer = None if sink is None else sink.create_committer()
                if committer is not None:
                    self._entries.append(_Entry(node.operator_id, committer))

    async def begin(self) -> None:
        """Check every target, before any task starts.

        Raises whatever a committer raises; `end` cleans up what had begun.
        """
        for entry in self._entries:
            self._begun.append(entry)
            await _finish(entry.committer.begin())

    async def commit(self) -> None:
        """Make everything visible that the writers prepared."""
        for entry in self._entries:
            prepared = self._committables.take(entry.key)
            await _finish(entry.committer.commit(prepared))

    async def end(self, *, succeeded: bool) -> None:
        """Clean up every target that was begun; the first error is raised at the end."""
        first: Exception | None = None
        for entry in self._begun:
            try:
                await _finish(entry.committer.end(succeeded=succeeded))
            except Exception as error:  # noqa: BLE001 -- every committer is ended
                first = first or error
        self._begun.clear()
        if first is not None:
            raise first


async def _finish(pending: Pending) -> None:
    if pending is not None:
        await pending
