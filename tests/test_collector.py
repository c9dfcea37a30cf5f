"""Laws of the tuned garbage collector."""

from __future__ import annotations

import subprocess
import sys

# In a program of its own, as the suite's is frozen for good.
PROGRAM = """
import gc
import aiomailbox as am

passes = []
gc.callbacks.append(
    lambda phase, info: passes.append(info["generation"]) if phase == "start" else None
)


def churn():
    # Objects that stay, as state does.
    passes.clear()
    kept = [[number] for number in range(200_000)]
    return len(passes)


before = churn()
am.tune_collector()
assert gc.get_freeze_count() > 10_000
frozen = gc.get_freeze_count()
after = churn()
print(after <= 45 < before / 2)
am.tune_collector()
print(gc.get_freeze_count() >= frozen)
"""


def test_the_collector_passes_more_rarely_and_visits_less() -> None:
    # A pass holds the loop for as long as it looks at new objects: no more than 5,000.
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["True", "True"]
