"""The enumerators of a job: one per source, answering its readers by mail."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

from aiomailbox.graph import JobGraph, Transformation
from aiomailbox.ids import OperatorId, SubtaskId, VertexId
from aiomailbox.operators import OperatorSnapshot, SplitEnumerator, naming_hook
from aiomailbox.state import OperatorStateSnapshot

__all__ = ["JobSources", "SourceCoordinator"]

# The name is in snapshots.
_ENUMERATOR: Final = "enumerator"


class SourceCoordinator:
    """Runs one source's enumerator and carries splits to the readers.

    Everything happens on the job's loop; what goes to a reader goes as mail, so a
    reader may ask from inside a mail of its own. It outlives attempts of its readers: it
    knows which splits each has got since which checkpoint, and takes those back.

    Args:
        item: The source's place in the graph.
        parallelism: How many readers there are.
        deliver: Sends ``(subtask_index, splits, no_more)`` to a reader.
        restored: What `snapshot` of an earlier one returned; None for a beginning.
        restored_id: The checkpoint that this was for, -1 for none.

    Concept:
        Flink, ``SourceCoordinator`` and ``SplitAssignmentTracker``.
    """

    def __init__(
        self,
        item: Transformation,
        parallelism: int,
        deliver: Callable[[int, list[Any], bool], None],
        *,
        restored: OperatorSnapshot | None = None,
        restored_id: int = -1,
    ) -> None:
        self.parallelism = parallelism
        # The last checkpoint that has the enumerator; what is assigned now it has not.
        self._last_id = restored_id
        # By reader the splits it has got, each with the last checkpoint before that.
        self._assigned: dict[int, list[tuple[int, Any]]] = {}
        self._deliver = deliver
        self._naming = partial(naming_hook, operator=item.name, uid=item.uid)
        # One without anything to keep begins with nothing, not anew.
        state = None if restored is None else restored.own.elements(_ENUMERATOR)
        source = item.source
        assert source is not None, "only a source has an enumerator"
        with self._naming("create_enumerator"):
            self._enumerator: SplitEnumerator[Any] = source.create_enumerator(
                self, state
            )

    def start(self) -> None:
        """Start the enumerator and register the readers, in order."""
        with self._naming("start"):
            self._enumerator.start()
        for subtask_index in range(self.parallelism):
            with self._naming("add_reader"):
                self._enumerator.add_reader(subtask_index)

    def assign_splits(self, subtask_index: int, splits: list[Any]) -> None:
        """Give splits to a reader."""
        assigned = self._assigned.setdefault(subtask_index, [])
        # With the checkpoint that does not know of it yet, in case the reader begins
        # again.
        assigned += [(self._last_id, split) for split in splits]
        self._deliver(subtask_index, splits, False)

    def signal_no_more_splits(self, subtask_index: int) -> None:
        """Tell a reader that it has all it will get."""
        self._deliver(subtask_index, [], True)

    def request_split(self, subtask_index: int) -> None:
        """Pass a reader's request to the enumerator."""
        with self._naming("handle_split_request"):
            self._enumerator.handle_split_request(subtask_index)

    def snapshot(self, checkpoint_id: int) -> OperatorSnapshot:
        """Return what a new coordinator resumes from; its readers keep their splits."""
        elements = self._enumerator.snapshot()
        self._last_id = checkpoint_id
        return OperatorSnapshot(
            own=OperatorStateSnapshot().with_list(_ENUMERATOR, elements)
        )

    def on_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Forget the splits that readers go on with from a checkpoint."""
        for subtask_index, assigned in self._assigned.items():
            self._assigned[subtask_index] = [
                one for one in assigned if one[0] >= checkpoint_id
            ]

    def reset_reader(self, subtask_index: int, restored_id: int) -> None:
        """Take back what a reader has got since the checkpoint that it resumes from.

        The reader's task is made, and takes splits from now on.

        Args:
            subtask_index: The reader.
            restored_id: The checkpoint, -1 for none.

        Raises:
            UserFunctionError: If the enumerator fails.

        Concept:
            Flink, ``OperatorCoordinator.subtaskReset``.
        """
        assigned = self._assigned.pop(subtask_index, [])
        splits = [split for since, split in assigned if since >= restored_id]
        if splits:
            with self._naming("add_splits_back"):
                self._enumerator.add_splits_back(splits, subtask_index)
        with self._naming("add_reader"):
            self._enumerator.add_reader(subtask_index)

    def close(self) -> None:
        """Release what the enumerator holds."""
        with self._naming("close"):
            self._enumerator.close()


class JobSources:
    """The coordinators of a job's sources, by vertex.

    Args:
        deliver: Sends ``(vertex, subtask_index, splits, no_more)`` to a reader.
    """

    def __init__(self, deliver: Callable[[int, int, list[Any], bool], None]) -> None:
        self._deliver = deliver
        self._coordinators: dict[int, SourceCoordinator] = {}
        self._ids: dict[int, OperatorId] = {}
        self._graph: JobGraph | None = None
        self._restored: Mapping[OperatorId, OperatorSnapshot] = {}
        self._restored_id = -1

    def prepare(
        self,
        graph: JobGraph,
        restored: Mapping[OperatorId, OperatorSnapshot] | None = None,
        restored_id: int = -1,
    ) -> None:
        """Close the enumerators of an earlier attempt; say what the next ones are.

        Args:
            graph: The job.
            restored: What enumerators resume from; the others begin anew.
            restored_id: The checkpoint that this is of, -1 for none.

        Raises:
            UserFunctionError: If one of them cannot be closed.
        """
        self._graph = graph
        self._restored_id = restored_id
        self._restored = restored or {}
        former, self._coordinators = self._coordinators, {}
        for coordinator in former.values():
            coordinator.close()

    def start(self) -> None:
        """Make all enumerators, then start them.

        Raises:
            UserFunctionError: If one of them cannot be made or started.
        """
        graph = self._graph
        assert graph is not None, "the sources were prepared"
        for vertex in graph.vertices:
            item = vertex.head.transformation
            if item.source is not None:
                deliver = partial(self._deliver, vertex.id)
                operator_id = vertex.head.operator_id
                self._ids[vertex.id] = operator_id
                self._coordinators[vertex.id] = SourceCoordinator(
                    item,
                    vertex.parallelism,
                    deliver,
                    restored=self._restored.get(operator_id),
                    restored_id=self._restored_id,
                )
        # Made first, all of them: one that fails leaves none that has begun.
        for coordinator in self._coordinators.values():
            coordinator.start()

    def request_split(self, vertex: int, subtask_index: int) -> None:
        """Pass a reader's request to its enumerator.

        Raises:
            UserFunctionError: If the enumerator fails.
        """
        self._coordinators[vertex].request_split(subtask_index)

    def snapshot(self, checkpoint_id: int) -> dict[OperatorId, OperatorSnapshot]:
        """Return what the enumerators resume from, by the ids of their sources."""
        return {
            self._ids[vertex]: coordinator.snapshot(checkpoint_id)
            for vertex, coordinator in self._coordinators.items()
        }

    def on_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Be notified of a complete checkpoint: no reader resumes from an older one."""
        for coordinator in self._coordinators.values():
            coordinator.on_checkpoint_complete(checkpoint_id)

    def reset_readers(self, tasks: Collection[SubtaskId], restored_id: int) -> None:
        """Take back the splits of readers that begin again; enumerators go on.

        Args:
            tasks: The tasks that begin again, those of readers among them.
            restored_id: The checkpoint that they resume from, -1 for none.

        Raises:
            UserFunctionError: If an enumerator fails.
        """
        for vertex, coordinator in self._coordinators.items():
            for subtask_index in range(coordinator.parallelism):
                if SubtaskId(VertexId(vertex), subtask_index) in tasks:
                    coordinator.reset_reader(subtask_index, restored_id)

    def closing(self) -> list[Callable[[], None]]:
        """Return what closes the enumerators that were made."""
        return [coordinator.close for coordinator in self._coordinators.values()]
