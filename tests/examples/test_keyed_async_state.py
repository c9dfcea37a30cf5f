from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import ModuleType

import pytest

Load = Callable[[str], ModuleType]


async def test_each_user_is_checked_in_order_while_others_wait_at_once(
    load_example: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load_example("keyed_async_state")
    decisions = await example.main(users=10)
    payments = example.payments(10)
    decided = [decision for decision in decisions if decision.number]
    assert len(decided) == len(payments)
    for user in {payment.user for payment in payments}:
        numbers = [d.number for d in decided if d.user == user]
        assert numbers == sorted(numbers)
    service = example.SERVICE
    assert service.opened == 1
    assert service.most_of_one_user == 1
    assert service.at_once > 5
    assert service.failed
    assert "payments of 10 users" in capsys.readouterr().out


async def test_who_pays_too_often_is_blocked_and_later_free_again(
    load_example: Load,
) -> None:
    example = load_example("keyed_async_state")
    decisions = await example.main(users=3)
    verdicts = {
        user: Counter(d.verdict for d in decisions if d.user == user)
        for user in ("user0", "user1")
    }
    assert verdicts["user1"].keys() == {"accepted", "refused"}
    assert verdicts["user0"]["too many"] == verdicts["user0"]["free again"] == 2
    of_user0 = [d.verdict for d in decisions if d.user == "user0"]
    freed = of_user0.index("free again")
    assert of_user0[:4] == ["accepted"] * 3 + ["too many"]
    assert set(of_user0[4:freed]) == {"blocked"}
    assert of_user0[freed + 1] == "accepted"
