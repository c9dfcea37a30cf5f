"""What both stacks of buffers, of objects and of bytes, stand on."""
