"""Asynchronous functions on keyed streams, with state and timers."""
