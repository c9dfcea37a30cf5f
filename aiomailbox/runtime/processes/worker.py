"""The program of a worker process: ``python -m aiomailbox.runtime.processes.worker``.

Nothing else is here: what pickles name must not be in a module that runs as a program.
"""

from __future__ import annotations

import sys

from aiomailbox.runtime.processes.worker_main import main

if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
