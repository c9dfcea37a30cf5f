"""Joins: by interval, as of a time, and by looking up."""
