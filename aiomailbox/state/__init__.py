"""State of operators: how it is described, kept, captured, restored and rescaled."""

from __future__ import annotations

from aiomailbox.state.operator_state import OperatorStateSnapshot

__all__ = [
    "OperatorStateSnapshot",
]
