"""Laws of the cache and of batches."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from aiomailbox.errors import InvalidArgumentError, WrongTypeError
from aiomailbox.policies.batch import Batch
from aiomailbox.policies.cache import Cache, LruCache


@given(st.lists(st.integers(0, 20)), st.integers(1, 5))
def test_the_last_used_keys_are_kept_and_no_more_than_size(
    keys: list[int], size: int
) -> None:
    cache = LruCache(size)
    recent: list[int] = []
    for key in keys:
        found, value = cache.get(key, 0.0)
        assert found == (key in recent[-size:])
        assert value == (key if found else None)
        if not found:
            cache.put(key, key, 0.0)
        recent = [other for other in recent if other != key] + [key]
        assert len(cache) <= size


def test_an_entry_is_good_for_less_than_its_ttl() -> None:
    cache = LruCache(10, ttl_s=5)
    cache.put("a", 1, now_s=1.0)
    assert cache.get("a", now_s=5.9) == (True, 1)
    assert cache.get("a", now_s=6.0) == (False, None)
    assert len(cache) == 0


def test_none_is_a_result_like_others() -> None:
    cache = LruCache(1)
    cache.put("a", None, now_s=0.0)
    assert cache.get("a", now_s=0.0) == (True, None)


@pytest.mark.parametrize(
    ("wrong", "parameter"),
    [
        ({"key": 1}, "key"),
        ({"key": "a", "size": 0}, "size"),
        ({"key": "a", "ttl": 0}, "ttl"),
        ({"key": "a", "ttl": -1}, "ttl"),
    ],
)
def test_a_wrong_argument_of_a_cache_is_refused_by_name(
    wrong: dict[str, object], parameter: str
) -> None:
    with pytest.raises((InvalidArgumentError, WrongTypeError), match=parameter):
        Cache(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "parameter"),
    [
        ({"size": 0}, "size"),
        ({"size": 2.5}, "size"),
        ({"size": 2, "within": -1}, "within"),
    ],
)
def test_a_wrong_argument_of_a_batch_is_refused_by_name(
    wrong: dict[str, object], parameter: str
) -> None:
    with pytest.raises((InvalidArgumentError, WrongTypeError), match=parameter):
        Batch(**wrong)  # type: ignore[arg-type]
