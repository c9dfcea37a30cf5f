"""Calls of asynchronous functions, many at a time."""
