"""Hyper-rectangles of tensor coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """A hyper-rectangle `((start, stop), …)`, one half-open interval a dimension."""

    intervals: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        assert all(0 <= start <= stop for start, stop in self.intervals), self.intervals

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """The box that covers a tensor of this shape."""
        return cls(tuple((0, size) for size in shape))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.intervals)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """Index that selects this box from a tensor."""
        return tuple(slice(start, stop) for start, stop in self.intervals)

    def narrow(self, dim: int, start: int, stop: int) -> Box:
        """This box with the interval of `dim` replaced."""
        intervals = list(self.intervals)
        intervals[dim] = (start, stop)
        return Box(tuple(intervals))

    def intersect(self, other: Box) -> Box | None:
        """The common part, or None when it is empty."""
        assert len(self.intervals) == len(other.intervals)
        common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(self.intervals, other.intervals, strict=True))
        return Box(common) if all(start < stop for start, stop in common) else None
