"""What a sink promises about records that are processed again after a failure."""

from __future__ import annotations

from enum import Enum
from typing import Any

__all__ = ["Guarantee", "guarantee_of"]


class Guarantee(Enum):
    """How often a record reaches a sink's target, in a job that takes checkpoints.

    Attributes:
        EXACTLY_ONCE: Once, and when a checkpoint that has it is complete.
        IDEMPOTENT: At once, and after a failure again under the same key: in the end the
            target is as if it had been once, but readers may see it go back in between.
        AT_LEAST_ONCE: At once, and after a failure again.

    Concept:
        Flink, ``DeliveryGuarantee``.
    """

    EXACTLY_ONCE = "exactly_once"
    IDEMPOTENT = "idempotent"
    AT_LEAST_ONCE = "at_least_once"


def guarantee_of(sink: Any) -> Guarantee:
    """Return what a sink promises: its attribute ``guarantee``, or else the least.

    Example:
        >>> guarantee_of(object())
        <Guarantee.AT_LEAST_ONCE: 'at_least_once'>
    """
    guarantee = getattr(sink, "guarantee", Guarantee.AT_LEAST_ONCE)
    assert isinstance(guarantee, Guarantee), f"{sink!r} promises {guarantee!r}"
    return guarantee
