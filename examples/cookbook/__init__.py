"""Short programs, each an answer to one question; see ``docs/cookbook.md``."""
