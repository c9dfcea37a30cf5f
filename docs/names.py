"""Which documented name a piece of code on a page means: `env.execute(...)`, `am.Retry`."""

from __future__ import annotations

import re

# What the words of the pages stand for, as in their examples.
OWNERS = {
    "am": [""],
    "env": ["StreamExecutionEnvironment"],
    "stream": ["DataStream", "KeyedStream"],
    "keyed": ["KeyedStream", "DataStream"],
    "connected": ["ConnectedStreams"],
    "windowed": ["WindowedStream"],
    "partitions": ["PartitionWindowedStream"],
    "job": ["JobClient"],
    "strategy": ["WatermarkStrategy"],
    "inbox": ["Inbox"],
    "pipeline": ["Pipeline"],
}
# Methods that are named alone, if nothing else can be meant.
ALONE = [
    "",
    "DataStream",
    "KeyedStream",
    "WindowedStream",
    "PartitionWindowedStream",
    "StreamExecutionEnvironment",
    "JobClient",
    "WatermarkStrategy",
]
# Pages on which every word in code is a name of ours.
CATALOGUES = {"concepts/operators"}
PATH = re.compile(
    r"(?:\w+ = )?(?:await |async with )?\.?([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?=$|[(:=])"
)


def candidates(code: str, docname: str = "") -> list[str]:
    """Return the full names that code on a page may mean, the likeliest first."""
    found = PATH.match(code)
    if found is None:
        return []
    owner, _, rest = found[1].partition(".")
    if rest and owner in OWNERS:
        names = [f"{each}.{rest}" for each in OWNERS[owner]]
    elif rest or docname in CATALOGUES or may_stand_alone(code, owner):
        names = [f"{each}.{found[1]}" for each in ALONE]
    else:
        return []
    return [f"aiomailbox.{name.lstrip('.')}" for name in names]


def may_stand_alone(code: str, name: str) -> bool:
    """Say whether a word is surely a name of ours: not `name`, but `name(...)`."""
    return "(" in code or "_" in name.strip("_") or not name.islower()
