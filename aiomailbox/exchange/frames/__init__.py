"""Partitions whose consumers are remote: records travel as framed bytes."""
