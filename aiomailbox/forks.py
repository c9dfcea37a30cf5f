"""Descriptors that no forked child may keep: it would hide that this process ended.

Theory of operation: what is at the other end of a socket, or waits for a lock, learns of
the end of a process only once the last copy of its descriptor is closed. A child that the
user forks (with `multiprocessing`, say) has copies of all. In the child they become
descriptors of the null device: to close them would free their numbers, which the objects
copied with them would close a second time, when the numbers belong to others.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class _HasDescriptor(Protocol):
    def fileno(self) -> int:
        """Return the descriptor; negative if there is none any more."""


_OWNERS: Final[weakref.WeakSet[_HasDescriptor]] = weakref.WeakSet()


def keep_from_forks(owner: _HasDescriptor) -> None:
    """Have children that are forked from now on without this object's descriptor.

    Args:
        owner: Whatever has a ``fileno()``; it is not kept alive.
    """
    _OWNERS.add(owner)


def _replace_all() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for owner in list(_OWNERS):
        descriptor = owner.fileno()
        if descriptor >= 0:
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_all)
