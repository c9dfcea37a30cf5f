"""Tasks: a chain of operators on a mailbox, with its inputs and outputs."""
