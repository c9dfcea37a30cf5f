"""Events in buffers, under the name that recorded cases run through."""

from __future__ import annotations

from aiomailbox.exchange.frames.encoder import (
    event_buffer,
    event_consumer,
    event_data_type,
)

__all__ = ["event_buffer", "event_consumer", "event_data_type"]
