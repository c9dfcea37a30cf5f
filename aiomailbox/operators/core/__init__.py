"""The parts that operators of every family share."""
