"""Snapshots, from which operators resume, and how they are spread over subtasks."""
