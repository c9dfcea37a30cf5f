"""Columns inside the pipeline: Arrow runs, and the records made from them."""

from __future__ import annotations

from aiomailbox.columnar.arrow_run import ArrowRun
from aiomailbox.columnar.decode import EPOCH, SpecialColumns, column_decoder
from aiomailbox.columnar.forms import (
    ClassForm,
    DictForm,
    NamedTupleForm,
    RecordForm,
    StructBuilder,
    check_unique,
    record_form,
)
from aiomailbox.columnar.named_tuples import record_class
from aiomailbox.columnar.rows import RowMaker

__all__ = [
    "EPOCH",
    "ArrowRun",
    "ClassForm",
    "DictForm",
    "NamedTupleForm",
    "RecordForm",
    "RowMaker",
    "SpecialColumns",
    "StructBuilder",
    "check_unique",
    "column_decoder",
    "record_class",
    "record_form",
]
