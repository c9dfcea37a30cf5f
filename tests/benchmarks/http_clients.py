"""``python -m tests.benchmarks.http_clients PORT CLIENTS SECONDS``: clients of a server.

A process of its own, so that what it measures is the server's loop and not its own. Each
client keeps a connection open, asks, and waits 50 ms after each answer. The last line is
the times of all answers, in seconds, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

_REQUEST = b"GET /answer HTTP/1.1\r\nHost: here\r\n\r\n"
_PAUSE_S = 0.05


async def _client(port: int, end: float, times: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (started := time.perf_counter()) < end:
        writer.write(_REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = head.lower().partition(b"content-length:")[2].split()[0]
        await reader.readexactly(int(length))
        times.append(time.perf_counter() - started)
        await asyncio.sleep(_PAUSE_S)
    writer.close()


async def _all(port: int, clients: int, seconds: float) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + seconds
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(_client(port, end, times))
    return times


if __name__ == "__main__":
    port, clients, seconds = sys.argv[1:]
    print(json.dumps(asyncio.run(_all(int(port), int(clients), float(seconds)))))
