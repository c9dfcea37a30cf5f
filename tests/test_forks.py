"""What a forked child has of the parent's descriptors."""

from __future__ import annotations

import os
import socket

import pytest

from aiomailbox.forks import keep_from_forks

pytestmark = [
    pytest.mark.real_time,
    # The child only reads and ends.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def test_a_forked_child_does_not_keep_the_other_end_waiting() -> None:
    mine, theirs = socket.socketpair()
    keep_from_forks(mine)
    release, hold = os.pipe()
    child = os.fork()
    if not child:
        os.close(hold)
        os.read(release, 1)
        os._exit(0)
    try:
        theirs.settimeout(20)
        mine.close()
        assert theirs.recv(1) == b""
    finally:
        os.close(hold)
        os.close(release)
        theirs.close()
        assert os.waitpid(child, 0)[1] == 0


def test_a_number_stays_taken_in_the_child_so_that_nobody_closes_another_file() -> None:
    mine, theirs = socket.socketpair()
    keep_from_forks(mine)
    number = mine.fileno()
    child = os.fork()
    if not child:
        is_null = os.fstat(number).st_rdev == os.stat(os.devnull).st_rdev
        mine.close()
        os._exit(0 if is_null and not os.get_inheritable(theirs.fileno()) else 1)
    assert os.waitpid(child, 0)[1] == 0
    # The parent's own is what it was.
    mine.sendall(b"x")
    assert theirs.recv(1) == b"x"
    mine.close()
    theirs.close()


def test_what_is_closed_needs_nothing() -> None:
    mine, theirs = socket.socketpair()
    keep_from_forks(mine)
    mine.close()
    theirs.close()
    child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
