"""Strangers who connect over TCP, more of them than the parent has descriptors for."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from aiomailbox.exchange.remote.wire import Hello, encode_message
from tests.runtime.processes.programs import SCRIPT, expect, start

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]

# The parent sleeps for long enough to need nothing but its data server.
PROGRAM = """
import asyncio, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
env.configure(deployment=am.Processes(2, transport="tcp"))
stop = asyncio.Event()
async def numbers():
    number = 0
    while not stop.is_set():
        yield number
        number += 1
        if number == 1000:
            print("running", flush=True)
        await asyncio.sleep(0.0005)
seen = []
async def main():
    asyncio.get_running_loop().add_reader(0, stop.set)
    stream = env.from_async_iterable(numbers()).rebalance().map(lambda n: n)
    stream.key_by(lambda n: n % 8).map(lambda n: n).sink_to(seen.append)
    await env.execute()
    print("equal" if sorted(seen) == list(range(len(seen))) else "lost", flush=True)
asyncio.run(main())
"""


def test_half_greeted_connections_take_no_parent_down(
    traces: Any, tmp_path: Path
) -> None:
    greeting = encode_message(Hello(1, 1, b"x" * 16, "stranger", b"n" * 16, bytes(16)))
    half = bytes(greeting[: len(greeting) // 2])
    met: list[socket.socket] = []
    count = 0
    with start(tmp_path, SCRIPT + PROGRAM, stdin=True) as running:
        expect(running, "running")
        parent = psutil.Process(running.pid)
        ports = [
            each.laddr.port
            for each in parent.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN
        ]
        assert len(ports) == 1
        began_at = time.monotonic()
        # For as long as it takes to be more than it has descriptors for, and for a while.
        while count < 400 or time.monotonic() - began_at < 2:
            with contextlib.suppress(OSError):
                stranger = socket.create_connection(("127.0.0.1", ports[0]), 0.5)
                met.append(stranger)
                count += 1
                stranger.sendall(half)
            if len(met) > 400:
                met.pop(0).close()
            assert running.poll() is None
        seconds = time.monotonic() - began_at
        descriptors = parent.num_fds()
        assert running.stdin is not None
        running.stdin.write("\n")
        running.stdin.flush()
        out, errors = running.communicate(timeout=100)
    for stranger in met:
        stranger.close()
    assert "equal" in out.split(), errors
    assert descriptors < 100
    # A line a second, about, whatever the strangers do.
    assert len(errors.splitlines()) < 20 + 4 * seconds, errors
