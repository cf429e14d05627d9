"""Rewards on held-out prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from grpo_mega.config import Config
from grpo_mega.data.prompts import Prompt
from grpo_mega.rewards.functions import RewardFunction, TrainerState
from grpo_mega.rollout.engine import Engine, completion_seeds
from grpo_mega.training.rollouts import Metrics, Rollout, ScoredRollout, score_rollout

Sample = dict[str, Any]

EVALUATION_STEP = -1
"""Stands for the step in sampling seeds: every evaluation samples with the same noise."""


@dataclass(frozen=True)
class Evaluation:
    """Metrics under `eval/…`, and what they were measured on."""

    metrics: Metrics
    rollout: Rollout
    scored: ScoredRollout

    def samples(self, tokenizer: Any, count: int) -> list[Sample]:
        """The first `count` completions as text, with their rewards. Not a collective."""
        batch = self.rollout.as_reward_input(tokenizer)
        rows = range(min(count, len(batch)))
        return [
            {
                "prompt": batch.prompts[row],
                "completion": batch.completions[row],
                "rewards": self.scored.by_function(row),
            }
            for row in rows
        ]


def evaluate(
    config: Config,
    engine: Engine,
    prompts: list[Prompt],
    rewards: list[RewardFunction],
    tokenizer: object,
    eos_token_ids: set[int],
) -> Evaluation:
    """Mean rewards and lengths over `eval.num_generations` completions of each prompt, as `eval/…`. A collective."""
    generations = config.eval.num_generations
    repeated = [prompt for prompt in prompts for _ in range(generations)]
    seeds = completion_seeds(config.seed, EVALUATION_STEP, len(repeated))
    generation = engine.generate([prompt.tokens for prompt in repeated], seeds)
    rollout = Rollout.of(repeated, generation, eos_token_ids)
    state = TrainerState(global_step=EVALUATION_STEP, max_steps=config.train.steps)
    scored = score_rollout(rollout, rewards, tokenizer, state, generations, "none", dist.get_rank())
    kept = ("reward", "rewards/", "completions/")
    metrics = {**scored.metrics(), **rollout.metrics()}
    chosen = {
        f"eval/{name}": value
        for name, value in metrics.items()
        if name.startswith(kept) and not name.endswith("std") and name != "rewards/unscorable_rows"
    }
    return Evaluation(chosen, rollout, scored)
