"""Rules that change while the job runs.

Rules are a stream like any other. The job broadcasts them: each subtask has all of
them, and a new rule counts from then on. The function reads the rules before the
payments.
"""

import asyncio
from typing import Any

import aiomailbox as am

LIMITS = am.MapStateDescriptor("limits", str, int)


class Check(am.BroadcastProcessFunction):
    """Emits payments above the limit of their country."""

    def __init__(self) -> None:
        self.has_rules = False

    def next_selection(self) -> am.InputSelection:
        return am.InputSelection.ALL if self.has_rules else am.InputSelection.SECOND

    def end_input(self, index: int, out: am.Collector) -> None:
        self.has_rules |= index == 1

    def process_element(self, payment: Any, context: Any, out: am.Collector) -> None:
        country, amount = payment
        limit = context.get_broadcast_state(LIMITS).get(country)
        if limit is not None and amount > limit:
            out.collect(payment)

    def process_broadcast_element(
        self, rule: Any, context: Any, out: am.Collector
    ) -> None:
        context.get_broadcast_state(LIMITS).put(*rule)


async def main() -> None:
    env = am.StreamExecutionEnvironment(parallelism=2)
    rules = env.from_collection([("NO", 100), ("IT", 50)]).broadcast(LIMITS)
    payments = env.from_collection([("NO", 70), ("IT", 70), ("NO", 120), ("FR", 999)])
    suspicious = payments.rebalance().connect(rules).process(Check())
    print(sorted(await suspicious.collect()))


if __name__ == "__main__":
    asyncio.run(main())
