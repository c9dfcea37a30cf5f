"""The enumerators of a job: one per source, answering its readers by mail."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

from aiomailbox.errors import WorldError
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.graph.transformation import Transformation
from aiomailbox.ids import OperatorId, SubtaskId, VertexId
from aiomailbox.operators.core.failures import naming_hook
from aiomailbox.operators.snapshots.snapshot import OperatorSnapshot
from aiomailbox.operators.sources.source import SplitEnumerator, check_positions
from aiomailbox.state.operator_state import OperatorStateSnapshot
from aiomailbox.task.messages import AddSplits

# The name is in snapshots.
_ENUMERATOR: Final = "enumerator"

# Of a reader since the last complete checkpoint. Without checkpoints there is none, and
# a reader of a watched directory gets files for ever.
_KEPT_SPLITS_MAX: Final = 10_000


class SourceCoordinator:
    """Runs one source's enumerator and carries splits to the readers.

    Everything happens on the job's loop; what goes to a reader goes as mail, so a
    reader may ask from inside a mail of its own. It outlives attempts of its readers: it
    knows which splits each has got since which checkpoint, and takes those back. Of a
    reader that asks for its splits it keeps at most 10,000 since the last complete
    checkpoint; beyond that, the reader restarts only with the whole job.

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
        # Those that ask; what others get is as much as the enumerator decides to give.
        self._asking: set[int] = set()
        # By reader of which splits were dropped, the last checkpoint before that.
        self._dropped: dict[int, int] = {}
        self._name = item.name
        self._deliver = deliver
        self._naming = partial(naming_hook, operator=item.name, uid=item.uid)
        # One without anything to keep begins with nothing, not anew.
        state = None if restored is None else restored.own.elements(_ENUMERATOR)
        source = item.source
        assert source is not None, "only a source has an enumerator"
        check_positions(source, state or (), item.name, item.uid)
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
        self._keep(subtask_index, splits)
        self._deliver(subtask_index, splits, False)

    def _keep(self, subtask_index: int, splits: list[Any]) -> None:
        """Remember what a reader gets, in case it begins again."""
        if self._dropped.get(subtask_index) == self._last_id:
            return
        assigned = self._assigned.setdefault(subtask_index, [])
        # With the checkpoint that does not know of it yet.
        assigned += [(self._last_id, split) for split in splits]
        if len(assigned) > _KEPT_SPLITS_MAX and subtask_index in self._asking:
            assigned.clear()
            self._dropped[subtask_index] = self._last_id

    def signal_no_more_splits(self, subtask_index: int) -> None:
        """Tell a reader that it has all it will get."""
        self._deliver(subtask_index, [], True)

    def request_split(self, subtask_index: int) -> None:
        """Pass a reader's request to the enumerator."""
        self._asking.add(subtask_index)
        with self._naming("handle_split_request"):
            self._enumerator.handle_split_request(subtask_index)

    def snapshot(self, checkpoint_id: int | None = None) -> OperatorSnapshot:
        """Return what a new coordinator resumes from; its readers keep their splits.

        Args:
            checkpoint_id: The checkpoint that it is a part of; None for a look.
        """
        elements = self._enumerator.snapshot()
        if checkpoint_id is not None:
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
        self._dropped = {
            subtask_index: last_id
            for subtask_index, last_id in self._dropped.items()
            if last_id >= checkpoint_id
        }

    def can_reset(self, subtask_index: int) -> bool:
        """Say whether a reader can resume from the last complete checkpoint alone."""
        return subtask_index not in self._dropped

    def reset_reader(self, subtask_index: int, restored_id: int) -> None:
        """Take back what a reader has got since the checkpoint that it resumes from.

        The reader's task is made, and takes splits from now on.

        Args:
            subtask_index: The reader.
            restored_id: The checkpoint, -1 for none.

        Raises:
            UserFunctionError: If the enumerator fails.
            WorldError: If it has got too many to remember since `can_reset` was asked.

        Concept:
            Flink, ``OperatorCoordinator.subtaskReset``.
        """
        if not self.can_reset(subtask_index):
            raise WorldError(
                f"subtask {subtask_index} of source {self._name!r} has got more than "
                f"{_KEPT_SPLITS_MAX:,} splits since the last checkpoint, and cannot "
                "restart alone"
            )
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
        tell: Tells tasks a command, see `Host.tell`.
    """

    def __init__(
        self, tell: Callable[[Collection[SubtaskId], AddSplits], None]
    ) -> None:
        self._tell = tell
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

    def request_split(self, task: SubtaskId) -> None:
        """Pass a reader's request to its enumerator.

        Raises:
            UserFunctionError: If the enumerator fails.
        """
        self._coordinators[task.vertex].request_split(task.subtask_index)

    def snapshot(
        self, checkpoint_id: int | None = None
    ) -> dict[OperatorId, OperatorSnapshot]:
        """Return what the enumerators resume from, by the ids of their sources."""
        return {
            self._ids[vertex]: coordinator.snapshot(checkpoint_id)
            for vertex, coordinator in self._coordinators.items()
        }

    def on_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Be notified of a complete checkpoint: no reader resumes from an older one."""
        for coordinator in self._coordinators.values():
            coordinator.on_checkpoint_complete(checkpoint_id)

    def can_reset(self, tasks: Collection[SubtaskId]) -> bool:
        """Say whether tasks can begin again while enumerators and other readers go on."""
        return all(
            self._coordinators[task.vertex].can_reset(task.subtask_index)
            for task in tasks
            if task.vertex in self._coordinators
        )

    def reset_readers(self, tasks: Collection[SubtaskId], restored_id: int) -> None:
        """Take back the splits of readers that begin again; enumerators go on.

        Args:
            tasks: The tasks that begin again, those of readers among them.
            restored_id: The checkpoint that they resume from, -1 for none.

        Raises:
            UserFunctionError: If an enumerator fails.
            WorldError: If a reader has got too many splits to remember.
        """
        for task in sorted(tasks):
            coordinator = self._coordinators.get(task.vertex)
            if coordinator is not None:
                coordinator.reset_reader(task.subtask_index, restored_id)

    def _deliver(
        self, vertex: VertexId, subtask_index: int, splits: list[Any], no_more: bool
    ) -> None:
        self._tell([SubtaskId(vertex, subtask_index)], AddSplits(splits, no_more))

    def closing(self) -> list[Callable[[], None]]:
        """Return what closes the enumerators that were made."""
        return [coordinator.close for coordinator in self._coordinators.values()]
