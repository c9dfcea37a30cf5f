from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from aiomailbox.exchange.core.subpartition import PrioritizedDeque


class Item:
    """Equal to every other one: only identity tells them apart."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def test_priority_elements_come_first_and_keep_their_order() -> None:
    queue: PrioritizedDeque[str] = PrioritizedDeque()
    queue.append("a")
    queue.append_priority("p")
    queue.append("b")
    queue.append_priority("q")
    assert [queue.popleft() for _ in range(4)] == ["p", "q", "a", "b"]
    assert queue.priority_count == 0


def test_prioritizing_moves_an_element_behind_the_priority_elements_once() -> None:
    queue: PrioritizedDeque[str] = PrioritizedDeque()
    a, b, c = items = ["a", "b", "c"]
    for item in items:
        queue.append(item)
    queue.prioritize(c)
    queue.prioritize(c)
    queue.prioritize(a)
    assert (list(queue), queue.priority_count) == ([c, a, b], 2)


def test_elements_are_found_by_identity() -> None:
    first, second, stranger = Item(), Item(), Item()
    queue: PrioritizedDeque[Item] = PrioritizedDeque()
    queue.append(first)
    queue.append(second)
    queue.prioritize(second)
    assert queue.peek() is second
    assert queue.peek_last() is first
    assert not queue.remove(stranger)
    assert queue.remove(second)
    assert queue.priority_count == 0
    with pytest.raises(ValueError, match="not queued"):
        queue.index(second)


@given(
    st.lists(st.sampled_from(["append", "priority", "prioritize", "pop", "remove"])),
    st.randoms(use_true_random=False),
)
def test_it_behaves_like_two_lists(operations: list[str], random: object) -> None:
    queue: PrioritizedDeque[int] = PrioritizedDeque()
    first: list[int] = []
    rest: list[int] = []
    for number, operation in enumerate(operations):
        if operation == "append":
            queue.append(number)
            rest.append(number)
        elif operation == "priority":
            queue.append_priority(number)
            first.append(number)
        elif first + rest:
            chosen = random.choice(first + rest)  # type: ignore[attr-defined]
            if operation == "prioritize":
                queue.prioritize(chosen)
                if chosen in rest:
                    rest.remove(chosen)
                    first.append(chosen)
            elif operation == "pop":
                expected = first.pop(0) if first else rest.pop(0)
                assert queue.popleft() == expected
            else:
                assert queue.remove(chosen)
                (first if chosen in first else rest).remove(chosen)
        assert list(queue) == first + rest
        assert queue.priority_count == len(first)
