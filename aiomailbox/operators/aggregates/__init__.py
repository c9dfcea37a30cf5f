"""Aggregates of values: what they are, and the ready-made ones."""
