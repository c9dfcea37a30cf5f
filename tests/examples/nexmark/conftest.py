from __future__ import annotations

import sys
from pathlib import Path

# The package is run with ``python -m`` from here, and its modules import each other.
ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)
