"""What is asked of a running job, and what it answers: they know of each other."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

__all__ = ["Answer", "Question"]

T = TypeVar("T")


class Answer(NamedTuple):
    """An answer on its way back to the asker; made by `Question.answer`.

    Attributes:
        desk: Where it was asked: which job's questions.
        number: Which question it was.
        value: The answer.
    """

    desk: int
    number: int
    value: Any


class Question(NamedTuple, Generic[T]):
    """What a caller asked, as a record.

    Attributes:
        desk: Where it was asked: which job's questions.
        number: Which question it is.
        value: What was asked.

    Example:
        >>> Question(0, 7, "how much?").answer(3)
        Answer(desk=0, number=7, value=3)
    """

    desk: int
    number: int
    value: T

    def answer(self, value: Any) -> Answer:
        """Return an answer to this question, for the sink `Answers`."""
        return Answer(self.desk, self.number, value)
