"""A dict of which snapshots are taken at once, however large it is.

Theory of operation: a snapshot freezes the dict and puts a layer on top of it that takes all
later changes, so that a thread may read what is below without a lock, and nothing is
copied for it. A content below that is read, and could be changed in place, is copied up
first. While there is no layer the dict itself is used, with its own methods; a layer
costs some hundred nanoseconds per access. When a snapshot is no longer read, its layer
is settled: its contents go down into the dict, as many at a time as the caller wants, and
new contents go there at once, so that settling comes to an end.

Copying a group of keys when one of them is first written would not do: a run of a
thousand keys touches all groups, and would copy everything in the middle of that run.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, ItemsView, Iterable, Iterator, MutableMapping
from itertools import chain, islice
from typing import Any, Final, Generic

from aiomailbox.errors import StateError
from aiomailbox.typevars import K, V

_ABSENT: Final[Any] = object()
# Checkpoints that always overlap would otherwise put layer upon layer.
_LAYERS_MAX: Final = 8
# Entries of a part of a dict that may become large.
_SHARD: Final = 1 << 12


class Layer(MutableMapping[K, V], Generic[K, V]):
    """Changes to a mapping that is itself left unchanged.

    Args:
        base: That mapping.
        thaw: Returns what may be changed in place, given a content of ``base``: a copy,
            or the content if it never changes.

    Attributes:
        base: That mapping.
        own: The contents that were set, or copied up, since.
        gone: The keys that were removed, all of ``base``; what is in ``own`` is there
            again.
        size_hint: About how many keys there are, which takes no time to find out.

    Example:
        >>> base = {"a": [1], "b": [2]}
        >>> layer = Layer(base, list)
        >>> layer["a"].append(9)
        >>> del layer["b"]
        >>> dict(layer), base
        ({'a': [1, 9]}, {'a': [1], 'b': [2]})
    """

    __slots__ = (
        "_count",
        "_is_settling",
        "_next",
        "_peek",
        "_rest",
        "_thaw",
        "base",
        "gone",
        "own",
        "size_hint",
    )

    def __init__(self, base: dict[K, V] | Layer[K, V], thaw: Callable[[V], V]) -> None:
        self.base: dict[K, V] | Layer[K, V] = base
        size = size_hint(base)
        self.size_hint: int = size
        is_large = size > _SHARD
        self.own: dict[K, V] | _Shards[K, V] = _Shards(size) if is_large else {}
        self.gone: dict[K, None] | _Shards[K, None] = _Shards(size) if is_large else {}
        self._thaw = thaw
        self._peek: Callable[..., Any] = (
            base.peek if isinstance(base, Layer) else base.get
        )
        self._is_settling = False
        # Exact, or None once keys are set in `own` from outside.
        self._count: int | None = base._count if isinstance(base, Layer) else len(base)
        # Keys of the base that `popitem` has not come to, and the first of them.
        self._rest: Iterator[K] | None = None
        self._next: Any = _ABSENT

    def peek(self, key: K, default: Any = None) -> Any:
        """Return a content that is not going to be changed."""
        found = self.own.get(key, _ABSENT)
        if found is not _ABSENT:
            return found
        return default if key in self.gone else self._peek(key, default)

    def get(self, key: K, default: Any = None) -> Any:
        """Return the content of a key; it may be changed in place."""
        found = self.own.get(key, _ABSENT)
        if found is not _ABSENT:
            return found
        if key in self.gone:
            return default
        found = self._peek(key, _ABSENT)
        if found is _ABSENT:
            return default
        thawed = self._thaw(found)
        # Copied up only if it could be changed in place: other contents are read where
        # they are.
        if thawed is not found:
            self.own[key] = thawed
        return thawed

    def for_run(self, keys: Iterable[K]) -> dict[K, V] | _Shards[K, V]:
        """Return what has all contents of these keys, and in which to set them."""
        self._count = None
        if self._is_settling:
            return self._settle_run(keys)
        own, gone, peek, thaw = self.own, self.gone, self._peek, self._thaw
        if isinstance(own, _Shards):
            own.fill(keys, gone, peek, thaw)
            return own
        for key in keys:
            if key not in own and key not in gone:
                found = peek(key, _ABSENT)
                if found is not _ABSENT:
                    own[key] = thaw(found)
        return own

    def _settle_run(self, keys: Iterable[K]) -> dict[K, V] | _Shards[K, V]:
        base, own, gone = self.base, self.own, self.gone
        for key in keys:
            if key in own:
                base[key] = own.pop(key)
            elif key in gone:
                base.pop(key, None)
            gone.pop(key, None)
        return base.for_run(keys) if isinstance(base, Layer) else base

    def setdefault(self, key: K, default: Any = None) -> Any:
        """Return the content of a key, which is ``default`` if it had none."""
        found = self.get(key, _ABSENT)
        if found is not _ABSENT:
            return found
        self[key] = default
        return default

    def popitem(self) -> tuple[K, V]:
        """Take some key and its content out; KeyError if there is none."""
        if self.own:
            key, content = self.own.popitem()
            # Below lies an older content of the same key, which must not come up again.
            if key in self.base and key not in self.gone:
                if self._is_settling:
                    del self.base[key]
                else:
                    self.gone[key] = None
        elif self._is_settling:
            # From the end: a dict whose first keys are gone is slow to begin.
            key, content = self.base.popitem()
            while key in self.gone:
                del self.gone[key]
                key, content = self.base.popitem()
        elif self._find_next():
            key = self._next
            content = self._thaw(self._peek(key))
            self.gone[key] = None
        else:
            raise KeyError("popitem(): there is nothing")
        if self._count is not None:
            self._count -= 1
        return key, content

    def settle(self, count: int) -> int:
        """Put changes into the base, which is no longer read as it was.

        Args:
            count: How many steps to do at most.

        Returns:
            How many steps are left; with some left, everything is in the base.
        """
        base, own, gone = self.base, self.own, self.gone
        self._is_settling = True
        # The base is no longer read as it was: its contents need not be copied.
        self._thaw = _same
        while gone and count > 0:
            some = _taken(gone, count)
            count -= len(some)
            for key in some:
                base.pop(key, None)
        while own and count > 0:
            changed = _taken(own, count)
            for key, content in changed.items():
                # Windows of a key, and buckets of timers, are such dicts themselves.
                while isinstance(content, Layer):
                    count = content.settle(count)
                    if count <= 0:
                        # Not all of them were settled: the others wait here.
                        own.update(changed)
                        return 0
                    content = content.base  # type: ignore[assignment]
                    changed[key] = content
            base.update(changed)
            count -= len(changed)
        return max(count, 0)

    def __getitem__(self, key: K) -> V:
        found: V = self.get(key, _ABSENT)
        if found is _ABSENT:
            raise KeyError(key)
        return found

    def __setitem__(self, key: K, content: V) -> None:
        own = self.own
        if (
            self._count is not None
            and key not in own
            and (key in self.gone or key not in self.base)
        ):
            self._count += 1
        # While it settles a new key belongs below: above it would only prolong that.
        if self._is_settling and key not in own:
            self.base[key] = content
            self.gone.pop(key, None)
        else:
            own[key] = content

    def __delitem__(self, key: K) -> None:
        was_own = self.own.pop(key, _ABSENT) is not _ABSENT
        if key in self.gone or key not in self.base:
            if not was_own:
                raise KeyError(key)
        elif self._is_settling:
            del self.base[key]
        else:
            self.gone[key] = None
        if self._count is not None:
            self._count -= 1

    def __contains__(self, key: Any) -> bool:
        return key in self.own or (key not in self.gone and key in self.base)

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys: those of the base come first, in its order."""
        own, gone, base = self.own, self.gone, self.base
        for key in base:
            if key not in gone or key in own:
                yield key
        for key in own:
            if key not in base:
                yield key

    def __len__(self) -> int:
        if self._count is None:
            own, gone, base = self.own, self.gone, self.base
            added = sum(key not in base for key in own)
            removed = sum(key not in own for key in gone)
            self._count = len(base) + added - removed
        return self._count

    def __bool__(self) -> bool:
        if self.own:
            return True
        gone = len(self.gone)
        # `gone` has keys of the base only.
        return len(self.base) > gone

    def _find_next(self) -> bool:
        """Let ``_next`` be the first key of the base that is left; say if there is one."""
        if self._rest is None:
            self._rest = iter(self.base)
        gone = self.gone
        while self._next is _ABSENT or self._next in gone:
            self._next = next(self._rest, _ABSENT)
            if self._next is _ABSENT:
                self._rest = iter(())
                return False
        return True


