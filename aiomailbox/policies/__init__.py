"""How calls are repeated, limited, remembered and grouped: plain arithmetic."""

from __future__ import annotations

from aiomailbox.policies.arguments import check_count, check_number, local_path
from aiomailbox.policies.batch import Batch
from aiomailbox.policies.cache import Cache, LruCache
from aiomailbox.policies.rate_limit import RateLimit, RateUsage, RateWindow
from aiomailbox.policies.restart import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    Mistakes,
    NoRestart,
    RestartBackoff,
    RestartStrategy,
    RestartWait,
)
from aiomailbox.policies.retry import Retry, retry_after_s

__all__ = [
    "Batch",
    "Cache",
    "ExponentialDelayRestart",
    "FailureRateRestart",
    "FixedDelayRestart",
    "LruCache",
    "Mistakes",
    "NoRestart",
    "RateLimit",
    "RateUsage",
    "RateWindow",
    "RestartBackoff",
    "RestartStrategy",
    "RestartWait",
    "Retry",
    "check_count",
    "check_number",
    "local_path",
    "retry_after_s",
]
