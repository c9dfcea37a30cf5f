"""Applies ``on_error`` to windows whose function raised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiomailbox.operators.core.callables import shortened
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.contract import Output
from aiomailbox.operators.core.failures import RecordFailures
from aiomailbox.operators.core.on_error import ErrorAction, OnError
from aiomailbox.state.snapshot import copy_content
from aiomailbox.windowing.time_window import Window


@dataclass(frozen=True, slots=True)
class FailedWindow:
    """A window whose firing failed: what a `DeadLetter` of a window has as its record.

    Attributes:
        key: The window's key; 0 of windows without keys.
        window: The window.
        elements: The records that it held; after reduce or aggregate a list of one, the
            accumulator.
    """

    key: Any
    window: Window
    elements: list[Any]


class WindowFailures(RecordFailures):
    """The records and firings of one window operator that failed.

    Attributes:
        may_fail: Whether the job goes on after a failure.
    """

    __slots__ = ("may_fail",)

    def __init__(
        self,
        on_error: OnError,
        function: Callable[..., Any],
        context: RuntimeContext,
        output: Output,
    ) -> None:
        super().__init__(on_error, function, context, output)
        self.may_fail: bool = on_error.action is not ErrorAction.FAIL

    def take_window(
        self, key: Any, window: Window, elements: list[Any], error: BaseException
    ) -> None:
        """Do with a window whose firing failed what ``on_error`` says.

        Args:
            key: Its key.
            window: The window.
            elements: What it held; copied if it is passed on.
            error: What its function raised.

        Raises:
            UserFunctionError: From ``error``, if nothing may fail.
        """
        if not self.forgives(error):
            self.fail(error, f"the window: {window} of the key {shortened(key)}")
        letter = self._on_error.action is ErrorAction.DEAD_LETTER
        record = FailedWindow(key, window, copy_content(elements)) if letter else window
        self.take(record, window.max_timestamp, error)
