"""Tables of databases as sinks."""

from aiomailbox.connectors.sql.sink import SqlSink

__all__ = ["SqlSink"]
