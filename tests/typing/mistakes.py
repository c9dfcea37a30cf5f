"""What a type checker finds: each line that begins with a name for a mistake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiomailbox as am
from tests.typing.idioms.keyed import Count
from tests.typing.idioms.streams import orders

stream = orders(am.StreamExecutionEnvironment())
not_a_field: am.DataStream[int] = stream.map(lambda order: order.prise)
wrong_result: am.DataStream[int] = stream.map(lambda order: order.user)
wrong_key = stream.key_by(lambda order: order.count).process(Count())
if TYPE_CHECKING:  # they would fail at once
    wrong_tag: am.DataStream[int] = stream.get_side_output(am.OutputTag[str]("late"))
    # Names that `am` imports only when they are asked for are no Any either.
    wrong_argument_1 = am.ArrowSource([], recods=dict)
    wrong_argument_2 = am.FileSink("out", "jsonl", patition_by="day")
    wrong_argument_3 = am.FileSource("in/*.csv", recods=dict)
    wrong_argument_4 = am.ParquetSink("out", patition_by="day")
    wrong_argument_5 = am.RedisSink("redis://localhost", kee="user")
    wrong_argument_6 = am.SparkSource(None, recods=dict)
    wrong_argument_7 = am.SparkStreamSource(None, "state", recods=dict)
    wrong_argument_8 = am.SparkTableSink(None, "table", lodger="added_by")
    wrong_argument_9 = am.SqlSink("out.db", "table", upsert="day")
    not_a_function = am.observe.prometeus
