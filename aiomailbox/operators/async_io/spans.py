"""One OpenTelemetry span for each asynchronous call, with its retries as events.

Only the API is used, and only by a job that asks for it: where it goes is up to the
program. The spans of a job belong to the trace of the code that started it, also in
workers, which get it in the W3C format.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiomailbox.errors import safe_str
from aiomailbox.operators.async_io.entry import Call
from aiomailbox.operators.core.context import RuntimeContext

__all__ = ["CallSpans", "spans_of"]


class CallSpans:
    """Makes the spans of one operator's calls.

    Args:
        context: The operator's context.
        carrier: The trace that they belong to, in the W3C format.
    """

    def __init__(self, context: RuntimeContext, carrier: Mapping[str, str]) -> None:
        from opentelemetry import propagate, trace

        self._trace = trace
        self._tracer = trace.get_tracer("aiomailbox")
        self._parent = propagate.extract(dict(carrier))
        self._name = context.operator_name
        self._about: dict[str, Any] = {
            "aiomailbox.job": context.job_name,
            "aiomailbox.operator": context.operator_name,
            "aiomailbox.subtask_index": context.subtask_index,
        }
        if context.uid is not None:
            self._about["aiomailbox.uid"] = context.uid

    async def attempt(
        self, call: Call, function: Callable[[Any], Awaitable[Any]], argument: Any
    ) -> Any:
        """Await one attempt; spans that the function begins are below the call's."""
        if call.span is None:
            call.span = self._tracer.start_span(
                self._name,
                context=self._parent,
                attributes={**self._about, "aiomailbox.rows": len(call.entries)},
            )
        with self._trace.use_span(
            call.span, record_exception=False, set_status_on_exception=False
        ):
            return await function(argument)

    def retry(self, call: Call, reason: Any, delay_s: float) -> None:
        """Say that a call is made again."""
        if call.span is not None:
            what = (
                type(reason).__name__ if isinstance(reason, BaseException) else "result"
            )
            call.span.add_event(
                "retry",
                {
                    "attempt": call.attempts,
                    "delay_s": delay_s,
                    "reason": f"{what}: {safe_str(reason)}"[:500],
                },
            )

    def end(self, call: Call, error: BaseException | None = None) -> None:
        """End the span of a call, once."""
        span, call.span = call.span, None
        if span is None:
            return
        span.set_attribute("aiomailbox.attempts", call.attempts)
        if error is not None:
            span.record_exception(error)
            span.set_status(
                self._trace.Status(self._trace.StatusCode.ERROR, type(error).__name__)
            )
        span.end()


def spans_of(context: RuntimeContext) -> CallSpans | None:
    """Return what makes an operator's spans; None if the job wants none."""
    carrier = context.trace_carrier
    return None if carrier is None else CallSpans(context, carrier)
