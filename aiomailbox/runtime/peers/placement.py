"""Which process runs which subtask (pure).

Theory of operation: slot i of a slot sharing group holds subtask i of every vertex of the
group, so that what subtasks of one number say to each other stays in one process. Slots
are dealt out to the workers in consecutive shares.
What needs the process that starts the job runs there: it is a peer like the others.

Concept:
    Flink, ``SlotSharingGroup``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiomailbox.exchange.remote.connection import ConnectionOptions
from aiomailbox.exchange.remote.handshake import PeerAddress, Security
from aiomailbox.graph.job_graph import JobGraph
from aiomailbox.ids import TaskId

PARENT: Final = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the subtasks of a job run.

    Attributes:
        workers: How many worker processes there are: peers 1 to ``workers``.
        peers: For each vertex the peer of each subtask; `PARENT` is 0.
    """

    workers: int
    peers: dict[int, tuple[int, ...]]

    def peer_of(self, task: TaskId) -> int:
        """Return the peer that runs a subtask."""
        return self.peers[task.vertex][task.subtask_index]

    def is_at(self, peer: int, vertex: int, subtask_index: int) -> bool:
        """Say whether there is such a subtask, and it runs at a peer."""
        peers = self.peers.get(vertex, ())
        return 0 <= subtask_index < len(peers) and peers[subtask_index] == peer


def place(graph: JobGraph, processes: int) -> Placement:
    """Return where the subtasks of a job run."""
    widths: dict[str, int] = {}
    for vertex in graph.vertices:
        if not vertex.stays_in_parent:
            group = vertex.head.slot_sharing_group
            widths[group] = max(widths.get(group, 0), vertex.parallelism)
    first_slots: dict[str, int] = {}
    slots = 0
    for group, width in widths.items():
        first_slots[group] = slots
        slots += width
    workers = min(processes, slots)
    return Placement(
        workers,
        {
            vertex.id: (PARENT,) * vertex.parallelism
            if vertex.stays_in_parent
            else tuple(
                worker_of_slot(
                    first_slots[vertex.head.slot_sharing_group] + index, slots, workers
                )
                for index in range(vertex.parallelism)
            )
            for vertex in graph.vertices
        },
    )


def worker_of_slot(slot: int, slots: int, workers: int) -> int:
    """Return the worker, from 1, that a slot belongs to.

    Example:
        >>> [worker_of_slot(slot, 5, 2) for slot in range(5)]
        [1, 1, 1, 2, 2]
    """
    return 1 + slot * workers // slots


def peer_name(peer: int) -> str:
    """Return what people call a peer."""
    return "the parent process" if peer == PARENT else f"worker {peer}"


# Where a peer of a job runs, as its starter says.


@dataclass(frozen=True, slots=True)
class PeerPlace:
    """The place that a peer runs at.

    Attributes:
        listen_at: Where other peers ask it for data; port 0 takes a free one.
        security: What peers prove themselves with.
        options: Limits and timeouts of the connections between peers.
        directory: Returns the job's directory below a place for files, "" for that of
            temporary files.
    """

    listen_at: PeerAddress
    security: Security
    options: ConnectionOptions
    directory: Callable[[str], str]
