"""The policy's log-probs are transformers', for every family and layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from grpo_mega.policy.batch import SequenceBatch
from tests.models import FAMILIES
from tests.policies import make_policy, make_sequences

LAYOUTS = [(1, 1), (2, 1), (1, 2), (2, 2)]
TOLERANCE = 1e-5


def policy_logprobs(directory: Path, tp: int, pp: int, temperature: float) -> torch.Tensor:
    return make_policy(directory, tp, pp, temperature=temperature).logprobs(make_sequences())


@torch.no_grad()
def transformers_logprobs(directory: Path, batch: SequenceBatch, temperature: float) -> torch.Tensor:
    """Row by row, without padding: nothing of the policy's batching is shared."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    result = torch.zeros(len(batch), batch.width)
    for row in range(len(batch)):
        prompt, completion = int(batch.prompt_lengths[row]), int(batch.completion_lengths[row])
        tokens = batch.tokens[row, : prompt + completion]
        logits = model(tokens[None]).logits[0, prompt - 1 : -1].double() / temperature
        if completion:
            result[row, :completion] = logits.log_softmax(-1).gather(1, tokens[prompt:, None])[:, 0].float()
    return result


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_equal_transformers(family: str, checkpoint, ranks) -> None:
    expected = transformers_logprobs(checkpoint(family), make_sequences(), 0.7)
    assert expected.abs().max() > 1  # the distributions are far from uniform
    for tp, pp in LAYOUTS:
        results = ranks.run(tp * pp, policy_logprobs, directory=checkpoint(family), tp=tp, pp=pp, temperature=0.7)
        for rank, actual in enumerate(results):
            error = float((actual - expected).abs().max())
            assert error <= TOLERANCE, f"tp{tp} pp{pp} rank {rank}: {error:.2e}"


@pytest.mark.parametrize("family", ["one-kv-head", "qwen3-one-kv-head"])
def test_tensor_parallel_beyond_kv_heads(family: str, checkpoint, ranks) -> None:
    expected = transformers_logprobs(checkpoint(family), make_sequences(), 1.0)
    results = ranks.run(4, policy_logprobs, directory=checkpoint(family), tp=4, pp=1, temperature=1.0)
    torch.testing.assert_close(results[0], expected, rtol=0, atol=TOLERANCE)
