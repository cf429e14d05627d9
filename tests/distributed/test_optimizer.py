"""Weight-decay groups and the learning-rate schedule, through real optimizer steps."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_mega.config.schema import AlgorithmConfig, OptimizerConfig
from grpo_mega.training.objective import GrpoObjective, statistics_names
from tests.distributed.test_one_step import make_experience
from tests.policies import make_policy


def steps(directory: Path, config: OptimizerConfig, count: int) -> Any:
    """Optimizer steps with zero advantages, so that only weight decay moves the weights."""
    policy = make_policy(directory, tp=2, pp=1)
    before = {name: tensor.clone() for name, tensor in policy.canonical_tensors()}
    policy.make_trainable(config, total_steps=count)
    objective = GrpoObjective(AlgorithmConfig(), max_completion_length=16)
    rows, _ = objective.weigh(make_experience())
    rows = replace(rows, advantages=torch.zeros(len(rows)), ref_logprobs=None)
    rates = [policy.step(rows, objective, statistics_names()).learning_rate for _ in range(count)]
    return rates, before, {name: tensor.clone() for name, tensor in policy.canonical_tensors()}


def test_decay_is_for_matrices_only(checkpoint: Any, ranks: Any) -> None:
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.5)
    _, before, after = ranks.run(2, steps, directory=checkpoint("qwen2"), config=config, count=1)[0]
    assert any(name.endswith("q_proj.bias") for name in before)
    for name, tensor in before.items():
        factor = 1 - 0.1 * 0.5 if tensor.dim() == 2 else 1.0
        torch.testing.assert_close(after[name], tensor * factor, rtol=1e-6, atol=0, msg=name)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_schedules_by_hand(schedule: str, checkpoint: Any, ranks: Any) -> None:
    """Warm-up over 2 of 10 steps to 1.0, then down to 0.2 at step 10; the rate of step n is that after n steps."""
    config = OptimizerConfig(learning_rate=1.0, min_learning_rate=0.2, warmup_steps=2, lr_schedule=schedule)
    rates, _, _ = ranks.run(2, steps, directory=checkpoint("qwen2"), config=config, count=10)[0]
    expected = []
    for step in range(10):
        progress = max(0.0, (step - 2) / 8)
        rest = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}[schedule]
        expected.append(step / 2 if step < 2 else 0.2 + 0.8 * rest)
    assert rates == pytest.approx(expected)
