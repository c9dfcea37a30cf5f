"""Files in S3, or wherever fsspec reaches.

`FileSource` takes the URLs that fsspec knows: with `s3fs` installed,
`s3://bucket/orders/*.jsonl`. This recipe uses fsspec's storage in memory, so that it
runs anywhere. Checkpoints may be in such a storage too:
`enable_checkpointing(am.seconds(60), directory="s3://bucket/jobs")`.
"""

import asyncio
import json

import fsspec

import aiomailbox as am


async def main() -> None:
    storage = fsspec.filesystem("memory")
    for day in range(3):
        with storage.open(f"memory://orders/{day}.jsonl", "w") as file:
            file.write(json.dumps({"day": day, "price": day * 1.5}))

    env = am.StreamExecutionEnvironment()
    orders = env.from_source(am.FileSource("memory://orders/*.jsonl"))
    print(await orders.map(lambda order: order["price"]).collect())


if __name__ == "__main__":
    asyncio.run(main())
