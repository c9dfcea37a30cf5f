"""Partitions that are written to files first and read afterwards."""
