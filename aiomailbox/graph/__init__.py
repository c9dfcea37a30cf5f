"""From the user's calls to the job that is deployed."""

from aiomailbox.graph.chaining import build_job_graph, is_chainable
from aiomailbox.graph.channels import (
    channel_name,
    is_channel_of,
    producer_of_channel,
    why_never_unaligned,
)
from aiomailbox.graph.columns import describe_form, rows_from
from aiomailbox.graph.describe import (
    describe_mermaid,
    describe_plan,
    describe_text,
    unreplayable_sources,
)
from aiomailbox.graph.job_graph import Edge, JobGraph, JobVertex, Node
from aiomailbox.graph.operator_ids import operator_ids
from aiomailbox.graph.regions import (
    FailoverRegions,
    check_blocking,
    has_blocking,
    producers_of,
)
from aiomailbox.graph.svg import describe_svg
from aiomailbox.graph.transformation import (
    ChainingStrategy,
    FunctionInfo,
    OperatorFactory,
    Origin,
    Transformation,
    reachable,
)
from aiomailbox.graph.wiring import consumers_of

__all__ = [
    "ChainingStrategy",
    "Edge",
    "FailoverRegions",
    "FunctionInfo",
    "JobGraph",
    "JobVertex",
    "Node",
    "OperatorFactory",
    "Origin",
    "Transformation",
    "build_job_graph",
    "channel_name",
    "check_blocking",
    "consumers_of",
    "describe_form",
    "describe_mermaid",
    "describe_plan",
    "describe_svg",
    "describe_text",
    "has_blocking",
    "is_chainable",
    "is_channel_of",
    "operator_ids",
    "producer_of_channel",
    "producers_of",
    "reachable",
    "rows_from",
    "unreplayable_sources",
    "why_never_unaligned",
]
