"""What a task is to run, as the job's graph decided it: operators and how they chain.

The graph is a layer above: it describes chains in these terms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aiomailbox.exchange.input.gate import InputGate
from aiomailbox.exchange.writer import RecordWriter
from aiomailbox.ids import OperatorId
from aiomailbox.memory.local_pool import LocalBufferPool
from aiomailbox.operators.core.contract import Operator
from aiomailbox.records.elements import OutputTag
from aiomailbox.task.channel_state import TaskChannels

_NO_ID: Final = OperatorId("")


@dataclass(slots=True)
class OutgoingEdge:
    """One way out of an operator: to a chained operator or into a writer.

    Attributes:
        target: The index of the next operator in the chain, or None.
        writer: The writer, or None.
        tag: The side output that goes this way, None for the main output.
    """

    target: int | None = None
    writer: RecordWriter | None = None
    tag: OutputTag | None = None


@dataclass(slots=True)
class OperatorPlan:
    """One operator of a chain.

    Attributes:
        name: The operator's name.
        uid: The user's stable name for it, or None.
        factory: Makes it.
        is_keyed: Whether it has keyed state.
        outgoing: Its ways out.
        metrics_name: What its metrics are called, unique in the chain; "" for its name.
        operator_id: By what its state is found again; "" for its uid or its name.
        functions: The user's functions in it, as text.
        tags_given: Its side outputs that are named when the job starts if nothing reads
            them; those that its functions emit to are not known before they do.
    """

    name: str
    uid: str | None
    factory: Callable[[], Operator]
    is_keyed: bool = False
    outgoing: list[OutgoingEdge] = field(default_factory=list)
    metrics_name: str = ""
    operator_id: OperatorId = _NO_ID
    functions: str = ""
    tags_given: frozenset[OutputTag] = frozenset()

    def __post_init__(self) -> None:
        self.operator_id = self.operator_id or OperatorId(self.uid or self.name)


@dataclass(slots=True)
class TaskPlan:
    """Everything that one subtask consists of.

    Attributes:
        operators: The chain, head first, each after the one that feeds it.
        gates: For each input of the head, its gate; none for a source.
        writers: All writers of the task.
        pools: Where the writers' buffers come from, for metrics.
        channels: What keeps data in flight; None where barriers never overtake, and
            nothing is restored that has any.
    """

    operators: list[OperatorPlan]
    gates: list[InputGate] = field(default_factory=list)
    writers: list[RecordWriter] = field(default_factory=list)
    pools: list[LocalBufferPool] = field(default_factory=list)
    channels: TaskChannels | None = None
