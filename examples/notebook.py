# %% [markdown]
# # A first pipeline
#
# Everything here is `await`: a notebook has a running event loop, and the pipeline
# lives on it. Open this file with jupytext, or turn it into a notebook with
# `jupytext --to ipynb examples/notebook.py`.

# %%
import asyncio
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
# The blocking door is for scripts. Here it says what to do instead.

# %%
try:
    am.run(words.collect())
except am.UsageError as error:
    print(error)

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
