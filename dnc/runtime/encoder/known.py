"""Answers that are remembered: what many batches ask alike is worked out once.

In: a key, and how its answer is made. Out: the answer. Guaranteed: so many are held at most; all are
forgotten when there are more, as whoever asks for that many asks for few of them twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


class Known(Generic[Key, Answer]):
    """Answers by their keys, `most` of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._answers: dict[Key, Answer] = {}

    def get(self, key: Key, make: Callable[[], Answer]) -> Answer:
        """The answer, made if it is not known. Nobody changes it."""
        if key not in self._answers:
            if len(self._answers) >= self._most:
                self._answers.clear()
            self._answers[key] = make()
        return self._answers[key]
