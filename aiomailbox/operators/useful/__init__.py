"""Ready-made operators: batches, buffers, duplicates, patterns, samples."""

from __future__ import annotations

from aiomailbox.operators.useful.batch import BatchOperator
from aiomailbox.operators.useful.buffer import BufferOperator, BufferPolicy
from aiomailbox.operators.useful.deduplicate import DeduplicateOperator
from aiomailbox.operators.useful.latest import WithLatestOperator
from aiomailbox.operators.useful.match import MatchOperator
from aiomailbox.operators.useful.pattern import Match, Pattern, pattern
from aiomailbox.operators.useful.sample import SampleOperator

__all__ = [
    "BatchOperator",
    "BufferOperator",
    "BufferPolicy",
    "DeduplicateOperator",
    "Match",
    "MatchOperator",
    "Pattern",
    "SampleOperator",
    "WithLatestOperator",
    "pattern",
]
