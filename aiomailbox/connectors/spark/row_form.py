"""Records as Spark's own Row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiomailbox.columnar.forms import RecordForm, StructBuilder, check_unique

__all__ = ["RowForm"]


class RowForm:
    """Records as `pyspark.sql.Row`.

    Attributes:
        record_type: That class.
    """

    @property
    def record_type(self) -> type:
        """The class of the records."""
        from pyspark.sql import Row

        found: type = Row
        return found

    def builder(self, names: tuple[str, ...], where: str = "") -> StructBuilder:
        """Return the function that makes Rows with these fields."""
        from pyspark.sql import Row

        check_unique(names, where)
        make = Row(*names)

        def build(columns: Sequence[Sequence[Any]], count: int) -> list[Any]:
            if not columns:
                return [Row() for _ in range(count)]
            return list(map(make, *columns))

        return build

    def nested(self, name: str) -> RecordForm:
        """Return this form."""
        return self
