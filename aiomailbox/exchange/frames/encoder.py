"""From runs and control elements to framed bytes of a sensible size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiomailbox.errors import InvalidArgumentError
from aiomailbox.memory.segment import DEFAULT_SEGMENT_SIZE_BYTES
from aiomailbox.records import Control
from aiomailbox.records.element_codec import ElementCodec
from aiomailbox.records.framing import begin_frame, end_frame
from aiomailbox.records.run import Run

__all__ = ["FRAME_BYTES_WISHED", "FrameEncoder"]

# A frame that fills a segment: large enough to pay for itself, soon complete.
FRAME_BYTES_WISHED: Final = DEFAULT_SEGMENT_SIZE_BYTES

# Beyond so many times the wished size, a frame is made again from shorter pieces.
_EXCESS_MAX: Final = 4
# What the first frame holds, before the size of records is known.
_FIRST_LENGTH: Final = 32
_GROWTH_MAX: Final = 4


class FrameEncoder:
    """Encodes elements, each in a frame of its own, for one output.

    Runs are cut by what their records took before, so that a frame is not much larger
    than wished: a reader has to wait for the whole of it.

    Args:
        codec: For the elements.
        frame_bytes_wished: How large the frame of a run should be.

    Example:
        >>> from aiomailbox.records import LONG_SERIALIZER, ListRun
        >>> encoder = FrameEncoder(ElementCodec(LONG_SERIALIZER))
        >>> [len(frame) for frame, count in encoder.frames(ListRun([1, 2]))]
        [26]
    """

    __slots__ = ("_codec", "_length", "frame_bytes_wished")

    def __init__(
        self, codec: ElementCodec, *, frame_bytes_wished: int = FRAME_BYTES_WISHED
    ) -> None:
        if frame_bytes_wished < 1:
            raise InvalidArgumentError(
                "frame_bytes_wished", f"{frame_bytes_wished} is less than 1"
            )
        self.frame_bytes_wished: int = frame_bytes_wished
        self._codec = codec
        self._length = _FIRST_LENGTH

    def frame(self, element: Control | Run) -> bytearray:
        """Return one element in a frame, whatever its size.

        Raises:
            WrongTypeError: If it cannot be serialized.
            InvalidArgumentError: If it exceeds what a frame may have.
        """
        framed = bytearray()
        start = begin_frame(framed)
        self._codec.write(element, framed)
        end_frame(framed, start)
        return framed

    def frames(self, run: Run) -> Iterator[tuple[bytearray, int]]:
        """Return a run's frames, each with the number of its records; see `frame`."""
        count = len(run)
        start = 0
        while start < count:
            stop = min(start + self._length, count)
            piece = run if stop - start == count else run.slice(start, stop)
            framed = self._frame_or_less(piece)
            if framed is not None:
                yield framed, stop - start
                start = stop

    def _frame_or_less(self, piece: Run) -> bytearray | None:
        """Return the frame, or None: it is far too large, and the next is shorter."""
        framed = bytearray()
        start = begin_frame(framed)
        self._codec.write(piece, framed)
        count, size_bytes, wished = len(piece), len(framed), self.frame_bytes_wished
        fitting = max(1, min(piece.length_max, wished * count // size_bytes))
        # It may fall to one at once, and grows fourfold at most: one run of small
        # records is no promise that the next one is as small.
        self._length = min(fitting, _GROWTH_MAX * max(count, self._length))
        # The work is lost, but only for the first of its kind: the length is known now.
        if size_bytes > _EXCESS_MAX * wished and fitting < count:
            return None
        end_frame(framed, start)
        return framed
