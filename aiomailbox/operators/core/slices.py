"""Work and sequences that grow without bound, cut into pieces that end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from typing import Any, Final

from aiomailbox.eventtime.timers import Slice
from aiomailbox.operators.core.context import RuntimeContext
from aiomailbox.operators.core.operator import Output, Pending, finished
from aiomailbox.records.run import RUN_LENGTH_MAX

# Work of an operator that loops over its state, done in pieces.
#
# Theory of operation: a watermark may fire a million timers. They fire in pieces, and
# between two pieces the operator looks around: what was emitted goes out; where the
# output has no room left, or the slice is over, it waits for that, and the task takes
# mail but no records meanwhile. A piece is as long as a quarter of a slice, so that the
# clock is not read per timer; what has to be awaited is a piece of its own.


_PIECE_S: Final = 0.000_25


# Of `in_slices`: some milliseconds.
_STEPS: Final = 4096


class Slices:
    """Does work of an operator piece by piece.

    Args:
        context: The operator's: its clock, and its mailbox to pause for.
        output: Looked at between two pieces.
        flush: Passes on what the pieces have emitted so far; called before a pause, in
            which the operator may be snapshotted.

    Concept:
        Flink, ``MailboxWatermarkProcessor``; there, records are processed between two
        timers of one watermark.
    """

    def __init__(
        self, context: RuntimeContext, output: Output, flush: Callable[[], Pending]
    ) -> None:
        self._mailbox = context.mailbox
        self._monotonic = context.clock.monotonic
        self._availability = output.availability
        self._flush = flush
        self._count = 1

    def run(self, piece: Slice) -> Pending:
        """Do all pieces, with a pause between two of them where it is time for one.

        Args:
            piece: Does at most as many steps as it is allowed, and says whether there is
                nothing left; or returns an awaitable of that.
        """
        monotonic, mailbox = self._monotonic, self._mailbox
        availability = self._availability
        while True:
            started = monotonic()
            done = piece(self._count)
            if done is True:
                return None
            if done is not False:
                return self._run_rest(piece, done)
            self._adapt(monotonic() - started)
            if mailbox.should_interrupt(any_mail=True) or not availability.available:
                return self._run_rest(piece, None)

    async def _run_rest(self, piece: Slice, done: Awaitable[bool] | None) -> None:
        mailbox, availability = self._mailbox, self._availability
        while done is None or not await done:
            await finished(self._flush())
            if not availability.available:
                await mailbox.pause_until(availability)
            if mailbox.should_interrupt(any_mail=True):
                await mailbox.pause()
            started = self._monotonic()
            following = piece(self._count)
            if following is True:
                return
            done = None
            if following is False:
                self._adapt(self._monotonic() - started)
            else:
                done = following

    def _adapt(self, elapsed_s: float) -> None:
        """Let a piece take a quarter of a slice: it grows slowly and falls at once."""
        longest = min(2 * self._count, RUN_LENGTH_MAX)
        if elapsed_s * longest <= _PIECE_S * self._count:
            self._count = longest
        else:
            self._count = max(1, int(_PIECE_S * self._count / elapsed_s))


def in_slices(piece: Callable[[int], bool]) -> Pending:
    """Do work of an operator that opens, and let the event loop go between two pieces.

    Args:
        piece: Does about so many steps, of a microsecond or less; says whether there is
            nothing left.

    Returns:
        None if little was left, else an awaitable that does the rest.
    """
    return None if piece(_STEPS) or piece(_STEPS) else _rest_in_slices(piece)


def done_after(pending: Pending, *, done: bool) -> bool | Awaitable[bool]:
    """Return what a piece of `Slices` returns.

    Args:
        pending: What has to be awaited before, or None.
        done: Whether there is nothing left.
    """
    return done if pending is None else _after(pending, done=done)


async def _after(pending: Awaitable[None], *, done: bool) -> bool:
    await pending
    return done


async def _rest_in_slices(piece: Callable[[int], bool]) -> None:
    # Nothing is waited for: others have their turn.
    while not piece(_STEPS):  # noqa: ASYNC110
        await asyncio.sleep(0)


# Sequences in state that grow by one value at a time, and are never changed in place.
#
# Theory of operation: what is kept in state is replaced and never changed, because
# snapshots share it; a tuple that is replaced for each value costs the square of its
# length. So a sequence is a tuple of tuples whose lengths fall, as the digits of a
# binary counter: a new value is a tuple of its own, and neighbours that are not longer
# are joined with it. A value is copied as often as the length can be doubled.


Grown = tuple[tuple[Any, ...], ...]


def grown(sequence: Grown, value: Any) -> Grown:
    """Return a sequence with a value more.

    Cost:
        As many copies of a reference per value as the binary logarithm of the length.

    Example:
        >>> grown(grown(grown((), "a"), "b"), "c")
        (('a', 'b'), ('c',))
    """
    last: tuple[Any, ...] = (value,)
    end = len(sequence)
    while end and len(sequence[end - 1]) <= len(last):
        end -= 1
        last = (*sequence[end], *last)
    return (*sequence[:end], last)


def values_of(sequence: Grown) -> Iterator[Any]:
    """Return the values of a sequence, in their order.

    Example:
        >>> list(values_of((("a", "b"), ("c",))))
        ['a', 'b', 'c']
    """
    return chain.from_iterable(sequence)
