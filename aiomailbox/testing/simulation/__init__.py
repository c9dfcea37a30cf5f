"""Pipelines under faults of a seed, on virtual time."""

from __future__ import annotations

from aiomailbox.testing.simulation.simulating import (
    SimulatedRun,
    SimulationError,
    SimulationReport,
    simulate,
)
from aiomailbox.testing.simulation.world import Faults, SimulatedCalls, SimulatedSink

__all__ = [
    "Faults",
    "SimulatedCalls",
    "SimulatedRun",
    "SimulatedSink",
    "SimulationError",
    "SimulationReport",
    "simulate",
]
