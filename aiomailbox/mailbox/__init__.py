"""The mailbox model: one task, its mail, and a default action between mails."""

from __future__ import annotations

from aiomailbox.mailbox.budget import SliceWatch
from aiomailbox.mailbox.default_action import (
    MailboxController,
    MailboxDefaultAction,
    PeriodTimer,
    Suspension,
)
from aiomailbox.mailbox.executor import MailboxExecutor
from aiomailbox.mailbox.lifecycle import MailboxState
from aiomailbox.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions
from aiomailbox.mailbox.metrics import LatencyProbe, MailboxMetrics
from aiomailbox.mailbox.ownership import current_task_or_none
from aiomailbox.mailbox.period_meter import RATE_WINDOW_S, PeriodMeter, TimeShares
from aiomailbox.mailbox.processor import MailboxProcessor
from aiomailbox.mailbox.statistics import MailboxStatistics
from aiomailbox.mailbox.submission import MailFuture
from aiomailbox.mailbox.task_mailbox import TaskMailbox

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
