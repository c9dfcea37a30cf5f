"""A cache that is warm when the first record comes.

The function is an object with `open`, which runs before the first record. `Cache` keeps
results for ten minutes, for a thousand keys at most. Records with the same key share
one lookup.
"""

import asyncio
from typing import Any

import aiomailbox as am

COUNTRIES = {"Rome": "Italy", "Oslo": "Norway", "Bonn": "Germany"}


class Countries:
    """Knows the common cities from the beginning, and asks for the others."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.known: dict[str, str] = {}

    async def open(self, context: Any) -> None:
        await asyncio.sleep(0.01)  # read what is asked for most
        self.known = {"Rome": "Italy"}

    async def __call__(self, city: str) -> str | None:
        if city in self.known:
            return self.known[city]
        self.asked.append(city)
        await asyncio.sleep(0.01)
        return COUNTRIES.get(city)


async def main() -> None:
    asked: list[str] = []
    countries = Countries()
    countries.asked = asked
    env = am.StreamExecutionEnvironment()
    cities = env.from_collection(["Rome", "Oslo", "Rome", "Oslo", "Bonn", "Oslo"])
    joined = cities.lookup_join(
        countries,
        key=lambda city: city,
        cache=am.Cache(size=1000, ttl=am.minutes(10)),
        concurrency=3,
    )
    for city, country in await joined.collect():
        print(city, country)
    print("asked for", asked)


if __name__ == "__main__":
    asyncio.run(main())
