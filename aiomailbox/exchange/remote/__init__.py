"""Channels between processes: what is on the wire, and who may send how much."""
