"""Flink's recorded mailboxes: the same steps, the same mail, state and refusals."""

from __future__ import annotations

import asyncio
from typing import Any

from aiomailbox.errors import MailboxClosedError
from aiomailbox.mailbox.mail import Mail, MailOptions
from aiomailbox.mailbox.task_mailbox import MailboxState, TaskMailbox

FILE = "task_mailbox"

_CLOSED = "TaskMailbox$MailboxClosedException"


def run_case(case: dict[str, Any]) -> None:
    """Replay one recorded mailbox; every step must end as it did in Flink."""
    asyncio.run(_replay(case["steps"]))


async def _replay(steps: list[dict[str, Any]]) -> None:
    mailbox = TaskMailbox()
    mailbox.bind_owner()
    state = MailboxState.OPEN
    for number, step in enumerate(steps):
        where = f"step {number}: {step}"
        outcome = await _outcome(mailbox, step)
        assert outcome == _expected(step), f"{where} gave {outcome}"
        state = MailboxState[step.get("state", state.name)]
        assert mailbox.state is state, f"{where} left it {mailbox.state}"
        if step["op"] != "put":
            continue
        assert _mail_of(step).priority == step["effective_priority"], where


def _expected(step: dict[str, Any]) -> tuple[str, Any]:
    if "exception" in step:
        assert step["exception"].endswith(_CLOSED)
        return "refused", None
    return "result", step["result"]


async def _outcome(mailbox: TaskMailbox, step: dict[str, Any]) -> tuple[str, Any]:
    try:
        return "result", await _apply(mailbox, step)
    except MailboxClosedError:
        return "refused", None


async def _apply(mailbox: TaskMailbox, step: dict[str, Any]) -> Any:
    match step["op"]:
        case "put":
            mailbox.put(_mail_of(step))
            return "ok"
        case "try_take":
            return _label(mailbox.try_take(step["priority"]))
        case "take":
            return _label(await mailbox.take(step["priority"]))
        case "try_take_from_batch":
            return _label(mailbox.try_take_from_batch())
        case "create_batch":
            return mailbox.create_batch()
        case "has_mail":
            return mailbox.has_mail
        case "size":
            return mailbox.size()
        case "drain":
            return [mail.description for mail in mailbox.drain()]
        case "close":
            return [mail.description for mail in mailbox.close()]
        case "quiesce":
            mailbox.quiesce()
            return "ok"
        case other:
            raise AssertionError(f"a step that nobody knows: {other}")


def _mail_of(step: dict[str, Any]) -> Mail:
    return Mail(
        str,
        priority=step["priority"],
        options=MailOptions[step["options"].upper()],
        description=step["label"],
    )


def _label(mail: Mail | None) -> str | None:
    return None if mail is None else mail.description
