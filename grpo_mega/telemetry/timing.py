"""Where a step's time goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class PhaseTimer:
    """Adds up wall-clock seconds by phase until they are taken."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def peek(self, name: str) -> float:
        """Seconds of one phase so far, 0 if it has not run."""
        return self._seconds.get(name, 0.0)
