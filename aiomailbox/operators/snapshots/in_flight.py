"""Records that an operator holds back, with the watermarks and statuses among them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from aiomailbox.records.elements import MIN_TIMESTAMP, Watermark, WatermarkStatus
from aiomailbox.state.rescale import OperatorStateSnapshot, RedistributionMode

__all__ = ["HeldElement", "HeldRecord", "held_elements", "with_held_elements"]

# A value and its event time, None or `MIN_TIMESTAMP` for none.
HeldRecord = tuple[Any, int | None]
HeldElement = HeldRecord | Watermark | WatermarkStatus

_NAME: Final = "held"
_RECORDS: Final = "-records"
_CONTROLS: Final = "-controls"


def with_held_elements(
    own: OperatorStateSnapshot,
    elements: Iterable[HeldElement],
    *,
    follow_keys: bool = False,
    name: str = _NAME,
) -> OperatorStateSnapshot:
    """Return what an operator keeps, with what it holds back, in order.

    Args:
        own: What it keeps besides.
        elements: What it holds back.
        follow_keys: Whether each subtask is to get all records when the parallelism
            changes, because it knows which are its own; if not, they are split.
        name: Under which they are kept.
    """
    records: list[HeldRecord] = []
    controls: list[tuple[int, int | str]] = []
    for element in elements:
        if isinstance(element, Watermark):
            controls.append((len(records), element.timestamp_ms))
        elif isinstance(element, WatermarkStatus):
            controls.append((len(records), element.value))
        else:
            records.append(element)
    mode = RedistributionMode.MERGE if follow_keys else RedistributionMode.SPLIT
    own = own.with_list(name + _RECORDS, records, mode)
    if not controls:
        return own
    places = (len(records), tuple(controls))
    return own.with_list(name + _CONTROLS, [places], RedistributionMode.MERGE)


def held_elements(
    own: OperatorStateSnapshot, watermark_ms: int, name: str = _NAME
) -> list[HeldElement]:
    """Return what was held back, in order.

    Where the records were spread anew, they come first and then the operator's
    watermark: none that was held back is later.

    Args:
        own: What the operator kept.
        watermark_ms: How far event time had come before the operator.
        name: Under which it was kept.
    """
    records: list[HeldRecord] = own.elements(name + _RECORDS)
    places = own.elements(name + _CONTROLS)
    if not places:
        return [*records]
    count, controls = places[0]
    if len(places) > 1 or count != len(records):
        last = Watermark(watermark_ms)
        return [*records] if watermark_ms == MIN_TIMESTAMP else [*records, last]
    elements: list[HeldElement] = []
    taken = 0
    for place, control in controls:
        elements += records[taken:place]
        taken = place
        elements.append(
            Watermark(control) if isinstance(control, int) else WatermarkStatus(control)
        )
    return [*elements, *records[taken:]]
