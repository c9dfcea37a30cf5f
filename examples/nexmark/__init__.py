"""Nexmark: queries over the events of an online auction house."""
