"""Group advantages."""

from __future__ import annotations

import torch

STD_EPSILON = 1e-4
"""Added to the standard deviation, as in TRL: a group of equal rewards has advantages 0, not 0/0."""


def total_rewards(rewards: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """(B,) weighted sums of (B, F) rewards over the functions that scored the row; NaN where none did.

    NaN in `rewards` means that a function gave no score (None). Weights are (F,).
    """
    scored = ~rewards.isnan()
    total = (torch.where(scored, rewards, 0.0) * weights).sum(-1)
    return torch.where(scored.any(-1), total, torch.nan)


def group_advantages(rewards: torch.Tensor, num_generations: int, scale: str = "group") -> torch.Tensor:
    """(B,) advantages of (B,) rewards, B a multiple of the group size; groups are consecutive rows.

    r - mean of the group, divided by STD_EPSILON + the standard deviation (Bessel's correction) of the group
    (`group`: GRPO, arXiv 2402.03300), of all rewards (`batch`), or not divided (`none`: Dr. GRPO, arXiv 2503.20783).
    A NaN reward (an unscorable row) takes no part in mean and deviation and has advantage 0.
    """
    groups = rewards.view(-1, num_generations)
    centred = groups - groups.nanmean(-1, keepdim=True)
    if scale == "group":
        centred = centred / (_nanstd(groups) + STD_EPSILON)
    elif scale == "batch":
        centred = centred / (_nanstd(rewards[None]) + STD_EPSILON)
    else:
        assert scale == "none", scale
    return torch.nan_to_num(centred.reshape(-1), nan=0.0)


def group_std(rewards: torch.Tensor, num_generations: int) -> torch.Tensor:
    """(B / num_generations,) standard deviation of each group, over its scored rows; 0 for fewer than two."""
    return _nanstd(rewards.view(-1, num_generations))[:, 0]


def _nanstd(values: torch.Tensor) -> torch.Tensor:
    """Standard deviation of each row over its non-NaN entries, keepdim; 0 where there are fewer than two."""
    count = (~values.isnan()).sum(-1, keepdim=True)
    squares = torch.nan_to_num(values - values.nanmean(-1, keepdim=True), nan=0.0).square().sum(-1, keepdim=True)
    return (squares / (count - 1).clamp(min=1)).sqrt()
