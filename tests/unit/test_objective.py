"""The objective against the formula written out token by token in float64."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_mega.config.schema import AlgorithmConfig
from grpo_mega.training.objective import GrpoObjective, statistics_names
from tests.distributed.test_one_step import make_experience


def reference_loss(rows, logprobs: torch.Tensor, algorithm: AlgorithmConfig, width: int) -> float:
    """Plain loops over rows and tokens."""
    high = algorithm.epsilon_high or algorithm.epsilon
    lengths = rows.sequences.completion_lengths.tolist()
    total = 0.0
    for row, length in enumerate(lengths):
        for t in range(length):
            logp = float(logprobs[row, t])
            ratio = math.exp(logp - float(rows.old_logprobs[row, t]))
            advantage = float(rows.advantages[row])
            clipped = min(max(ratio, 1 - algorithm.epsilon), 1 + high)
            difference = float(rows.ref_logprobs[row, t]) - logp
            token = -min(ratio * advantage, clipped * advantage)
            token += algorithm.beta * (math.exp(difference) - difference - 1)
            if algorithm.loss_type == "grpo":
                total += token / length / len(lengths)
            elif algorithm.loss_type == "dr_grpo":
                total += token / (len(lengths) * width)
            else:
                total += token / sum(lengths)
    return total


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_loss_and_statistics(loss_type: str) -> None:
    algorithm = AlgorithmConfig(loss_type=loss_type, beta=0.3, epsilon=0.1, epsilon_high=0.4)
    objective = GrpoObjective(algorithm, max_completion_length=16)
    rows, _ = objective.weigh(make_experience())
    logprobs = rows.old_logprobs + 0.3 * torch.randn(
        rows.old_logprobs.shape, generator=torch.Generator().manual_seed(1)
    )
    loss, statistics = objective(logprobs, torch.ones_like(logprobs), rows)
    assert float(loss) == pytest.approx(reference_loss(rows, logprobs, algorithm, 16), rel=1e-5)
    assert float(statistics.sums["tokens"]) == float(rows.sequences.completion_lengths.sum())
    assert float(statistics.sums["entropy"]) == float(statistics.sums["tokens"])
    mask = rows.sequences.completion_mask
    difference = (rows.old_logprobs - rows.rollout_logprobs)[mask]
    assert float(statistics.maxima["logp_difference"]) == pytest.approx(float(difference.abs().max()))
    assert float(statistics.minima["importance_sampling_ratio"]) == pytest.approx(float(difference.exp().min()))


def test_on_policy_gradient_is_minus_the_weighed_advantage() -> None:
    """With old = logp the ratio is 1, so d loss / d logp = -w A at every token, whatever old was."""
    objective = GrpoObjective(AlgorithmConfig(beta=0.0, loss_type="dapo"), max_completion_length=16)
    rows, _ = objective.weigh(make_experience())
    rows = type(rows)(rows.sequences, rows.advantages, rows.rollout_logprobs, None, None, rows.weights)
    logprobs = rows.rollout_logprobs.clone().requires_grad_()
    loss, _ = objective(logprobs, torch.zeros_like(logprobs), rows)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    torch.testing.assert_close(gradient, -rows.weights * rows.advantages[:, None])


def test_the_example_has_the_objectives_names() -> None:
    """Ranks without a loss reduce under the same names, in the same order."""
    objective = GrpoObjective(AlgorithmConfig(beta=0.1), max_completion_length=16)
    rows, _ = objective.weigh(make_experience())
    _, statistics = objective(rows.old_logprobs, rows.old_logprobs, rows)
    names = statistics_names()
    assert list(statistics.sums) == list(names.sums)
    assert list(statistics.maxima) == list(names.maxima)
    assert list(statistics.minima) == list(names.minima)
