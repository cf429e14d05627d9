"""Sums, maxima and minima that micro-batches and ranks add to."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist


@dataclass
class Statistics:
    """Named scalars with the way in which two of them combine. Averages are made from sums after reduction."""

    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    maxima: dict[str, torch.Tensor] = field(default_factory=dict)
    minima: dict[str, torch.Tensor] = field(default_factory=dict)

    def merge(self, other: Statistics) -> Statistics:
        """Combine two parts that have the same names."""
        return Statistics(
            {name: value + other.sums[name] for name, value in self.sums.items()},
            {name: torch.maximum(value, other.maxima[name]) for name, value in self.maxima.items()},
            {name: torch.minimum(value, other.minima[name]) for name, value in self.minima.items()},
        )

    def reduce(self, contributes: bool, names: Statistics) -> Statistics:
        """Combine over all ranks; those that do not contribute get the result too.

        A collective of the world. `names` is an example with every name, for ranks that have nothing of their own.
        """
        own = self if contributes else names
        sums = _pack(own.sums) if contributes else torch.zeros(len(names.sums), dtype=torch.float64)
        # Minima travel as maxima of negatives: one all-reduce for both.
        extremes = torch.cat((_pack(own.maxima), -_pack(own.minima)))
        if not contributes:
            extremes = torch.full_like(extremes, -torch.inf)
        dist.all_reduce(sums)
        if extremes.numel():
            dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
        count = len(own.maxima)
        return Statistics(
            dict(zip(own.sums, sums, strict=True)),
            dict(zip(own.maxima, extremes[:count], strict=True)),
            dict(zip(own.minima, -extremes[count:], strict=True)),
        )


def _pack(values: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.stack([v.detach().double().cpu() for v in values.values()]) if values else torch.zeros(0).double()
