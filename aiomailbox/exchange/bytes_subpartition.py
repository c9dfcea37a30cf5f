"""A channel's queue of bytes, under the name that recorded cases run through."""

from __future__ import annotations
