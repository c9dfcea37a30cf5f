"""What functions of two streams may say about their inputs."""

from __future__ import annotations

from collections.abc import Callable

from aiomailbox.errors import WrongTypeError
from aiomailbox.operators.core.contract import Pending, then
from aiomailbox.operators.core.input_selection import InputSelection
from aiomailbox.operators.core.on_error import USER_ERRORS, raise_as
from aiomailbox.operators.core.two_input import TwoInputOperator
from aiomailbox.operators.functions.base import ElementOperator
from aiomailbox.records.elements import MIN_TIMESTAMP
from aiomailbox.records.run import Run


class CoFunctionOperator(ElementOperator, TwoInputOperator):
    """The base of operators that run a function of two streams.

    The function may have ``end_input(index, out)``, called when input 0 or 1 has ended,
    and ``next_selection()``, asked after each record which input the next one comes
    from. With the latter, records are read one at a time, which costs speed.

    Concept:
        Flink, ``BoundedMultiInput`` and ``InputSelectable``.
    """

    methods = ("process_element1", "process_element2")

    def process_run1(self, run: Run) -> Pending:
        """Call the function for each record of the first stream."""
        return self.process_input(0, run)

    def process_run2(self, run: Run) -> Pending:
        """Call the function for each record of the second stream."""
        return self.process_input(1, run)

    @property
    def next_selection(self) -> Callable[[], InputSelection] | None:
        """What to ask for the inputs to be read, or None to read all of them."""
        if getattr(self.function, "next_selection", None) is None:
            return None
        return self._selected

    def end_input1(self) -> Pending:
        """Tell the function that the first input has ended."""
        return self._ended(0)

    def end_input2(self) -> Pending:
        """Tell the function that the second input has ended."""
        return self._ended(1)

    def _ended(self, index: int) -> Pending:
        end_input = getattr(self.function, "end_input", None)
        if end_input is None:
            return None
        self._collector.timestamp = MIN_TIMESTAMP
        pending = self._failures.guard(end_input, index, self._collector)
        return then(pending, self._collector.emit)

    def _selected(self) -> InputSelection:
        try:
            selection = self.function.next_selection()
        except USER_ERRORS as error:
            raise_as(self._failures.user_error(error), error)
        if not isinstance(selection, InputSelection):
            raise WrongTypeError(
                "next_selection",
                f"it returned {selection!r}, not an InputSelection",
                "Return am.InputSelection.FIRST, SECOND or ALL.",
            )
        return selection
