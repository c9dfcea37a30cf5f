"""The enumerators of a job: one per source, answering its readers by mail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aiomailbox.operators import OperatorSnapshot, Source, SplitEnumerator
from aiomailbox.state import OperatorStateSnapshot

# The name is in snapshots.
_ENUMERATOR: Final = "enumerator"


class SourceCoordinator:
    """Runs one source's enumerator and carries splits to the readers.

    Everything happens on the job's loop; what goes to a reader goes as mail, so a
    reader may ask from inside a mail of its own.

    Args:
        source: The source.
        parallelism: How many readers there are.
        deliver: Sends ``(splits, no_more)`` to the reader of a subtask.
        restored: What `snapshot` of an earlier one returned; None for a beginning.

    Concept:
        Flink, ``SourceCoordinator``.
    """

    def __init__(
        self,
        source: Source[Any],
        parallelism: int,
        deliver: Callable[[int, list[Any], bool], None],
        *,
        restored: OperatorSnapshot | None = None,
    ) -> None:
        self.parallelism = parallelism
        self._deliver = deliver
        # One without anything to keep begins with nothing, not anew.
        state = None if restored is None else restored.own.elements(_ENUMERATOR)
        self._enumerator: SplitEnumerator[Any] = source.create_enumerator(self, state)

    def start(self) -> None:
        """Start the enumerator and register the readers, in order."""
        self._enumerator.start()
        for subtask_index in range(self.parallelism):
            self._enumerator.add_reader(subtask_index)

    def assign_splits(self, subtask_index: int, splits: list[Any]) -> None:
        """Give splits to a reader."""
        self._deliver(subtask_index, splits, False)

    def signal_no_more_splits(self, subtask_index: int) -> None:
        """Tell a reader that it has all it will get."""
        self._deliver(subtask_index, [], True)

    def request_split(self, subtask_index: int) -> None:
        """Pass a reader's request to the enumerator."""
        self._enumerator.handle_split_request(subtask_index)

    def snapshot(self) -> OperatorSnapshot:
        """Return what a new coordinator goes on from; its readers keep their splits."""
        elements = self._enumerator.snapshot()
        return OperatorSnapshot(
            own=OperatorStateSnapshot().with_list(_ENUMERATOR, elements)
        )

    def add_splits_back(self, subtask_index: int, splits: list[Any]) -> None:
        """Give back to the enumerator what a failed reader had got since a snapshot."""
        self._enumerator.add_splits_back(splits, subtask_index)

    def close(self) -> None:
        """Release what the enumerator holds."""
        self._enumerator.close()
