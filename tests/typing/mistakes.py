"""What a type checker finds: each line that begins with a name for a mistake."""

from __future__ import annotations

import aiomailbox as am
from tests.typing.idioms.keyed import Count
from tests.typing.idioms.streams import orders

stream = orders(am.StreamExecutionEnvironment())
not_a_field: am.DataStream[int] = stream.map(lambda order: order.prise)
wrong_result: am.DataStream[int] = stream.map(lambda order: order.user)
wrong_key = stream.key_by(lambda order: order.count).process(Count())
wrong_tag: am.DataStream[int] = stream.get_side_output(am.OutputTag[str]("late"))
