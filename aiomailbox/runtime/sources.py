"""The enumerators of a job: one per source, answering its readers by mail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiomailbox.operators import Source, SplitEnumerator


class SourceCoordinator:
    """Runs one source's enumerator and carries splits to the readers.

    Everything happens on the job's loop; what goes to a reader goes as mail, so a
    reader may ask from inside a mail of its own.

    Args:
        source: The source.
        parallelism: How many readers there are.
        deliver: Sends ``(splits, no_more)`` to the reader of a subtask.

    Concept:
        Flink, ``SourceCoordinator`` (embedded, without checkpoints of its own yet).
    """

    def __init__(
        self,
        source: Source[Any],
        parallelism: int,
        deliver: Callable[[int, list[Any], bool], None],
    ) -> None:
        self.parallelism = parallelism
        self._deliver = deliver
        self._enumerator: SplitEnumerator[Any] = source.create_enumerator(self)

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

    def close(self) -> None:
        """Release what the enumerator holds."""
        self._enumerator.close()
