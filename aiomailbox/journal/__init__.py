"""Finished calls, kept so that none is made twice: logs, their index, and fencing.

Theory of operation: every subtask of an operator appends what its calls came to, to a
log of its own. When a job starts its tasks anew, what those before have left and may
still be asked for is put together into one base, which all subtasks of the operator can
look into, whichever of them had made a call. A log is divided where checkpoints are
taken, so that what lies before the oldest retained one can be deleted.
"""

from __future__ import annotations

from aiomailbox.journal.entries import EntryKind
from aiomailbox.journal.journals import Journals

__all__ = [
    "EntryKind",
    "Journals",
]
