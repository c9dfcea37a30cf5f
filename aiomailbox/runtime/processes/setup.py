"""What a worker process gets before it learns of its job, and what it makes of it."""

from __future__ import annotations

import os
import sys
from typing import Final

import msgspec

from aiomailbox.errors import CorruptStreamError
from aiomailbox.exchange.remote.connection import ConnectionOptions
from aiomailbox.exchange.remote.endpoints import PeerAddress
from aiomailbox.exchange.remote.handshake import Security
from aiomailbox.runtime.peers.place import PeerPlace

__all__ = ["SETUP_BYTES_MAX", "WorkerSetup", "decode_setup"]

SETUP_BYTES_MAX: Final = 16 << 20
# A function may hold the loop of a peer for as long as it likes: whether it is dead says
# the parent, which watches its process. Greetings come before any function runs.
_DAY_S: Final = 86_400.0
_OPTIONS: Final = ConnectionOptions(stall_timeout=_DAY_S, connect_timeout=_DAY_S)


class WorkerSetup(msgspec.Struct, frozen=True, array_like=True):
    """The first frame that a worker process gets.

    Attributes:
        sys_path: Where the parent finds modules. Names of directories need not be text.
        python_path: What ``PYTHONPATH`` is in the parent, None if it is not set.
        directories: The job's directories, by the place below which each was made.
        host: Where it listens, or the path of a unix socket.
        port: Its port, None for a unix socket.
        secret: What the peers of the job prove themselves with.
    """

    sys_path: list[bytes]
    python_path: bytes | None
    directories: dict[str, str]
    host: str
    port: int | None
    secret: bytes

    @property
    def place(self) -> PeerPlace:
        """The place of a peer with this setup."""
        return PeerPlace(
            PeerAddress(self.host, self.port),
            Security(secret=self.secret),
            _OPTIONS,
            self.directories.__getitem__,
        )

    def import_as_parent(self) -> None:
        """Find modules where the parent does, and let programs that are started do so."""
        sys.path[:] = map(os.fsdecode, self.sys_path)
        if self.python_path is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environb[b"PYTHONPATH"] = self.python_path


_DECODER: Final = msgspec.msgpack.Decoder(tuple[int, WorkerSetup])


def decode_setup(body: bytes) -> tuple[int, WorkerSetup]:
    """Return a worker's setup, after the number of an attempt, as in all frames.

    Raises:
        CorruptStreamError: If it is none.
    """
    try:
        return _DECODER.decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptStreamError(f"a worker's setup cannot be read: {error}") from error
