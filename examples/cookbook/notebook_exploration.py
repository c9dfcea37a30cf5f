"""Look around, as in a notebook.

In a notebook leave out `main`: each line is a cell, and `await` works there. A stream
runs only when you ask for results; `show` and `take` run it only as far as they need.
"""

import asyncio

import aiomailbox as am


async def main() -> None:
    env = am.StreamExecutionEnvironment()
    words = env.from_collection(["to", "be", "or", "not", "to", "be"]).name("words")
    await words.show(2)
    print(await words.map(len).take(3))
    lengths = words.key_by(len).aggregate(am.count(), include_key=True)
    print(await lengths.collect())

    # What would run, without running it.
    lengths.sink_to(print).name("printed")
    print("words" in env.explain("words"), "printed" in env.explain("words"))


if __name__ == "__main__":
    asyncio.run(main())
