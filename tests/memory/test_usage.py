"""When the pool says that its shares could want more than there is."""

from __future__ import annotations

from aiomailbox.memory.network_pool import NetworkBufferPool


def test_each_new_excess_is_told_once_and_so_is_its_end() -> None:
    """NET-28."""
    told: list[str] = []
    network = NetworkBufferPool(50, on_usage=told.append)
    usages, counts, pools = [], [], []
    for required, maximum in ((10, 20), (5, None), (10, 30), (10, 20)):
        pools.append(network.create_local_pool(required, maximum))
        usages.append(network.usage_percent)
        counts.append(len(told))
    assert usages == [40, 60, 120, 160]
    assert counts == [0, 0, 1, 2]
    pools[3].lazy_destroy()
    pools[0].lazy_destroy()
    assert network.usage_percent == 80
    assert "normal again" in told[-1]
    count = len(told)
    network.destroy_local_pool(pools[0])
    network.create_local_pool(1, 1).lazy_destroy()
    assert len(told) == count
