"""One stream, several sinks: all records to files, alerts to people.

A stream can be used as often as you like; each use gets every record. A side output
carries records of another kind out of a function. The job reads its source once.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import aiomailbox as am

ALERTS = am.OutputTag("alerts")


class Check(am.ProcessFunction):
    """Passes readings on, and emits an alert for one that is too hot."""

    def process_element(self, reading: Any, context: Any, out: am.Collector) -> None:
        out.collect(reading)
        if reading["celsius"] > 80:
            context.output(ALERTS, f"{reading['sensor']} has {reading['celsius']} °C")


async def main(archive: Path) -> None:
    readings = [{"sensor": "s1", "celsius": 20}, {"sensor": "s2", "celsius": 95}]
    alerts: list[str] = []
    means: list[float] = []

    env = am.StreamExecutionEnvironment()
    checked = env.from_collection(readings).process(Check())
    checked.sink_to(am.FileSink(archive, "jsonl"))
    checked.get_side_output(ALERTS).sink_to(alerts.append)
    checked.batch(2).map(
        lambda batch: sum(one["celsius"] for one in batch) / len(batch)
    ).sink_to(means.append)
    await env.execute("readings")

    print(alerts, means)


if __name__ == "__main__":
    directory = Path(tempfile.mkdtemp(), "archive")
    asyncio.run(main(directory))
    for file in directory.glob("*.jsonl"):
        print(file.read_text(), end="")
