"""Checkpoint barriers at a task: what they mean when there are several channels.

`CheckpointBarrierHandler` is for exactly once, aligned or not; `CheckpointBarrierTracker`
for at least once. Both are pure: they decide, and return `Action` values.
"""
