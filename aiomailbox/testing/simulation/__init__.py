"""Pipelines under faults of a seed, on virtual time."""

from __future__ import annotations

from aiomailbox.testing.simulation.faults import Faults
from aiomailbox.testing.simulation.simulating import (
    SimulatedRun,
    SimulationError,
    SimulationReport,
    simulate,
)

__all__ = ["Faults", "SimulatedRun", "SimulationError", "SimulationReport", "simulate"]
