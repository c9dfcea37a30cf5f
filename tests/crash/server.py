"""A server that counts calls by key, as somebody does who is paid for each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator


class CountingServer:
    """Answers ``{"key": ..., "price": ...}`` with a total, after a while.

    Attributes:
        begun: How often each key was asked for.
        answered: How often an answer was sent.
    """

    def __init__(self, seed: int) -> None:
        self.begun: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self._random = random.Random(seed)

    async def on_call(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer one call."""
        try:
            line = await reader.readline()
            if line:
                said = json.loads(line)
                self.begun[said["key"]] += 1
                await asyncio.sleep(self._random.uniform(0.005, 0.015))
                writer.write(json.dumps({"total": said["price"] * 2}).encode() + b"\n")
                self.answered[said["key"]] += 1
                await writer.drain()
        except ConnectionError:
            # The program was killed while it waited.
            pass
        finally:
            writer.close()

    @contextlib.asynccontextmanager
    async def at(self, socket: str) -> AsyncIterator[None]:
        """Serve there."""
        server = await asyncio.start_unix_server(self.on_call, socket)
        async with server:
            yield
