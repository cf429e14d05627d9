"""The policy loss: a weight for every token of the global batch, and a clipped surrogate to weigh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Denominator:
    """What a loss type divides by: (B, T) token weights, and the scalar that is logged as the denominator."""

    weights: torch.Tensor
    value: float


def _grpo(mask: torch.Tensor, max_completion_length: int) -> Denominator:
    """Mean over sequences of the mean over the sequence's tokens. Empty sequences count, with value 0."""
    lengths = mask.sum(-1, keepdim=True).clamp(min=1)
    return Denominator(mask / lengths / mask.shape[0], float(mask.shape[0]))


def _active_tokens(mask: torch.Tensor, max_completion_length: int) -> Denominator:
    """Mean over the active tokens of the global batch."""
    count = mask.sum().clamp(min=1)
    return Denominator(mask / count, float(count))


def _dr_grpo(mask: torch.Tensor, max_completion_length: int) -> Denominator:
    """A constant, B · T, whatever the lengths."""
    count = mask.shape[0] * max_completion_length
    return Denominator(mask / count, float(count))


DENOMINATORS: dict[str, Callable[[torch.Tensor, int], Denominator]] = {
    "grpo": _grpo,
    "bnpo": _active_tokens,
    "dapo": _active_tokens,
    "dr_grpo": _dr_grpo,
}


def token_weights(loss_type: str, mask: torch.Tensor, max_completion_length: int) -> Denominator:
    """Weights w with loss = Σ w · (loss of the token), Σ over the whole optimizer step.

    `mask` is (B, T) bool over all completions of the step, on every rank: the denominator is therefore global, and
    parts of the sum computed on any rank or micro-batch add up to the same loss. TRL's `grpo` and `bnpo` depend on
    the split instead (equal on one process with one micro-batch). `bnpo` and `dapo` are one number here; in TRL they
    differ by local or global count.
    """
    return DENOMINATORS[loss_type](mask.double(), max_completion_length)


def k3_kl(logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
    """Schulman's k3 estimate of KL(policy ‖ reference), per token: exp(d) - d - 1, d = ref - logp; never negative."""
    difference = ref_logprobs - logprobs
    return difference.exp() - difference - 1


@dataclass(frozen=True)
class TokenLoss:
    """Per token, all of one shape."""

    loss: torch.Tensor
    low_clipped: torch.Tensor
    """Bool: the ratio is below 1 - epsilon and the advantage negative, so the token has no gradient."""
    high_clipped: torch.Tensor
    """Bool: the ratio is above 1 + epsilon_high and the advantage positive."""


def clipped_surrogate(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor, epsilon: float, epsilon_high: float
) -> TokenLoss:
    """-min(ρ A, clip(ρ, 1 - ε, 1 + ε_high) A) with ρ = exp(logp - old) (PPO, arXiv 1707.06347).

    `logprobs` and `old_logprobs` (…, T); `advantages` broadcasts against them.
    """
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon_high)
    return TokenLoss(
        loss=-torch.minimum(ratio * advantages, clipped * advantages),
        low_clipped=(ratio < 1 - epsilon) & (advantages < 0),
        high_clipped=(ratio > 1 + epsilon_high) & (advantages > 0),
    )
