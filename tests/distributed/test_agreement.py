"""Errors and text across ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from grpo_mega.errors import UserError
from grpo_mega.policy.statistics import Statistics
from grpo_mega.runtime.agreement import agree, all_gather_ragged, all_gather_text, on_rank_zero


def disagree(bad_ranks: list[int]) -> str:
    rank = dist.get_rank()

    def check() -> int:
        if rank in bad_ranks:
            raise UserError(f"rank {rank} is unhappy")
        return rank

    try:
        return f"fine {agree(check)}"
    except UserError as error:
        return str(error)


def test_one_ranks_error_is_everyones(ranks: Any) -> None:
    assert ranks.run(4, disagree, bad_ranks=[]) == ["fine 0", "fine 1", "fine 2", "fine 3"]
    assert ranks.run(4, disagree, bad_ranks=[2, 3]) == ["rank 2 is unhappy"] * 4


def zero_only(fail: bool) -> Any:
    def compute() -> Any:
        assert dist.get_rank() == 0
        if fail:
            raise UserError("no")
        return [1.5, None, "ß"]

    try:
        return on_rank_zero(compute, dist.get_rank())
    except UserError as error:
        return str(error)


def test_rank_zero_computes_for_all(ranks: Any) -> None:
    assert ranks.run(3, zero_only, fail=False) == [[1.5, None, "ß"]] * 3
    assert ranks.run(3, zero_only, fail=True) == ["no"] * 3


def gather() -> Any:
    rank = dist.get_rank()
    parts = all_gather_ragged(torch.arange(rank))
    return [part.tolist() for part in parts], all_gather_text("ü" * rank), all_gather_ragged(torch.zeros(0))[0].numel()


def test_ragged_gather(ranks: Any) -> None:
    for parts, texts, empty in ranks.run(3, gather):
        assert parts == [[], [0], [0, 1]]
        assert texts == ["", "ü", "üü"]
        assert empty == 0


def reduce(contributors: list[int]) -> Any:
    rank = dist.get_rank()
    value = torch.tensor(float(rank + 1))
    own = Statistics({"a": value}, {"b": -value}, {"c": value})
    own = own.merge(Statistics({"a": value}, {"b": -2 * value}, {"c": 2 * value}))
    result = own.reduce(rank in contributors, own)
    return float(result.sums["a"]), float(result.maxima["b"]), float(result.minima["c"])


def test_statistics_of_contributors_reach_every_rank(ranks: Any) -> None:
    """Ranks 1 and 2 contribute sums 2·2 and 2·3, maxima -2 and -3, minima 2 and 3."""
    assert ranks.run(3, reduce, contributors=[1, 2]) == [(10.0, -2.0, 2.0)] * 3
