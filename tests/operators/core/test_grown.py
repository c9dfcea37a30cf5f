"""Sequences in state that grow value by value."""

from __future__ import annotations

from aiomailbox.operators.core.slices import Grown, grown, values_of


def test_a_sequence_has_its_values_in_order_and_copies_each_only_a_few_times() -> None:
    sequence: Grown = ()
    copied = 0
    for number in range(1_000):
        before = sequence
        sequence = grown(before, number)
        assert list(values_of(sequence)) == list(range(number + 1))
        # What was there is shared, not changed: a snapshot may have it.
        assert list(values_of(before)) == list(range(number))
        copied += len(sequence[-1])
        assert sequence[:-1] == before[: len(sequence) - 1]
    assert copied <= 1_000 * 10
