"""Keys of Redis, written so that writing again changes nothing."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import msgspec

from aiomailbox.connectors.sinks import (
    ImmediateSink,
    ImmediateWriter,
    field_names,
    patient,
)
from aiomailbox.durations import above_zero, duration_ms
from aiomailbox.errors import (
    InvalidArgumentError,
    MissingExtraError,
    RecordsRefusedError,
    RecordTypeError,
    SinkError,
)
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.failures import USER_ERRORS
from aiomailbox.operators.core.fields import field_or_function
from aiomailbox.operators.core.operator import Pending
from aiomailbox.operators.core.user_code import caller_location
from aiomailbox.operators.sinks.sink import Guarantee
from aiomailbox.records.run import Run
from aiomailbox.signatures import check_type

_PLAIN = (bytes, int, float)


class RedisSink(ImmediateSink):
    """Sets a key of Redis for each record: the latest record of a key wins.

    Guarantee: idempotent. Records are written at once, and a checkpoint waits until the
    server has accepted all earlier records. After a failure, those since the latest
    checkpoint are written again, in order: each key ends as if they were written once,
    but readers may see earlier values for a moment. Without checkpoints, a failed job
    has written some of its records. Records of one key must come from one subtask, as
    after ``key_by``, and no write may depend on how often it is made: there are no
    counters and no lists here. The server's own settings decide which keys survive its
    crash.

    Args:
        url: ``redis://user:password@host:6379/0``, ``rediss://`` or ``unix://path``; needs
            the extra ``redis``.
        key: A field, or a function of a record that returns a str, bytes or int.
        value: A field, or a function of a record; None for the record as JSON. A str,
            bytes or number is set as it is, anything else as JSON; None deletes the key.
        prefix: The prefix of all keys.
        as_hash: Whether a key is a hash: the value is a dict, or with ``value=None`` the
            fields of the record. Its fields are set, and deleted if they are None; others
            are kept.
        expire: How long after its last write a key expires: a timedelta or seconds.

    Raises:
        InvalidArgumentError: If an argument has an invalid value.
        MissingExtraError: If redis is not installed.
        WrongTypeError: If an argument has the wrong type.

    Example:
        >>> RedisSink("redis://localhost", key="user", prefix="spent:")
        <RedisSink 'spent:' of redis://localhost>
    """

    guarantee = Guarantee.IDEMPOTENT
    # A round trip.
    has_fixed_cost = True

    def __init__(
        self,
        url: str,
        *,
        key: str | Callable[[Any], Any],
        value: str | Callable[[Any], Any] | None = None,
        prefix: str = "",
        as_hash: bool = False,
        expire: timedelta | float | None = None,
    ) -> None:
        check_type(url, str, "url", "Use redis://localhost.", "a URL")
        parts = urlsplit(url)
        if parts.scheme not in {"redis", "rediss", "unix"}:
            raise InvalidArgumentError(
                "url", "it is not a URL of Redis", "Use redis://, rediss:// or unix://."
            )
        if importlib.util.find_spec("redis") is None:
            raise MissingExtraError("RedisSink", "redis")
        check_type(prefix, str, "prefix", 'Use "spent:".')
        self._url = url
        self._line = caller_location()
        # Without the password, for errors and `repr`.
        self._place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._prefix = prefix
        expire_ms = None if expire is None else duration_ms(expire, "expire")
        above_zero(expire_ms, "expire", ", so that keys would expire at once")
        self._commands = _Commands(
            field_or_function(key, "key"),
            None if value is None else field_or_function(value, "value"),
            prefix.encode(),
            as_hash,
            expire_ms,
        )

    def create_writer(self, context: RuntimeContext) -> _RedisWriter:
        """Create the writer of one subtask."""
        return _RedisWriter(
            self._url, self._place, self._commands, context.random, self._line
        )

    def __repr__(self) -> str:
        return f"<RedisSink {self._prefix!r} of {self._place}>"


class _Commands:
    """Says what is to be sent for a record."""

    def __init__(
        self,
        key: Callable[[Any], Any],
        value: Callable[[Any], Any] | None,
        prefix: bytes,
        as_hash: bool,
        expire_ms: int | None,
    ) -> None:
        self._key = key
        self._value = value
        self._prefix = prefix
        self._as_hash = as_hash
        self._expire_ms = expire_ms

    def of(self, record: Any) -> list[tuple[Any, ...]]:
        """Return a record's commands.

        Raises whatever the user's functions do.

        Raises:
            RecordTypeError: If its key or value cannot be written.
        """
        key = self._prefix + _key(self._key(record))
        value = record if self._value is None else self._value(record)
        if value is None:
            return [("DEL", key)]
        if self._as_hash:
            return self._hash(key, value)
        data = _encoded(value) if self._value is not None else _json(value)
        if self._expire_ms is None:
            return [("SET", key, data)]
        return [("SET", key, data, "PX", self._expire_ms)]

    def _hash(self, key: bytes, value: Any) -> list[tuple[Any, ...]]:
        fields = value
        if not isinstance(value, Mapping):
            fields = {name: getattr(value, name) for name in field_names(value)}
        found = [
            (_encoded(name), _encoded(one))
            for name, one in fields.items()
            if one is not None
        ]
        gone = [_encoded(name) for name, one in fields.items() if one is None]
        commands: list[tuple[Any, ...]] = []
        if found:
            commands.append(("HSET", key, *(part for pair in found for part in pair)))
        if gone:
            commands.append(("HDEL", key, *gone))
        # Again with each write, as a key that is written stays.
        if found and self._expire_ms is not None:
            commands.append(("PEXPIRE", key, self._expire_ms))
        return commands


class _RedisWriter(ImmediateWriter):
    """Sends each run as one pipeline."""

    def __init__(
        self,
        url: str,
        place: str,
        commands: _Commands,
        random: random.Random,
        line: str,
    ) -> None:
        self._url = url
        self._place = place
        self._commands = commands
        self._random = random
        self._line = line
        self._client: Any = None

    def write_run(self, run: Run) -> Pending:
        """Send the commands of records, and wait for the answers.

        Raises:
            RecordsRefusedError: If some have no command, or the server refuses it.
        """
        return self._write(run) if len(run) else None

    def close(self) -> Pending:
        """Close the connections."""
        client, self._client = self._client, None
        if client is None:
            return None
        return client.aclose()

    async def _write(self, run: Run) -> None:
        refused: dict[int, BaseException] = {}
        owners: list[int] = []
        commands: list[tuple[Any, ...]] = []
        for index, record in enumerate(run.values):
            try:
                found = self._commands.of(record)
            except USER_ERRORS as error:
                refused[index] = error
                continue
            commands += found
            # One record may be several commands: an answer is found by its owner.
            owners += [index] * len(found)
        if commands:

            async def send() -> list[Any]:
                return await self._send(commands)

            answers = await patient(send, self._place, self._random, self._line)
            for index, answer in zip(owners, answers, strict=True):
                if isinstance(answer, Exception):
                    refused[index] = answer
        if refused:
            raise RecordsRefusedError(refused, len(run))

    async def _send(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        """Send commands; return an answer or an error for each.

        Raises:
            ConnectionError: If the server is away, starts or changes its role.
            SinkError: If it does not want this client.
        """
        from redis import asyncio as redis, exceptions

        if self._client is None:
            self._client = redis.from_url(self._url)
        try:
            # No transaction: each command stands for itself, and a connection keeps
            # their order.
            async with self._client.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                # Each answer by itself: one record's failure is not the others'.
                answers: list[Any] = await pipeline.execute(raise_on_error=False)
        except exceptions.AuthenticationError as error:
            raise SinkError(f"{self._place} denies access: {error}") from error
        except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            raise ConnectionError(str(error)) from error
        # Both pass: the whole run is sent again, which changes nothing for what got
        # through.
        away = (exceptions.ReadOnlyError, exceptions.BusyLoadingError)
        for answer in answers:
            if isinstance(answer, away):
                raise ConnectionError(str(answer))
        return answers


def _key(key: Any) -> bytes:
    if isinstance(key, bytes):
        return key
    if isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool)):
        return str(key).encode()
    raise RecordTypeError(
        "key", f"{key!r} is not a key of Redis", "Return a str, bytes or int."
    )


def _encoded(value: Any) -> Any:
    if isinstance(value, str):
        # Here, where what cannot be encoded is one record, and not the whole run.
        return value.encode()
    is_plain = isinstance(value, _PLAIN) and not isinstance(value, bool)
    return value if is_plain else _json(value)


def _json(value: Any) -> bytes:
    as_dict = getattr(value, "_asdict", None)
    # msgspec takes a NamedTuple for a list.
    return msgspec.json.encode(value if as_dict is None else as_dict())
