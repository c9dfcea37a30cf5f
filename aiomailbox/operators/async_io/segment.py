"""A stretch of rows between two watermarks."""

from __future__ import annotations

from aiomailbox.records.events import Watermark, WatermarkStatus

QueuedControl = Watermark | WatermarkStatus


class RowSegment:
    """Rows that arrived after one control element and before the next.

    Attributes:
        held: Rows that have not been emitted.
        controls: What is emitted when they all are; empty while the segment is open.
        before: The segment that arrived before, or None.
        after: The segment that arrived after, or None while this one is the last.
        number: Grows from segment to segment.
    """

    __slots__ = ("after", "before", "controls", "held", "number")

    def __init__(self, before: RowSegment | None) -> None:
        self.held: int = 0
        self.controls: list[QueuedControl] = []
        self.before: RowSegment | None = before
        self.after: RowSegment | None = None
        self.number: int = 0 if before is None else before.number + 1

    def close(self, control: QueuedControl) -> RowSegment:
        """End the segment with a control element and return the one that follows."""
        self.controls.append(control)
        self.after = RowSegment(self)
        return self.after

    def merge_into_before(self) -> None:
        """Leave the list; what came between is gone, so the controls move up.

        Of several watermarks, or statuses, in a row only the last one is kept.
        """
        before, after = self.before, self.after
        assert before is not None, "the first segment is not merged"
        assert after is not None, "the open segment is not merged"
        kinds = {type(control) for control in self.controls}
        before.controls = [
            control for control in before.controls if type(control) not in kinds
        ] + self.controls
        before.after = after
        after.before = before
