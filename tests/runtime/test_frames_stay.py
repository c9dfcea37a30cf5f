"""Frames of a thread that works may be looked at from another one, whatever collects."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiomailbox.supervision import frames_stay

PROGRAM = Path(__file__).with_name("frames_program.py")
COLLECTS_ANYWHERE = sys.version_info < (3, 12)


@pytest.mark.parametrize("who", ["watch", "heartbeat"])
def test_a_collection_in_the_middle_of_a_look_corrupts_nothing(who: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(PROGRAM), who],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "whole\n", "")


def test_collections_begin_again_when_the_last_one_has_looked() -> None:
    assert gc.isenabled()
    with frames_stay:
        with frames_stay:
            pass
        assert gc.isenabled() is not COLLECTS_ANYWHERE
    assert gc.isenabled()


def test_who_collects_by_hand_is_left_to_it() -> None:
    gc.disable()
    try:
        with frames_stay:
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.skipif(not COLLECTS_ANYWHERE, reason="later Pythons need none of it")
def test_a_forked_copy_collects() -> None:
    with frames_stay:
        child = os.fork()
        if not child:
            with frames_stay:
                pass
            os._exit(0 if gc.isenabled() else 1)
    assert os.waitpid(child, 0)[1] == 0
