"""A bank account as an actor: one task owns the balance, all others send it mail.

The mailbox without streams. Nothing here takes a lock, and yet nothing races:

* a mail runs to its end, its awaits included, before the next one begins;
* only an explicit yield lets other mail in, and only mail of at least its priority;
* mail may come from other tasks and from other threads.
"""

from __future__ import annotations

import asyncio
import threading

from aiomailbox.mailbox import MailboxProcessor, MailOptions

DEPOSITS, WITHDRAWALS = 1, 0


class Account:
    """Its balance is touched by one asyncio task only."""

    def __init__(self) -> None:
        self.balance = 0
        self.history: list[str] = []
        self._processor = MailboxProcessor(name="account")
        # A withdrawal that waits for money yields to deposits, never to withdrawals.
        self.deposits = self._processor.executor(DEPOSITS)
        self.withdrawals = self._processor.executor(WITHDRAWALS)

    async def run(self) -> None:
        """Work off the mail until closed."""
        await self._processor.run_mailbox_loop()
        self._processor.prepare_close()
        await self._processor.drain()
        self._processor.close()

    def close(self) -> None:
        """Stop after the mail that runs now; callable from anywhere."""
        self._processor.all_actions_completed()

    def deposit(self, amount: int) -> int:
        self.balance += amount
        self.history.append(f"+{amount}")
        return self.balance

    async def withdraw(self, amount: int) -> int:
        while self.balance < amount:
            await self.deposits.yield_to_mail()
        await asyncio.sleep(0.001)  # Other mail waits meanwhile: this one is atomic.
        self.balance -= amount
        self.history.append(f"-{amount}")
        return self.balance

    async def audit(self, approval: asyncio.Future[str]) -> str:
        """Wait for an approval from outside, and let deposits in meanwhile."""
        who = await self.deposits.yield_until(approval)
        return f"{who} approves a balance of {self.balance}"

    def freeze(self) -> None:
        self.history.append("frozen")


def salaries(account: Account) -> None:
    """Another thread: it may wait for its results by blocking."""
    for _ in range(3):
        account.deposits.submit(account.deposit, 100).result(timeout=10)


async def main() -> None:
    account = Account()
    runner = asyncio.get_running_loop().create_task(account.run())

    # Sent before there is any money: the first withdrawal waits for deposits, and the
    # second one for the first.
    first = account.withdrawals.submit(account.withdraw, 250)
    second = account.withdrawals.submit(account.withdraw, 50)
    thread = threading.Thread(target=salaries, args=(account,))
    thread.start()
    print("after 250 were withdrawn:", await first)
    print("after  50 were withdrawn:", await second)
    await asyncio.to_thread(thread.join)

    approval: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    report = account.withdrawals.submit(account.audit, approval)
    print(
        "a deposit during the audit:", await account.deposits.submit(account.deposit, 7)
    )
    approval.set_result("Ada")
    print(await report)

    # Urgent mail overtakes: the freeze is put last and runs first.
    last = account.deposits.submit(account.deposit, 1)
    account.withdrawals.execute(account.freeze, options=MailOptions.URGENT)
    await last
    print("history:", " ".join(account.history))

    account.close()
    await runner


if __name__ == "__main__":
    asyncio.run(main())
