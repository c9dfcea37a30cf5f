"""Pipelines as values: steps without a source and without a sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from aiomailbox.api.stream import DataStream
from aiomailbox.errors import WrongTypeError

InT = TypeVar("InT")
OutT = TypeVar("OutT")


class Pipeline(Generic[InT, OutT]):
    """A function from stream to stream that can be kept, sent and attached later.

    Make it with `pipeline`, attach it with ``stream.through(it)``. It holds nothing
    live, so it can be pickled with cloudpickle if its functions can.
    """

    def __init__(
        self, build: Callable[[DataStream[InT]], DataStream[OutT]], name: str
    ) -> None:
        self._build = build
        self.name = name

    def __call__(self, stream: DataStream[InT]) -> DataStream[OutT]:
        """Attach the steps to a stream and return what comes out.

        Raises:
            WrongTypeError: If the function does not return a stream.
        """
        result: Any = self._build(stream)
        if not isinstance(result, DataStream):
            raise WrongTypeError(
                "pipeline",
                f"{self.name!r} returned {type(result).__name__}",
                "Return the stream that results.",
            )
        return result

    def __repr__(self) -> str:
        return f"<Pipeline {self.name!r}>"


def pipeline(
    build: Callable[[DataStream[InT]], DataStream[OutT]],
) -> Pipeline[InT, OutT]:
    """Turn a function from stream to stream into a pipeline; usable as a decorator.

    Example:
        >>> import aiomailbox as am
        >>> @am.pipeline
        ... def doubled(numbers):
        ...     return numbers.map(lambda number: 2 * number)
        >>> env = am.StreamExecutionEnvironment()
        >>> am.run(env.from_collection([1, 2]).through(doubled).collect())
        [2, 4]

    Raises:
        WrongTypeError: If ``build`` is not callable.
    """
    if not callable(build):
        raise WrongTypeError(
            "build", f"{build!r} is not callable", "Pass a function of a stream."
        )
    return Pipeline(build, getattr(build, "__qualname__", repr(build)))
