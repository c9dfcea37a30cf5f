"""Sources and sinks that reach outside the program."""
