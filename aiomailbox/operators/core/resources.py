"""The life of a user's function: given its state, opened once, and closed once."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

from aiomailbox.errors import WrongTypeError
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.operator import (
    Operator,
    Pending,
    finished,
    pending_of,
    then,
)
from aiomailbox.operators.core.user_code import (
    check_methods,
    describe,
    is_async_callable,
    method_of,
)
from aiomailbox.signatures import no_such_name
from aiomailbox.state.operator_state import OperatorStateStore
from aiomailbox.state.table_store import KeyedStateStore

# Functions that keep state without keys by hand: CheckpointedFunction.


class FunctionStateContext:
    """The state that a `CheckpointedFunction` may use.

    Attributes:
        is_restored: Whether the job resumes from a snapshot. So it may have what other
            subtasks kept, or nothing, if there are more subtasks now.
        operator_state: State without keys: ``get_list_state``, ``get_union_list_state``
            and ``get_broadcast_state``.
        keyed_state: The keyed state, if the stream has keys.
        subtask_index: From 0.
        parallelism: Subtasks of the operator.

    Concept:
        Flink, ``FunctionInitializationContext`` and ``FunctionSnapshotContext``.
    """

    def __init__(self, context: RuntimeContext) -> None:
        self.operator_state: OperatorStateStore = context.operator_state
        self.keyed_state: KeyedStateStore = context.keyed_state
        self.subtask_index: int = context.subtask_index
        self.parallelism: int = context.parallelism
        self.is_restored: bool = context.operator_state.is_restored

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say what is meant.

            Raises:
                AttributeError: Always.
            """
            text = no_such_name(self, name, "context", {"state": "keyed_state"})
            raise AttributeError(text, name=name, obj=None)


@runtime_checkable
class CheckpointedFunction(Protocol):
    """Methods of a process function that keeps state without keys.

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

    def snapshot_state(self, context: FunctionStateContext, /) -> None:
        """Put into the state what is to be kept; the snapshot follows at once."""


def checkpointed(function: Any) -> CheckpointedFunction | None:
    """Return a function object if it keeps state without keys by hand, or else None.

    Raises:
        WrongTypeError: If it has one of the methods without the other, or an
            ``async def`` one.
    """
    names = ("initialize_state", "snapshot_state")
    found = [name for name in names if callable(getattr(function, name, None))]
    if not found or inspect.isclass(function):
        return None
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
                f"{describe(method)} is async, and snapshots are taken without awaiting",
                "Write def instead of async def.",
            )
    return function


class FunctionLife:
    """Calls ``open`` and ``close`` of a function object, and holds what ``open`` gave.

    ``open(context)`` may be sync or async, and may return a context manager, sync or
    async: it is entered before the first record and left after the last, and what it
    gives is the `resource`, of this object and of the contexts that the function gets.
    So an HTTP client, say, is opened once a subtask.

    Args:
        function: An object that may have ``open(context)`` and ``close()``.

    Attributes:
        resource: What the context manager gave, or None.

    Example:
        >>> import asyncio, contextlib
        >>> class Function:
        ...     @contextlib.asynccontextmanager
        ...     async def open(self, context):
        ...         yield "client"
        ...         print("closed")
        >>> async def main():
        ...     life = FunctionLife(Function())
        ...     await life.open(None)
        ...     print(life.resource)
        ...     await life.close()
        >>> asyncio.run(main())
        client
        closed
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._exit: Callable[..., Any] | None = None
        self._holders: tuple[Any, ...] = ()
        self.is_open: bool = False
        self._checkpointed = checkpointed(function)
        self._state: FunctionStateContext | None = None
        self.resource: Any = None

    def open(self, context: Any, *holders: Any) -> Pending:
        """Give the function its state, open it, and enter what it returns.

        Args:
            context: What ``open`` is called with.
            *holders: Their attribute ``resource`` is set, too.
        """
        self._holders = holders
        self.is_open = True
        if self._checkpointed is not None:
            self._state = FunctionStateContext(context)
            self._checkpointed.initialize_state(self._state)
        acquire = method_of(self._function, "open")
        return None if acquire is None else self._enter(acquire(context))

    @property
    def fills_state(self) -> bool:
        """Whether the function has ``snapshot_state``."""
        return self._checkpointed is not None

    def snapshot(self) -> None:
        """Let the function fill its state, if it has ``snapshot_state`` and got it."""
        if self._checkpointed is not None and self._state is not None:
            self._checkpointed.snapshot_state(self._state)

    def share(self, *holders: Any) -> None:
        """Let more objects have the resource as their attribute."""
        self._holders += holders
        for holder in holders:
            holder.resource = self.resource

    def close(self) -> Pending:
        """Leave the context manager, then close the function; once, if it was opened."""
        if not self.is_open:
            return None
        self.is_open = False
        leave, self._exit = self._exit, None
        release = method_of(self._function, "close")
        if leave is None:
            return None if release is None else _ended(release())
        return self._leave(leave, release)

    def _enter(self, given: Any) -> Pending:
        if given is None:
            return None
        if hasattr(type(given), "__aenter__"):
            return self._enter_async(given)
        if hasattr(type(given), "__enter__"):
            self._hold(given.__enter__(), given.__exit__)
            return None
        if inspect.isawaitable(given):
            return self._enter_awaited(given)
        raise WrongTypeError(
            "open",
            f"{describe(self._function.open)} returned {given!r}",
            "Return None, or a context manager such as an HTTP client.",
        )

    async def _enter_awaited(self, given: Awaitable[Any]) -> None:
        await finished(self._enter(await given))

    async def _enter_async(self, given: Any) -> None:
        self._hold(await given.__aenter__(), given.__aexit__)

    def _hold(self, resource: Any, leave: Callable[..., Any]) -> None:
        self._exit = leave
        self.resource = resource
        for holder in self._holders:
            holder.resource = resource

    async def _leave(
        self, leave: Callable[..., Any], release: Callable[[], Any] | None
    ) -> None:
        try:
            left = leave(None, None, None)
            if inspect.isawaitable(left):
                await left
        finally:
            self.resource = None
            await finished(None if release is None else _ended(release()))


class FunctionHolder(Operator):
    """The base of operators with a function object, which keeps its state and is closed."""

    _life: FunctionLife
    _failures: RecordFailures

    @property
    def acts_at_checkpoints(self) -> bool:
        """Whether the function holds what belongs into its state, or wants to hear."""
        return super().acts_at_checkpoints or self._life.fills_state

    def fill_state(self) -> None:
        """Let the function put what it holds into its state."""
        if self._life.is_open:
            self._failures.guard(self._life.snapshot)

    def close(self) -> Pending:
        """Close the function, if it was opened."""
        closed = super().close()
        if not self._life.is_open:
            return closed
        return then(closed, self._failures.guard, self._life.close)


def _ended(result: object) -> Pending:
    """Return what is to be awaited of what ``close`` returned; its value is dropped."""
    pending = pending_of(result)
    return None if pending is None else finished(pending)
