"""``python -m aiomailbox``: the command line; see `aiomailbox.cli`."""

from __future__ import annotations

import sys

from aiomailbox.cli import main

if __name__ == "__main__":
    sys.exit(main())
