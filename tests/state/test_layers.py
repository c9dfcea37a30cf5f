"""A dict of which snapshots are taken: it is a dict, and each snapshot is what it was."""

from __future__ import annotations

import copy
from itertools import islice
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aiomailbox.errors import StateError
from aiomailbox.state import layers
from aiomailbox.state.layers import Layer, LayeredDict, frozen_items

KEYS = st.integers(0, 12)


class SnapshotsOfADict(RuleBasedStateMachine):
    """Contents are lists, which are changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layered: LayeredDict[int, list[int]] = LayeredDict(list)
        self.model: dict[int, list[int]] = {}
        # A reader of each snapshot, what it has read, and what there was.
        self.snapshots: list[tuple[Any, Any, dict[int, Any], dict[int, Any]]] = []
        self.number = 0

    @rule(key=KEYS)
    def put(self, key: int) -> None:
        self.number += 1
        self.layered.live[key] = [self.number]
        self.model[key] = [self.number]

    @rule(key=KEYS)
    def change_in_place(self, key: int) -> None:
        self.number += 1
        content = self.layered.live.get(key)
        assert content == self.model.get(key)
        if content is not None:
            content.append(self.number)
            self.model[key].append(self.number)

    @rule(key=KEYS)
    def setdefault(self, key: int) -> None:
        mine, other = (
            self.layered.live.setdefault(key, []),
            self.model.setdefault(key, []),
        )
        mine.append(1)
        other.append(1)

    @rule(key=KEYS)
    def remove(self, key: int) -> None:
        if key in self.model:
            del self.layered.live[key]
            del self.model[key]
        else:
            with pytest.raises(KeyError):
                del self.layered.live[key]

    @rule(key=KEYS)
    def pop(self, key: int) -> None:
        content = self.layered.live.pop(key, None)
        assert content == self.model.pop(key, None)
        if content is not None:
            content.append(-1)

    @rule()
    def popitem(self) -> None:
        if self.model:
            key, content = self.layered.live.popitem()
            assert content == self.model.pop(key)
            content.append(-1)

    @rule(keys=st.lists(KEYS))
    def use_for_a_run(self, keys: list[int]) -> None:
        live = self.layered.live
        if isinstance(live, Layer):
            own = live.for_run(keys)
            for key in keys:
                own[key] = [*own.get(key, ()), 7]
                self.model[key] = [*self.model.get(key, ()), 7]

    @rule()
    def clear(self) -> None:
        self.layered.clear()
        self.model = {}

    @rule()
    def snapshot(self) -> None:
        snapshot = self.layered.snapshot()
        self.snapshots.append(
            (snapshot, iter(snapshot.columns(1)), {}, copy.deepcopy(self.model))
        )

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def read_some(self, data: st.DataObject) -> None:
        chosen = data.draw(st.integers(0, len(self.snapshots) - 1))
        _, reader, read, _ = self.snapshots[chosen]
        for (key,), (content,) in islice(reader, 2):
            assert key not in read
            read[key] = copy.deepcopy(content)

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def read_to_the_end(self, data: st.DataObject) -> None:
        chosen = data.draw(st.integers(0, len(self.snapshots) - 1))
        snapshot, reader, read, expected = self.snapshots.pop(chosen)
        for (key,), (content,) in reader:
            assert key not in read
            read[key] = content
        assert read == expected
        assert dict(snapshot.items()) == expected

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.snapshots.pop(data.draw(st.integers(0, len(self.snapshots) - 1)))

    @rule(count=st.integers(0, 30))
    def settle(self, count: int) -> None:
        assert 0 <= self.layered.settle(count) <= count

    @invariant()
    def is_the_same_as_a_dict(self) -> None:
        live = self.layered.live
        assert dict(frozen_items(live)) == self.model
        assert (len(live), bool(live)) == (len(self.model), bool(self.model))
        assert set(live) == self.model.keys()
        assert all((key in live) == (key in self.model) for key in range(13))

    def teardown(self) -> None:
        for snapshot, _, _, expected in self.snapshots:
            assert dict(snapshot.items()) == expected
        snapshot = None
        self.snapshots.clear()
        self.layered.settle(10_000)
        assert type(self.layered.live) is dict
        assert self.layered.live == self.model


TestSnapshotsOfADict = SnapshotsOfADict.TestCase
TestSnapshotsOfADict.settings = settings(
    max_examples=50, stateful_step_count=40, deadline=None
)


class SnapshotsOfALargeDict(SnapshotsOfADict):
    """Layers over dicts that are large are in parts; here from three entries on."""

    @rule(keys=st.sets(KEYS, min_size=4))
    def put_many(self, keys: set[int]) -> None:
        for key in keys:
            self.put(key)


class TestSnapshotsOfALargeDict(SnapshotsOfALargeDict.TestCase):
    settings = settings(max_examples=50, stateful_step_count=40, deadline=None)

    def setUp(self) -> None:
        patched = pytest.MonkeyPatch()
        patched.setattr(layers, "_SHARD", 2)
        self.addCleanup(patched.undo)


def test_layers_do_not_pile_up_under_cuts_that_overlap_for_ever() -> None:
    layered: LayeredDict[int, list[int]] = LayeredDict(list)
    layered.live.update({key: [key] for key in range(10)})
    before = layered.snapshot()
    for number in range(100):
        layered.live[number % 10].append(number)
        del layered.live[(number + 1) % 10]
        layered.live[(number + 1) % 10] = [number]
        expected = copy.deepcopy(dict(frozen_items(layered.live)))
        following = layered.snapshot()
        assert dict(following.items()) == expected
        before = following
    depth, mapping = 0, layered.live
    while isinstance(mapping, Layer):
        depth, mapping = depth + 1, mapping.base
    assert depth <= 9
    assert before is following


def test_a_dict_that_nothing_was_cut_of_is_a_dict() -> None:
    layered: LayeredDict[str, int] = LayeredDict(int)
    assert type(layered.live) is dict
    layered.snapshot()
    assert type(layered.live) is dict, "nothing was in it"


def test_a_content_that_cannot_be_copied_spoils_the_cut_and_not_the_job() -> None:
    def refuse(content: Any) -> Any:
        raise TypeError("cannot be copied")

    layered: LayeredDict[str, Any] = LayeredDict(refuse)
    layered.live["a"] = content = object()
    snapshot = layered.snapshot()
    assert layered.live["a"] is content
    with pytest.raises(StateError, match="cannot be copied"):
        list(snapshot.items())


def test_a_layer_settles_however_much_is_changed_meanwhile() -> None:
    layered: LayeredDict[int, list[int]] = LayeredDict(list)
    layered.live.update({key: [key] for key in range(100)})
    snapshot = layered.snapshot()
    for key in range(100):
        layered.live[key].append(1)
    del snapshot
    for rounds in range(30):
        for key in range(100):
            layered.live[key].append(rounds)
            layered.live[key + 1000 * rounds] = [rounds]
        live = layered.live
        if isinstance(live, Layer):
            own = live.for_run([1, 2])
            own[1] = [rounds]
        layered.settle(10)
    assert not layered.has_snapshot


def test_layers_in_layers_settle_piece_by_piece() -> None:
    layered: LayeredDict[int, Any] = LayeredDict(lambda inner: Layer(inner, list))
    layered.live[1] = {key: [key] for key in range(100)}
    snapshot = layered.snapshot()
    for key in range(0, 200, 2):
        layered.live[1].setdefault(key, []).append(-1)
    expected = copy.deepcopy(
        {start: dict(frozen_items(inner)) for start, inner in layered.live.items()}
    )
    assert [len(inner) for _, inner in snapshot.items()] == [100]
    del snapshot
    pieces = 0
    while layered.has_snapshot:
        layered.settle(7)
        pieces += 1
        for inner in layered.live.values():
            inner[5].append(pieces)
        expected[1][5] += [pieces]
        found = {s: dict(frozen_items(inner)) for s, inner in layered.live.items()}
        assert found == expected
    assert pieces > 10
    assert type(layered.live[1]) is dict
