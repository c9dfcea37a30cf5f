"""Operators without state: map, filter, flat map, timestamps, and their fusion."""
