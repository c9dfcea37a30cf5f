"""Channels between processes: the wire format, and credit-based flow control."""
