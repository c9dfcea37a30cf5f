"""What may go wrong in a simulated run, and how often."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Final

from aiomailbox.errors import InvalidArgumentError

__all__ = ["Blow", "Faults"]


class Blow(Enum):
    """What ends the tasks of a job, or the whole program."""

    TASK_CRASH = "task_crashes"
    PROGRAM_CRASH = "program_crashes"
    CANCELLATION = "cancellations"
    RESCALE = "rescales"
    SAVEPOINT = "savepoints"


_WEIGHTS: Final = {blow.value for blow in Blow}


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What may go wrong in a simulated run, and how often.

    A run gets from 1 to ``blows_max`` blows, each of a kind that is drawn by these
    weights; 0 for a kind that is not wanted. Smaller faults, up to ``small_max``, come with a
    probability at each occasion.

    Attributes:
        blows_max: How many blows a run gets at most; then it may come to its end.
        task_crashes: A task fails between two callbacks of the loop: while it is
            restored or opened, while it runs, or while it ends.
        program_crashes: From one moment to the next nothing that the program does
            counts any more; after a while it is started again and resumes from its
            latest checkpoint. The moment may be within a file operation or a commit,
            also of those with which a program or an attempt begins.
        cancellations: The job is cancelled, and started again from its latest
            checkpoint.
        rescales: Likewise, with another parallelism.
        savepoints: The job is stopped with a savepoint, and started again from it with
            another parallelism.
        small_max: How many smaller faults a run gets at most.
        slow_call: A call in a thread, such as writing a snapshot, takes up to seconds.
        failing_write: A file of a checkpoint cannot be written.
        failing_metadata: What makes a checkpoint count cannot be written, or has been
            written and an error is raised nevertheless.
        lost_acknowledgement: A task's acknowledgement never arrives.
        late_acknowledgement: It arrives up to seconds later.
        late_notification: Tasks are notified of a complete checkpoint seconds later.
        failing_commit: A commit is not answered, before or after it has been done, or
            fails the job.
        failing_sink: A writer of the sink fails while it takes records.

    Raises:
        InvalidArgumentError: If a number is negative, or a probability above 1.

    Example:
        >>> Faults(program_crashes=0, rescales=0).task_crashes
        4.0
    """

    blows_max: int = 4
    task_crashes: float = 4.0
    program_crashes: float = 2.0
    cancellations: float = 1.0
    rescales: float = 1.0
    savepoints: float = 1.0
    small_max: int = 10
    slow_call: float = 0.02
    failing_write: float = 0.03
    failing_metadata: float = 0.05
    lost_acknowledgement: float = 0.02
    late_acknowledgement: float = 0.05
    late_notification: float = 0.05
    failing_commit: float = 0.05
    failing_sink: float = 0.005

    def __post_init__(self) -> None:
        for one in fields(self):
            number = getattr(self, one.name)
            is_chance = not one.name.endswith("_max") and one.name not in _WEIGHTS
            if not number >= 0 or (is_chance and number > 1):
                wanted = "a probability from 0 to 1" if is_chance else "0 or more"
                raise InvalidArgumentError(
                    one.name, f"{number} is out of range", f"Give {wanted}."
                )

    @classmethod
    def none(cls) -> Faults:
        """Return faults that never happen."""
        return cls(blows_max=0, small_max=0)
