"""JSON lines in, JSON lines out.

The source reads a directory of log files, one after the other, in a thread. The sink
writes the errors into another directory, which appears when the job has succeeded. With
`watch=` the source would continue with files that appear later.
"""

import asyncio
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import aiomailbox as am


@dataclass
class Entry:
    level: str
    message: str


async def main() -> None:
    here = Path(tempfile.mkdtemp())
    (here / "logs").mkdir()
    for day, level in enumerate(["INFO", "ERROR", "ERROR"]):
        line = json.dumps({"level": level, "message": f"day {day}"})
        (here / "logs" / f"{day}.jsonl").write_text(line + "\n")

    env = am.StreamExecutionEnvironment()
    logs = env.from_source(am.FileSource(here / "logs", "jsonl", records=Entry))
    errors = logs.filter(lambda entry: entry.level == "ERROR")
    errors.sink_to(am.FileSink(here / "errors", "jsonl"))
    await env.execute("errors of all days")

    for file in sorted((here / "errors").glob("*.jsonl")):
        print(file.read_text(), end="")


if __name__ == "__main__":
    asyncio.run(main())
