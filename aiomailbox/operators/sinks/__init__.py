"""Sinks and the operator that writes to them."""
