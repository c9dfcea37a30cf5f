"""Tools for tests of streaming code: controllable time, and small fakes.

The harnesses are imported when they are first used, so that the virtual-time loop
does not import the whole engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aiomailbox.testing.context import ManualClock
from aiomailbox.testing.virtual_time import (
    DeadlockError,
    VirtualTimeLoop,
    virtual_time_loop_factory,
)

if TYPE_CHECKING:
    from aiomailbox.testing.context import (
        FreeLimiter,
        HarnessMailbox,
        MemoryHandover,
        RecordingLog,
        TestRuntimeContext,
    )
    from aiomailbox.testing.harness import (
        HarnessInput,
        OneInputHarness,
        OperatorHarness,
        RecordingOutput,
        TwoInputHarness,
        redistributed,
    )
    from aiomailbox.testing.scripted_source import (
        CRASH,
        END,
        PAUSE,
        InjectedFailureError,
        ScriptedSource,
    )
    from aiomailbox.testing.simulation.simulating import (
        SimulatedRun,
        SimulationError,
        SimulationReport,
        simulate,
    )
    from aiomailbox.testing.simulation.world import (
        Faults,
        SimulatedCalls,
        SimulatedSink,
    )

__all__ = [
    "CRASH",
    "END",
    "PAUSE",
    "DeadlockError",
    "Faults",
    "FreeLimiter",
    "HarnessInput",
    "HarnessMailbox",
    "InjectedFailureError",
    "ManualClock",
    "MemoryHandover",
    "OneInputHarness",
    "OperatorHarness",
    "RecordingLog",
    "RecordingOutput",
    "ScriptedSource",
    "SimulatedCalls",
    "SimulatedRun",
    "SimulatedSink",
    "SimulationError",
    "SimulationReport",
    "TestRuntimeContext",
    "TwoInputHarness",
    "VirtualTimeLoop",
    "redistributed",
    "simulate",
    "virtual_time_loop_factory",
]

_MODULES = {
    "context": "FreeLimiter HarnessMailbox MemoryHandover RecordingLog TestRuntimeContext",
    "harness": "HarnessInput OneInputHarness OperatorHarness RecordingOutput "
    "TwoInputHarness redistributed",
    "scripted_source": "CRASH END PAUSE InjectedFailureError ScriptedSource",
    "simulation": "Faults SimulatedCalls SimulatedRun SimulatedSink SimulationError "
    "SimulationReport simulate",
}
_MODULE_OF = {
    name: module for module, names in _MODULES.items() for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"aiomailbox.testing.{_MODULE_OF[name]}")
    return getattr(module, name)
