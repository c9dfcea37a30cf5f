"""Where an operator leaves what is to be committed, whatever it is called."""

from __future__ import annotations

from typing import Any

from aiomailbox.ids import OperatorId
from aiomailbox.operators import Committables


class OperatorCommittables:
    """A `Committables` that files everything under its operator.

    Names are the user's: two sinks may have one name, or change it.

    Args:
        job: The job's.
        operator_id: Of the operator.
    """

    __slots__ = ("_job", "_operator_id")

    def __init__(self, job: Committables, operator_id: OperatorId) -> None:
        self._job = job
        self._operator_id = operator_id

    def add(self, sink: str, committables: list[Any]) -> None:
        """Hand over what ``prepare_commit`` of a writer returned."""
        self._job.add(self._operator_id, committables)
