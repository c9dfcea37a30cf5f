"""Functions that keep state without keys by hand: CheckpointedFunction."""

from __future__ import annotations

import inspect
from typing import Any, Protocol, runtime_checkable

from aiomailbox.errors import WrongTypeError
from aiomailbox.operators.core.callables import (
    check_methods,
    describe,
    is_async_callable,
)
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.state.operator_state import OperatorStateStore
from aiomailbox.state.store import KeyedStateStore


class FunctionStateContext:
    """What `CheckpointedFunction` may use.

    Attributes:
        is_restored: Whether the job resumes from a snapshot. So it may have what other
            subtasks kept, or nothing, if there are more subtasks now.
        operator_state: State without keys: ``get_list_state``, ``get_union_list_state``
            and ``get_broadcast_state``.
        state: The keyed state, if the stream has keys.
        subtask_index: From 0.
        parallelism: Subtasks of the operator.

    Concept:
        Flink, ``FunctionInitializationContext`` and ``FunctionSnapshotContext``.
    """

    __slots__ = (
        "is_restored",
        "operator_state",
        "parallelism",
        "state",
        "subtask_index",
    )

    def __init__(self, context: RuntimeContext) -> None:
        self.operator_state: OperatorStateStore = context.operator_state
        self.state: KeyedStateStore = context.keyed_state
        self.subtask_index: int = context.subtask_index
        self.parallelism: int = context.parallelism
        self.is_restored: bool = context.operator_state.is_restored


@runtime_checkable
class CheckpointedFunction(Protocol):
    """What a process function may have, to keep things that belong to no key.

    A function need not derive from it: it is enough to have both methods.

    Concept:
        Flink, ``CheckpointedFunction``.

    Example:
        >>> from aiomailbox.operators.functions.process import ProcessFunction
        >>> from aiomailbox.operators.functions.process import ProcessOperator
        >>> from aiomailbox.state.descriptors import ListStateDescriptor
        >>> from aiomailbox.testing import OneInputHarness
        >>> class Pairs(ProcessFunction):
        ...     def initialize_state(self, context):
        ...         held = ListStateDescriptor("held")
        ...         self.held = context.operator_state.get_list_state(held)
        ...         self.buffer = list(self.held.get())
        ...
        ...     def snapshot_state(self, context):
        ...         self.held.update(self.buffer)
        ...
        ...     def process_element(self, value, context, out):
        ...         self.buffer.append(value)
        ...         if len(self.buffer) == 2:
        ...             out.collect(tuple(self.buffer))
        ...             self.buffer.clear()
        >>> with OneInputHarness(ProcessOperator(Pairs())) as harness:
        ...     harness.process_element("a")
        ...     kept = harness.snapshot()
        >>> harness = OneInputHarness(ProcessOperator(Pairs()))
        >>> harness.restore(kept)
        >>> with harness:
        ...     harness.process_element("b")
        ...     harness.values
        [('a', 'b')]
    """

    def initialize_state(self, context: FunctionStateContext, /) -> None:
        """Get the state, before ``open``; after a restore it holds what was kept."""
        ...

    def snapshot_state(self, context: FunctionStateContext, /) -> None:
        """Put into the state what is to be kept; the snapshot follows at once."""
        ...


class FunctionHooks:
    """Calls the hooks of a function that has them.

    Args:
        function: The user's function object.

    Raises:
        WrongTypeError: If it has one of them without the other, or an ``async def`` one.
    """

    __slots__ = ("_context", "_function")

    def __init__(self, function: Any) -> None:
        self._function: CheckpointedFunction | None = None
        self._context: FunctionStateContext | None = None
        names = ("initialize_state", "snapshot_state")
        found = [name for name in names if callable(getattr(function, name, None))]
        if not found or inspect.isclass(function):
            return
        kind = type(function).__qualname__.rpartition("<locals>.")[2]
        if len(found) == 1:
            missing = next(name for name in names if name not in found)
            raise WrongTypeError(
                "function",
                f"{kind} has {found[0]} and no {missing}",
                f"Define {missing}(self, context), too.",
            )
        check_methods(function, "function", dict.fromkeys(names, ("context",)))
        for name in found:
            method = getattr(function, name)
            if is_async_callable(method):
                raise WrongTypeError(
                    "function",
                    f"{describe(method)} is async, and snapshots are taken without "
                    "awaiting",
                    "Write def instead of async def.",
                )
        self._function = function

    def initialize(self, context: RuntimeContext) -> None:
        """Let the function get its state."""
        if self._function is not None:
            self._context = FunctionStateContext(context)
            self._function.initialize_state(self._context)

    def snapshot(self) -> None:
        """Let the function fill its state, if it got it."""
        if self._function is not None and self._context is not None:
            self._function.snapshot_state(self._context)
