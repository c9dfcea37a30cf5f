"""From a key to its key group to the subtask that owns it: pure, and Flink's."""
