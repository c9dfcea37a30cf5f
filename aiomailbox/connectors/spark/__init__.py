"""Everything that knows Spark: finding Java, sessions, sources and results."""

from __future__ import annotations

from aiomailbox.connectors.spark.java import JavaHome, ensure_java, find_java
from aiomailbox.connectors.spark.session import local_session

__all__ = ["JavaHome", "ensure_java", "find_java", "local_session"]