class _Shards(Generic[K, V]):
    """A dict in parts: one that grows to a million takes 50 ms to do so in one piece.

    Args:
        count: How many entries there may be, about.
    """

    __slots__ = ("_mask", "_shards")

    def __init__(self, count: int) -> None:
        self._mask = (1 << (count // _SHARD).bit_length()) - 1
        self._shards: list[dict[K, V]] = [{} for _ in range(self._mask + 1)]

    def get(self, key: K, default: Any = None) -> Any:
        return self._shards[hash(key) & self._mask].get(key, default)

    def pop(self, key: K, default: Any = None) -> Any:
        return self._shards[hash(key) & self._mask].pop(key, default)

    def popitem(self) -> tuple[K, V]:
        shards = self._shards
        for shard in shards:
            if shard:
                return shard.popitem()
        raise KeyError("popitem(): there is nothing")

    def take(self) -> dict[K, V]:
        """Take a part out that is not empty, of some thousand entries."""
        index = next(i for i, shard in enumerate(self._shards) if shard)
        taken, self._shards[index] = self._shards[index], {}
        return taken

    def update(self, others: dict[K, V]) -> None:
        for key, content in others.items():
            self[key] = content

    def fill(
        self,
        keys: Iterable[K],
        gone: Any,
        peek: Callable[..., Any],
        thaw: Callable[[V], V],
    ) -> None:
        """Copy the contents of keys up; see `Layer.for_run`."""
        shards, mask, is_any_gone = self._shards, self._mask, bool(gone)
        for key in keys:
            shard = shards[hash(key) & mask]
            if key in shard or (is_any_gone and key in gone):
                continue
            found = peek(key, _ABSENT)
            if found is not _ABSENT:
                shard[key] = thaw(found)

    def items(self) -> Iterator[tuple[K, V]]:
        return chain.from_iterable(shard.items() for shard in self._shards)

    def __getitem__(self, key: K) -> V:
        return self._shards[hash(key) & self._mask][key]

    def __setitem__(self, key: K, content: V) -> None:
        self._shards[hash(key) & self._mask][key] = content

    def __delitem__(self, key: K) -> None:
        del self._shards[hash(key) & self._mask][key]

    def __contains__(self, key: Any) -> bool:
        return key in self._shards[hash(key) & self._mask]

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._shards)

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def __bool__(self) -> bool:
        return any(self._shards)


class DictSnapshot:
    """A `LayeredDict` as it was at one moment; readable in any thread, at any time.

    Its contents may be read, not changed, and only as long as the object exists.
    """

    __slots__ = ("__weakref__", "_frozen", "error")

    def __init__(self, frozen: dict[Any, Any] | Layer[Any, Any]) -> None:
        self._frozen = frozen
        self.error: BaseException | None = None

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield all keys and contents.

        Raises:
            StateError: If a content that was changed since could not be copied before.
        """
        yield from frozen_items(self._frozen)
        self._check()

    def columns(self, count: int) -> Iterator[tuple[list[Any], list[Any]]]:
        """Yield keys and contents, so many at a time; raises as `items` does."""
        frozen = self._frozen
        keys = iter(frozen)
        contents: Iterator[Any] | None = None
        if isinstance(frozen, dict):
            contents = iter(frozen.values())
        peek = frozen.peek if isinstance(frozen, Layer) else frozen.get
        while some := list(islice(keys, count)):
            if contents is None:
                yield some, [peek(key) for key in some]
            else:
                yield some, list(islice(contents, count))
        self._check()

    def _check(self) -> None:
        if self.error is not None:
            raise StateError(
                "state was changed while it was kept, and could not be copied before: "
                f"{self.error}"
            ) from self.error


class LayeredDict(Generic[K, V]):
    """A dict of which snapshots can be taken.

    Args:
        thaw: Returns what may be changed in place, given a content that a snapshot may
            have: a copy, or the content if it never changes.
        live: Its first contents; None for none.

    Attributes:
        live: The mapping to use now: a dict, or while there are snapshots a `Layer`. It is
            another one after `snapshot` and `settle`, so it is not to be kept across these.

    Example:
        >>> counts = LayeredDict(list)
        >>> counts.live["a"] = [1]
        >>> snapshot = counts.snapshot()
        >>> counts.live["a"].append(2)
        >>> list(snapshot.items()), dict(counts.live)
        ([('a', [1])], {'a': [1, 2]})
        >>> del snapshot
        >>> counts.settle(10), counts.live
        (9, {'a': [1, 2]})
    """

    __slots__ = ("_snapshots", "_thaw", "live")

    def __init__(
        self, thaw: Callable[[V], V], live: dict[K, V] | Layer[K, V] | None = None
    ) -> None:
        self.live: dict[K, V] | Layer[K, V] = {} if live is None else live
        self._thaw = thaw
        self._snapshots: list[weakref.ref[DictSnapshot]] = []

    @property
    def has_snapshot(self) -> bool:
        """Whether a layer lies over the dict."""
        return type(self.live) is not dict

    def snapshot(self) -> DictSnapshot:
        """Return all there is now; nothing that happens later changes that."""
        # Nothing to freeze, so no layer, which would cost each access.
        if not self.live and not self.has_snapshot:
            return DictSnapshot({})
        if self._depth() >= _LAYERS_MAX:
            self._join()
        snapshot = DictSnapshot(self.live)
        self._snapshots.append(weakref.ref(snapshot))
        self.live = Layer(self.live, self._thawed)
        return snapshot

    def settle(self, count: int) -> int:
        """Take layers away, if there is no snapshot any more.

        Args:
            count: How many steps to do at most, about; one takes about a microsecond.

        Returns:
            How many steps were not needed, or could not be done while there is a snapshot.
        """
        if not self.has_snapshot:
            return count
        # Weak references: a snapshot is over when its last reader has forgotten it.
        self._snapshots = [known for known in self._snapshots if known() is not None]
        if self._snapshots:
            return count
        while isinstance(self.live, Layer):
            count = self.live.settle(count)
            if count <= 0:
                return 0
            self.live = self.live.base
        return count

    def clear(self) -> None:
        """Forget everything; snapshots keep what they have."""
        self.live = {}
        self._snapshots.clear()

    def _thawed(self, content: V) -> V:
        try:
            return self._thaw(content)
        except Exception as error:  # noqa: BLE001 -- of the user's class
            # It could not be kept either. Reading the snapshot raises.
            for known in self._snapshots:
                if (snapshot := known()) is not None:
                    snapshot.error = error
            return content

    def _depth(self) -> int:
        depth, mapping = 0, self.live
        while isinstance(mapping, Layer):
            depth, mapping = depth + 1, mapping.base
        return depth

    def _join(self) -> None:
        """Let one layer be all those that lie over the dict."""
        # First what is no longer read: often that is all.
        self.settle(sys.maxsize)
        if not self.has_snapshot:
            return
        layers: list[Layer[K, V]] = []
        mapping = self.live
        while isinstance(mapping, Layer):
            layers.append(mapping)
            mapping = mapping.base
        joined = Layer(mapping, self._thawed)
        for layer in reversed(layers):
            for key in layer.gone:
                if key in joined:
                    del joined[key]
            for key, content in layer.own.items():
                joined[key] = content
        self.live = joined


class Layered:
    """Contents in a `LayeredDict`, of which snapshots are taken.

    Args:
        layers: The contents.
    """

    __slots__ = ("_layers",)

    def __init__(self, layers: LayeredDict[Any, Any]) -> None:
        self._layers = layers
        self._bind()

    def snapshot(self) -> DictSnapshot:
        """Return all there is now, for a thread to read."""
        snapshot = self._layers.snapshot()
        self._bind()
        return snapshot

    @property
    def has_snapshot(self) -> bool:
        """Whether a snapshot makes every access cost more."""
        return self._layers.has_snapshot

    def settle(self, count: int) -> int:
        """Remove layers that no snapshot needs; see `LayeredDict.settle`."""
        left = self._layers.settle(count)
        self._bind()
        return left

    def _bind(self) -> None:
        """Take over what ``_layers.live`` is now."""
        raise TypeError(f"{type(self).__name__} defines no _bind")


def size_hint(mapping: dict[Any, Any] | Layer[Any, Any]) -> int:
    """Return about how many keys there are, in no time."""
    return mapping.size_hint if isinstance(mapping, Layer) else len(mapping)


def most_keys(mapping: dict[K, V] | Layer[K, V]) -> list[K]:
    """Return the keys as a new list, of those in layers as many as cost no time."""
    while isinstance(mapping, Layer):
        mapping = mapping.base
    return list(mapping)


def _taken(own: dict[K, V] | _Shards[K, V], count: int) -> dict[K, V]:
    """Take out about so many entries."""
    if isinstance(own, _Shards):
        return own.take()
    if len(own) <= count:
        taken = dict(own)
        own.clear()
        return taken
    return dict([own.popitem() for _ in range(count)])


def _same(content: Any) -> Any:
    return content


def frozen_items(
    frozen: dict[K, V] | Layer[K, V],
) -> Iterable[tuple[K, V]] | ItemsView[K, V]:
    """Return the keys and contents of what is not going to be changed."""
    if isinstance(frozen, Layer):
        peek = frozen.peek
        return ((key, peek(key)) for key in frozen)
    return frozen.items()
