"""The common base of both stacks of buffers, of objects and of bytes."""
