"""What a task reads: channels, the gate over them, and where partitions are found."""
