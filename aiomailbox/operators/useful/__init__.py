"""Operators and aggregates that nobody should have to write again."""

from __future__ import annotations

from aiomailbox.operators.useful.batch import BatchOperator
from aiomailbox.operators.useful.buffer import BufferOperator, BufferPolicy
from aiomailbox.operators.useful.deduplicate import DeduplicateOperator
from aiomailbox.operators.useful.distinct import CountDistinct, count_distinct
from aiomailbox.operators.useful.first_last import FirstLast, first, last
from aiomailbox.operators.useful.latest import WithLatestOperator
from aiomailbox.operators.useful.match import MatchOperator
from aiomailbox.operators.useful.pattern import Match, Pattern, pattern
from aiomailbox.operators.useful.quantile import Quantile, quantile
from aiomailbox.operators.useful.sample import SampleOperator
from aiomailbox.operators.useful.top_n import TopN, top_n

__all__ = [
    "BatchOperator",
    "BufferOperator",
    "BufferPolicy",
    "CountDistinct",
    "DeduplicateOperator",
    "FirstLast",
    "Match",
    "MatchOperator",
    "Pattern",
    "Quantile",
    "SampleOperator",
    "TopN",
    "WithLatestOperator",
    "count_distinct",
    "first",
    "last",
    "pattern",
    "quantile",
    "top_n",
]
