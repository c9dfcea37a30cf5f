"""An alert when a device has been silent for too long.

Each heartbeat plans a timer and takes back the one before it. A timer that fires has
seen none since. Timers wait for watermarks, and a heartbeat may come before these: then
it tells of the silence itself, so the answer does not depend on when watermarks come.
"""

import asyncio
from typing import Any

import aiomailbox as am

SILENT_MS = 30_000


class Silence(am.KeyedProcessFunction):
    """Emits who has sent nothing for half a minute."""

    def open(self, context: Any) -> None:
        descriptor = am.ValueStateDescriptor("timer", int)
        self.timer = context.keyed_state.get_value(descriptor)

    def process_element(self, beat: Any, context: Any, out: am.Collector) -> None:
        timers, planned = context.timer_service, self.timer.value()
        if planned is not None:
            timers.delete_event_time_timer(planned)
            if planned < context.timestamp:
                self.tell(context.current_key, planned, out)
        self.timer.update(context.timestamp + SILENT_MS)
        timers.register_event_time_timer(self.timer.value())

    def on_timer(self, timestamp: int, context: Any, out: am.Collector) -> None:
        self.timer.clear()
        self.tell(context.current_key, timestamp, out)

    def tell(self, device: str, timestamp: int, out: am.Collector) -> None:
        out.collect(f"{device} silent at {timestamp // 1000} s")


async def main() -> None:
    beats = [("pump", 0), ("fan", 0), ("fan", 20), ("fan", 40), ("pump", 90)]
    time = am.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda beat: beat[1] * 1000
    )
    env = am.StreamExecutionEnvironment()
    alerts = env.from_collection(beats, time).key_by(lambda beat: beat[0])
    for alert in await alerts.process(Silence()).collect():
        print(alert)


if __name__ == "__main__":
    asyncio.run(main())
