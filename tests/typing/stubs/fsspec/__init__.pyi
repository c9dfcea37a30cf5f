# What the examples use of fsspec, which brings no types.
from typing import Any

def filesystem(protocol: str, **storage_options: Any) -> Any: ...
