"""Advantages, KL and losses against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_mega.algorithms.advantages import STD_EPSILON, group_advantages, group_std, total_rewards
from grpo_mega.algorithms.losses import DENOMINATORS, clipped_surrogate, k3_kl, token_weights

NAN = math.nan


def test_total_reward_skips_what_gave_no_score() -> None:
    rewards = torch.tensor([[1.0, 2.0], [NAN, 3.0], [NAN, NAN]])
    total = total_rewards(rewards, torch.tensor([0.5, 2.0]))
    assert total[:2].tolist() == [4.5, 6.0]
    assert total[2].isnan()


def test_group_advantages_by_hand() -> None:
    """Groups (1, 3) and (2, 2): deviation sqrt(2) with Bessel's correction in the first, 0 in the second."""
    rewards = torch.tensor([1.0, 3.0, 2.0, 2.0], dtype=torch.float64)
    scaled = 1 / (math.sqrt(2) + STD_EPSILON)
    assert group_advantages(rewards, 2).tolist() == pytest.approx([-scaled, scaled, 0, 0])
    assert group_advantages(rewards, 2, "none").tolist() == pytest.approx([-1, 1, 0, 0])
    batch = 1 / (math.sqrt(2 / 3) + STD_EPSILON)  # mean 2, squares 1 + 1 + 0 + 0 over 3
    assert group_advantages(rewards, 2, "batch").tolist() == pytest.approx([-batch, batch, 0, 0])


def test_an_unscorable_row_takes_no_part() -> None:
    rewards = torch.tensor([1.0, 3.0, NAN, NAN, NAN, 7.0], dtype=torch.float64)
    advantages = group_advantages(rewards, 3)
    scaled = 1 / (math.sqrt(2) + STD_EPSILON)
    assert advantages.tolist() == pytest.approx([-scaled, scaled, 0, 0, 0, 0])
    assert group_std(rewards, 3).tolist() == pytest.approx([math.sqrt(2), 0])


def test_k3_by_hand() -> None:
    kl = k3_kl(torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -1.0 - math.log(2)]))
    assert kl.tolist() == pytest.approx([0.0, 0.5 + math.log(2) - 1])


def test_clipped_surrogate_by_hand() -> None:
    """Ratios 1.5 and 0.5 with both signs of the advantage, clip 0.8 … 1.3."""
    logprobs = torch.log(torch.tensor([1.5, 1.5, 0.5, 0.5])).requires_grad_()
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    token = clipped_surrogate(logprobs, torch.zeros(4), advantages, 0.2, 0.3)
    assert token.loss.tolist() == pytest.approx([-1.3, 1.5, -0.5, 0.8])
    assert token.high_clipped.tolist() == [True, False, False, False]
    assert token.low_clipped.tolist() == [False, False, False, True]
    token.loss.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.0, 1.5, -0.5, 0.0])  # clipped tokens have no gradient


def test_denominators_by_hand() -> None:
    """Lengths 3, 1 and 0 of T = 4."""
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]).bool()
    expected = {"grpo": (1 / 9, 1 / 3, 3), "bnpo": (1 / 4, 1 / 4, 4), "dapo": (1 / 4, 1 / 4, 4)}
    expected["dr_grpo"] = (1 / 12, 1 / 12, 12)
    assert set(expected) == set(DENOMINATORS)
    for name, (first, second, value) in expected.items():
        denominator = token_weights(name, mask, 4)
        assert denominator.weights[0].tolist() == pytest.approx([first] * 3 + [0])
        assert denominator.weights[1].tolist() == pytest.approx([second, 0, 0, 0])
        assert denominator.weights[2].tolist() == [0, 0, 0, 0]
        assert denominator.value == value


@pytest.mark.parametrize("loss_type", DENOMINATORS)
def test_an_empty_batch_is_not_nan(loss_type: str) -> None:
    assert token_weights(loss_type, torch.zeros(2, 3).bool(), 3).weights.abs().sum() == 0
