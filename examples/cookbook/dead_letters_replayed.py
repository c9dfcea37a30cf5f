"""Dead letters, kept today and tried again tomorrow.

Records whose calls have failed go into files of their own, with the error. The next day
the same pipeline reads the records from these files.
"""

import asyncio
import json
import tempfile
from pathlib import Path

import aiomailbox as am

FAILED = am.OutputTag("failed")


def priced(
    orders: am.DataStream[str], prices: dict[str, int], letters: Path
) -> am.DataStream[tuple[str, int]]:
    """Return the orders with their prices; keep those that have none."""

    async def price(order: str) -> tuple[str, int]:
        return order, prices[order]

    found = orders.map_async(price, on_error=am.dead_letter(FAILED))
    kept = found.get_side_output(FAILED).map(
        lambda letter: {"order": letter.record, "error": letter.error_type}
    )
    kept.sink_to(am.FileSink(letters, "jsonl"))
    return found


async def main() -> None:
    here = Path(tempfile.mkdtemp())

    env = am.StreamExecutionEnvironment()
    seen: list[tuple[str, int]] = []
    orders = env.from_collection(["tea", "gold", "milk"])
    priced(orders, {"tea": 3, "milk": 1}, here / "monday").sink_to(seen.append)
    await env.execute("monday")
    print(seen)
    for file in sorted((here / "monday").glob("*.jsonl")):
        print(json.loads(file.read_text()))

    env = am.StreamExecutionEnvironment()
    again: list[tuple[str, int]] = []
    letters = env.from_source(am.FileSource(here / "monday", "jsonl"))
    orders = letters.map(lambda letter: letter["order"])
    priced(orders, {"gold": 900}, here / "tuesday").sink_to(again.append)
    await env.execute("tuesday")
    print(again)


if __name__ == "__main__":
    asyncio.run(main())
