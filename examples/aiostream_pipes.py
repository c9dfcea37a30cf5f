"""aiostream in front and behind: its operators for time and shape, ours for state.

aiostream merges and spaces out small streams; a keyed pipeline counts; aiostream cuts
the results into chunks. It is an optional dependency: ``pip install
'aiomailbox[aiostream]'`` (and GPL, which its users have to mind).
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from aiostream import Stream, pipe, stream

import aiomailbox as am
from aiomailbox.connectors.aiostream import aiostream_from_stream, source_from_aiostream


class Visit(NamedTuple):
    user: str
    page: str


class Visits(NamedTuple):
    page: str
    number: int


def visits_of(user: str, pages: list[str], every_s: float) -> Stream[Visit]:
    """Return what a user looks at, one page after another."""
    visits = [Visit(user, page) for page in pages]
    return stream.iterate(visits) | pipe.spaceout(every_s)


@am.pipeline
def counted(visits: am.DataStream[Visit]) -> am.DataStream[Visits]:
    """Count the visits of each page, after each visit."""
    return (
        visits.map(lambda visit: Visits(visit.page, 1))
        .key_by("page")
        .reduce(lambda a, b: Visits(a.page, a.number + b.number))
    )


async def main() -> list[list[Visits]]:
    merged = stream.merge(
        visits_of("Ada", ["home", "news", "home"], every_s=0.01),
        visits_of("Bob", ["news", "home", "sport"], every_s=0.015),
    )
    env = am.StreamExecutionEnvironment().configure(buffer_timeout=am.millis(0))
    counts = env.from_source(source_from_aiostream(merged)).through(counted)
    chunks: list[list[Visits]] = []
    async with (aiostream_from_stream(counts) | pipe.chunks(2)).stream() as pairs:
        async for pair in pairs:
            print(", ".join(f"{page} {number}" for page, number in pair))
            chunks.append(pair)
    return chunks


if __name__ == "__main__":
    asyncio.run(main())
