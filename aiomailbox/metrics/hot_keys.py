"""Which keys have the most records: a sample, counted in a bounded number of places.

Theory of operation: of each run of records a key or two are looked at, at places that move,
so that a long run costs no more than a short one. The counts are those of Space-Saving: when
all places are taken, the key with the smallest count gives way and leaves it its count,
which bounds the error by the share of one place.

Concept:
    Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements in
    data streams (2005).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final

import msgspec

__all__ = ["HotKey", "HotKeys"]

_PLACES: Final = 32
_SHOWN_MAX: Final = 5
_TEXT_MAX: Final = 60
# All halve then, so that what was hot long ago cools down.
_COUNT_MAX: Final = 4096
# A prime: places of runs of equal length differ from run to run.
_STRIDE: Final = 7919


class HotKey(msgspec.Struct, frozen=True):
    """A key that has many records.

    Attributes:
        key: The key, as text.
        share: Its share of the records, from 0 to 1, estimated.
    """

    key: str
    share: float


class HotKeys:
    """Counts the keys of one operator.

    Example:
        >>> keys = HotKeys()
        >>> for _ in range(100):
        ...     keys.sample(["hot", "hot", "hot", "cold"])
        >>> keys.top()[0].key
        "'hot'"
    """

    __slots__ = ("_counts", "_offset", "_total")

    def __init__(self) -> None:
        self._counts: dict[Hashable, int] = {}
        self._offset = 0
        self._total = 0

    def sample(self, keys: Sequence[Any]) -> None:
        """Look at some keys of a run.

        Args:
            keys: Those of the records of a run, in order.
        """
        if not keys:
            return
        self._offset += _STRIDE
        counts, key = self._counts, keys[self._offset % len(keys)]
        if key in counts:
            counts[key] += 1
        elif len(counts) < _PLACES:
            counts[key] = 1
        else:
            least = min(counts, key=counts.__getitem__)
            counts[key] = counts.pop(least) + 1
        self._total += 1
        if self._total == _COUNT_MAX:
            self._counts = {
                key: count // 2 for key, count in counts.items() if count > 1
            }
            self._total //= 2

    def top(self) -> list[HotKey]:
        """Return the keys with the most records, the hottest first."""
        total = self._total
        # It may be counted in another thread meanwhile.
        counts = dict(self._counts)
        found = sorted(counts.items(), key=lambda item: -item[1])
        return [HotKey(_text(key), count / total) for key, count in found[:_SHOWN_MAX]]


def _text(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}..."
