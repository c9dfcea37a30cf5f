# %% [markdown]
# # A first pipeline
#
# Everything here is `await`: a notebook has a running event loop, and the pipeline
# lives on it. Open this file with jupytext, or turn it into a notebook with
# `jupytext --to ipynb examples/notebook.py`.

# %%
import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import aiomailbox as am
from aiomailbox.connectors.spark import local_session

# %% [markdown]
# Streams are descriptions. Nothing runs until a verb does.


# %%
class Word(NamedTuple):
    text: str
    times: int


env = am.StreamExecutionEnvironment()
words = (
    env.from_collection(["to be or not", "to be"])
    .flat_map(str.split)
    .map(lambda text: Word(text, 1))
    .key_by("text")
    .reduce(lambda a, b: Word(a.text, a.times + b.times))
)

# %%
counts = await words.collect()
print(counts)

# %% [markdown]
# The first records are shown as a table, and a stream at the end of a cell as a drawing.

# %%
await words.show(3)

# %%
words

# %% [markdown]
# The blocking door is for scripts. Here it says what to do instead.

# %%
try:
    am.run(words.collect())
except am.UsageError as error:
    print(error)

# %% [markdown]
# ## A job in the background
#
# What it does is kept up to date below this cell, while other cells run. If the cell is run
# again, the new job takes over from the one before, by a savepoint: no tick counts twice.

# %%
job: am.JobClient | None = None


# %%
async def ticks(offset: int | None) -> AsyncIterator[int]:
    tick = 0 if offset is None else offset + 1
    while True:
        yield tick
        tick += 1
        await asyncio.sleep(0.01)


def counting(seen: list[int]) -> am.StreamExecutionEnvironment:
    env = am.StreamExecutionEnvironment().enable_checkpointing(None)
    source = env.from_async_iterable(ticks, name="ticks", offset=lambda tick: tick)
    source.key_by(lambda tick: tick % 2).reduce(max).uid("highest").sink_to(seen.append)
    return env


seen: list[int] = []
job = await counting(seen).execute_async("ticks", progress=True, replace=job)

# %%
while len(seen) < 50:
    await asyncio.sleep(0.1)
first, job = job, await counting(seen).execute_async("ticks", replace=job)
while len(seen) < 100:
    await asyncio.sleep(0.1)
await job.stop()
print("the first job has", first.state.value, "and the ticks are", end=" ")
print("complete" if seen == list(range(len(seen))) else "wrong")

# %% [markdown]
# ## A Spark DataFrame
#
# Its rows come in as named tuples, each makes an asynchronous call, 32 at a time, and
# the results become a DataFrame again.


# %%
class Rated(NamedTuple):
    id: int
    weekday: int
    rating: float


async def rate(row: Any) -> Rated:
    await asyncio.sleep(0.005)  # A call of a service.
    return Rated(row.id, row.id % 7, row.id * 0.5)


@am.pipeline
def rated(rows: am.DataStream[Any]) -> am.DataStream[Rated]:
    return rows.map_async(rate, concurrency=32)


# %%
spark = local_session("notebook")
df = spark.range(200).repartition(2)
numbers = env.from_source(am.SparkSource(df), name="numbers")
result = await numbers.through(rated).to_spark(spark)
result.groupBy("weekday").avg("rating").orderBy("weekday").show()

# %% [markdown]
# ## Changing one's mind
#
# Interrupting a cell, or cancelling a task, cancels the pipeline and the Spark job that
# feeds it.

# %%
many = env.from_source(am.SparkSource(spark.range(10_000_000)), name="many")
task = asyncio.ensure_future(many.through(rated).collect())
await asyncio.sleep(1)
task.cancel()
try:
    await task
except asyncio.CancelledError:
    active = spark.sparkContext.statusTracker().getActiveJobsIds()
    print("cancelled; Spark jobs still running:", len(active))

# %%
spark.stop()
