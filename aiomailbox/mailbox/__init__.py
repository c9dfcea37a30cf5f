"""The mailbox model: one task, its mail, and a default action between mails."""

from __future__ import annotations

from aiomailbox.mailbox.budget import SliceWatch
from aiomailbox.mailbox.control import (
    MailboxController,
    MailboxDefaultAction,
    PeriodTimer,
    Suspension,
)
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.mailbox.mail import (
    MAX_PRIORITY,
    MIN_PRIORITY,
    Mail,
    MailFuture,
    MailOptions,
)
from aiomailbox.mailbox.metrics import (
    RATE_WINDOW_S,
    LatencyProbe,
    MailboxMetrics,
    PeriodMeter,
    TimeShares,
)
from aiomailbox.mailbox.processor import MailboxProcessor
from aiomailbox.mailbox.task_mailbox import (
    MailboxState,
    MailboxStatistics,
    TaskMailbox,
    current_task_or_none,
)

__all__ = [
    "MAX_PRIORITY",
    "MIN_PRIORITY",
    "RATE_WINDOW_S",
    "LatencyProbe",
    "Mail",
    "MailFuture",
    "MailOptions",
    "MailboxController",
    "MailboxDefaultAction",
    "MailboxExecutor",
    "MailboxMetrics",
    "MailboxProcessor",
    "MailboxState",
    "MailboxStatistics",
    "PeriodMeter",
    "PeriodTimer",
    "SliceWatch",
    "Suspension",
    "TaskMailbox",
    "TimeShares",
    "current_task_or_none",
]
