"""Process functions: of one stream, of two, keyed, and with broadcast state."""
