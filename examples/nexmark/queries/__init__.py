"""The queries, each a function from the events to its results."""
