"""State and keys of operators, and the ones that reduce or aggregate by key."""
