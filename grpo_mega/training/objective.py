"""The GRPO objective over a micro-batch, and the statistics it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from grpo_mega.algorithms.losses import clipped_surrogate, k3_kl, token_weights
from grpo_mega.config.schema import AlgorithmConfig
from grpo_mega.policy.batch import SequenceBatch
from grpo_mega.policy.statistics import Statistics


@dataclass(frozen=True)
class Experience:
    """A rollout, scored: what the objective reads. Every rank holds all rows of the rollout; B rows, T columns."""

    sequences: SequenceBatch
    advantages: torch.Tensor
    """(B,)"""
    rollout_logprobs: torch.Tensor
    """(B, T): what the engine sampled with."""
    old_logprobs: torch.Tensor | None
    """(B, T): the policy at rollout time, by Megatron; None when the step is on-policy (then they are `logprobs`)."""
    ref_logprobs: torch.Tensor | None
    """(B, T): the reference policy; None at beta 0."""
    weights: torch.Tensor | None = None
    """(B, T): each token's share of the optimizer step's loss."""

    def __len__(self) -> int:
        return len(self.sequences)

    def rows(self, index: slice) -> Experience:
        return self._with(self.sequences.rows(index), lambda tensor: tensor[index])

    def to(self, device: torch.device) -> Experience:
        return self._with(self.sequences.to(device), lambda tensor: tensor.to(device))

    def _with(self, sequences: SequenceBatch, change: Callable[[torch.Tensor], torch.Tensor]) -> Experience:
        """These sequences, and every tensor that is there changed alike."""

        def if_there(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else change(tensor)

        return Experience(
            sequences,
            change(self.advantages),
            change(self.rollout_logprobs),
            if_there(self.old_logprobs),
            if_there(self.ref_logprobs),
            if_there(self.weights),
        )


@dataclass(frozen=True)
class GrpoObjective:
    """Clipped surrogate plus beta · k3, each token weighed by its share of the global loss.

    Call it with (b, T) log-probs and entropies of the policy now; it returns this micro-batch's part of the loss.
    """

    algorithm: AlgorithmConfig
    max_completion_length: int

    def weigh(self, step_rows: Experience) -> tuple[Experience, float]:
        """Give the rows of one optimizer step (all of them) their token weights; the denominator is for the log."""
        denominator = token_weights(
            self.algorithm.loss_type, step_rows.sequences.completion_mask, self.max_completion_length
        )
        return replace(step_rows, weights=denominator.weights.float()), denominator.value

    def __call__(
        self, logprobs: torch.Tensor, entropy: torch.Tensor, rows: Experience
    ) -> tuple[torch.Tensor, Statistics]:
        assert rows.weights is not None, "weigh() the optimizer step's rows first"
        old = logprobs.detach() if rows.old_logprobs is None else rows.old_logprobs
        epsilon = self.algorithm.epsilon
        token = clipped_surrogate(
            logprobs, old, rows.advantages[:, None], epsilon, self.algorithm.epsilon_high or epsilon
        )
        loss = token.loss
        kl = torch.zeros_like(logprobs)
        if rows.ref_logprobs is not None:
            kl = k3_kl(logprobs, rows.ref_logprobs)
            loss = loss + self.algorithm.beta * kl
        mask = rows.sequences.completion_mask
        total = (loss * rows.weights).sum()
        with torch.no_grad():
            lengths = mask.sum(-1).clamp(min=1)
            difference = torch.where(mask, old - rows.rollout_logprobs, 0.0)
            ratio = difference.exp()
            statistics = Statistics(
                sums={
                    "loss": total,
                    "tokens": mask.sum(),
                    "kl": (kl * mask).sum(),
                    "entropy": (entropy * mask).sum(),
                    "low_clipped": (token.low_clipped & mask).sum(),
                    "high_clipped": (token.high_clipped & mask).sum(),
                    "logp_difference": difference.abs().sum(),
                    "importance_sampling_ratio": (ratio * mask).sum(),
                },
                maxima={
                    "logp_difference": difference.abs().max(),
                    "importance_sampling_ratio": ratio.max(),
                    "high_clipped": ((token.high_clipped & mask).sum(-1) / lengths).max(),
                },
                minima={
                    "importance_sampling_ratio": ratio.min(),
                    "low_clipped": ((token.low_clipped & mask).sum(-1) / lengths).min(),
                },
            )
        return total, statistics


def statistics_names() -> Statistics:
    """An example with every name that `GrpoObjective` returns, for ranks that compute none."""
    zero = torch.zeros(())
    sums = (
        "loss",
        "tokens",
        "kl",
        "entropy",
        "low_clipped",
        "high_clipped",
        "logp_difference",
        "importance_sampling_ratio",
    )
    return Statistics(
        dict.fromkeys(sums, zero),
        dict.fromkeys(("logp_difference", "importance_sampling_ratio", "high_clipped"), zero),
        dict.fromkeys(("importance_sampling_ratio", "low_clipped"), zero),
    )
