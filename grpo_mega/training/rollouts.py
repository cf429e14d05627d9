"""One rollout, scored: prompts, completions, rewards, advantages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from grpo_mega.algorithms.advantages import group_advantages, group_std, total_rewards
from grpo_mega.data.prompts import Prompt
from grpo_mega.rewards.functions import Completions, RewardFunction, Scores, TrainerState, score
from grpo_mega.rollout.engine import Generation
from grpo_mega.runtime.agreement import on_rank_zero

Metrics = dict[str, float]


@dataclass(frozen=True)
class Rollout:
    """B completions; row i belongs to prompt i // num_generations. The same on every rank."""

    prompts: list[Prompt]
    """B prompts, each repeated for its group."""
    generation: Generation
    terminated: torch.Tensor
    """(B,) bool: the completion ends with an end-of-sequence token."""

    @classmethod
    def of(cls, prompts: list[Prompt], generation: Generation, eos_token_ids: set[int]) -> Rollout:
        ended = [bool(tokens) and tokens[-1] in eos_token_ids for tokens in generation.completions]
        return cls(prompts, generation, torch.tensor(ended))

    def lengths(self) -> torch.Tensor:
        """(B,) completion lengths in tokens."""
        return torch.tensor([len(tokens) for tokens in self.generation.completions], dtype=torch.float64)

    def num_tokens(self) -> int:
        """Prompt and completion tokens."""
        return sum(len(prompt.tokens) for prompt in self.prompts) + int(self.lengths().sum())

    def as_reward_input(self, tokenizer: Any) -> Completions:
        """What reward functions get: text without special tokens, as messages where the prompt is messages."""
        texts = tokenizer.batch_decode(self.generation.completions, skip_special_tokens=True)
        completions = [
            text if isinstance(prompt.text, str) else [{"role": "assistant", "content": text}]
            for prompt, text in zip(self.prompts, texts, strict=True)
        ]
        columns = {name: [prompt.columns.get(name) for prompt in self.prompts] for name in self.prompts[0].columns}
        return Completions([p.text for p in self.prompts], completions, self.generation.completions, columns)

    def metrics(self) -> Metrics:
        lengths = self.lengths()
        ended = lengths[self.terminated]
        result = {
            "completions/mean_length": float(lengths.mean()),
            "completions/min_length": float(lengths.min()),
            "completions/max_length": float(lengths.max()),
            "completions/clipped_ratio": 1.0 - float(self.terminated.double().mean()),
        }
        for name, value in (("mean", ended.mean), ("min", ended.min), ("max", ended.max)):
            result[f"completions/{name}_terminated_length"] = float(value()) if ended.numel() else 0.0
        return result


@dataclass(frozen=True)
class ScoredRollout:
    """Rewards and advantages of a rollout, the same on every rank."""

    names: list[str]
    rewards: torch.Tensor
    """(B, F) float64; NaN where a function gave no score."""
    total: torch.Tensor
    """(B,) weighted sums; NaN where no function scored the row."""
    advantages: torch.Tensor
    """(B,) float32."""
    deviations: torch.Tensor
    """(B / num_generations,) standard deviation of each group."""

    def by_function(self, row: int) -> dict[str, float | None]:
        """One row's scores by function; None where a function gave none."""
        values = self.rewards[row].tolist()
        return {name: None if math.isnan(v) else v for name, v in zip(self.names, values, strict=True)}

    def metrics(self) -> Metrics:
        result: Metrics = {}
        for index, name in enumerate(self.names):
            column = self.rewards[:, index]
            column = column[~column.isnan()]
            result[f"rewards/{name}/mean"] = float(column.mean()) if column.numel() else 0.0
            result[f"rewards/{name}/std"] = float(column.std()) if column.numel() > 1 else 0.0
        scored = self.total[~self.total.isnan()]
        result["reward"] = float(scored.mean()) if scored.numel() else 0.0
        result["reward_std"] = float(self.deviations.mean())
        result["frac_reward_zero_std"] = float((self.deviations == 0).double().mean())
        result["rewards/unscorable_rows"] = float(self.total.isnan().sum())
        return result


def score_rollout(
    rollout: Rollout,
    functions: Sequence[RewardFunction],
    tokenizer: Any,
    state: TrainerState,
    num_generations: int,
    scale_rewards: str,
    rank: int,
) -> ScoredRollout:
    """Call the reward functions on rank 0 and give every rank the result. A collective.

    Raises:
        UserError: on every rank, when a reward function fails.
    """

    def compute() -> list[Scores]:
        return score(functions, rollout.as_reward_input(tokenizer), state)

    columns = on_rank_zero(compute, rank)
    values = [[float("nan") if value is None else value for value in column] for column in columns]
    rewards = torch.tensor(values, dtype=torch.float64).T
    weights = torch.tensor([function.weight for function in functions], dtype=torch.float64)
    total = total_rewards(rewards, weights)
    return ScoredRollout(
        names=[function.name for function in functions],
        rewards=rewards,
        total=total,
        advantages=group_advantages(total, num_generations, scale_rewards).float(),
        deviations=group_std(total, num_generations),
    )
