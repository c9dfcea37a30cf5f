"""The optional adapter to aiostream: its streams as sources, ours as its sources.

aiostream is licensed under the GPL, version 3 or later. Nothing else imports this
module; a program that does chooses aiostream, with the extra ``aiomailbox[aiostream]``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from functools import partial
from typing import Any

from aiomailbox.connectors.async_iterable import AsyncIterableSource
from aiomailbox.errors import MissingExtraError, WrongTypeError
from aiomailbox.typevars import T

try:
    from aiostream import Stream
    from aiostream.stream import iterate
except ImportError as error:
    raise MissingExtraError("aiomailbox.connectors.aiostream", "aiostream") from error


def source_from_aiostream(stream: Stream[T]) -> AsyncIterableSource:
    """Return a source that reads an aiostream ``Stream``.

    Each run of the job opens a streamer of its own and leaves its context at the end
    of the job, however that comes. The stream is read at the pace of the pipeline.

    Args:
        stream: The stream; whether it can be read twice is its own business.

    Raises:
        WrongTypeError: If it is not an aiostream ``Stream``.

    Example:
        >>> import aiomailbox as am
        >>> from aiostream import pipe, stream
        >>> squares = stream.range(1, 4) | pipe.map(lambda n: n * n)
        >>> env = am.StreamExecutionEnvironment()
        >>> am.run(env.from_source(source_from_aiostream(squares)).collect())
        [1, 4, 9]
    """
    if not isinstance(stream, Stream):
        raise WrongTypeError(
            "stream",
            f"{stream!r} is not an aiostream Stream",
            "Give e.g. aiostream.stream.range(10); other asynchronous iterables go to "
            "env.from_async_iterable.",
        )
    return AsyncIterableSource(partial(_items, stream))


async def _items(stream: Stream[T]) -> AsyncGenerator[T]:
    async with stream.stream() as items:
        async for item in items:
            yield item


def aiostream_from_stream(stream: AsyncIterable[T]) -> Any:
    """Return an aiostream ``Stream`` of the records of a stream of ours.

    Entering its context starts a job, leaving it cancels the job and waits until all
    of it is gone. Nothing is read ahead beyond what the job's channels hold.

    Args:
        stream: A `DataStream`.

    Raises:
        WrongTypeError: If it cannot be iterated asynchronously.

    Example:
        >>> import aiomailbox as am
        >>> from aiostream import pipe
        >>> env = am.StreamExecutionEnvironment()
        >>> words = env.from_collection(["to", "be"]).map(str.upper)
        >>> async def main():
        ...     return await (aiostream_from_stream(words) | pipe.list())
        >>> am.run(main())
        ['TO', 'BE']
    """
    if not isinstance(stream, AsyncIterable):
        raise WrongTypeError(
            "stream", f"{stream!r} cannot be iterated asynchronously", "Give a stream."
        )
    return iterate(stream)
