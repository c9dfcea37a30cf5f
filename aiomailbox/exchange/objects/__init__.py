"""Partitions whose consumers are on this loop: records are handed over."""
