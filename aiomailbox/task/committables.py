"""Where an operator leaves what is to be committed, whatever it is called."""

from __future__ import annotations

from typing import Any

from aiomailbox.operators import Committables


def committables_key(vertex: int, position: int) -> str:
    """Return the name under which a job knows what one operator prepared.

    Names and uids are the user's: two sinks may have one name, or change it.

    Args:
        vertex: The vertex.
        position: The operator's place in the vertex' chain.
    """
    return f"{vertex}/{position}"


class OperatorCommittables:
    """A `Committables` that files everything under its operator.

    Args:
        job: The job's.
        key: See `committables_key`.
    """

    __slots__ = ("_job", "_key")

    def __init__(self, job: Committables, key: str) -> None:
        self._job = job
        self._key = key

    def add(self, sink: str, committables: list[Any]) -> None:
        """Hand over what ``prepare_commit`` of a writer returned."""
        self._job.add(self._key, committables)
