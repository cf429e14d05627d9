"""The vocab-parallel operator against float64 on the whole vocabulary, values and gradients, at TP 1, 2 and 4."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from grpo_mega.ops.vocab_parallel import vocab_parallel_gumbel_argmax, vocab_parallel_logprobs_entropy

COLUMNS, VOCAB, ROWS = 16, 50, 12  # at TP 4: 64 columns, of which 14 pad the vocabulary on the last rank


def make_inputs(temperature: float) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, VOCAB, generator=generator) * 5
    logits[3, 7:20] = -torch.inf  # a masked region that crosses a shard's border
    targets = torch.arange(ROWS) * 4 % VOCAB  # on every shard
    targets[3] = 40
    # In the reference masked columns are so low that their probability is 0 in float64: -inf has NaN gradients.
    finite = logits.double().clamp(min=-1e4).requires_grad_()
    logp = (finite / temperature).log_softmax(-1)
    chosen = logp.gather(1, targets[:, None])[:, 0]
    entropy = -(logp.exp() * logp).sum(-1)
    weights = torch.randn(2, ROWS, generator=generator)
    gradients = []
    for value, weight in zip((chosen, entropy), weights.double(), strict=True):
        gradients.append(torch.autograd.grad((value * weight).sum(), finite, retain_graph=True)[0])
    return {
        "logits": logits,
        "targets": targets,
        "weights": weights,
        "logprobs": chosen.detach(),
        "entropy": entropy.detach(),
        "logprob_gradient": gradients[0],
        "entropy_gradient": gradients[1],
    }


def run_operator(inputs: dict[str, torch.Tensor], temperature: float) -> dict[str, torch.Tensor]:
    """Results of this rank; gradients are of its own columns, padding included."""
    size, rank = dist.get_world_size(), dist.get_rank()
    columns = -(-VOCAB // size // COLUMNS) * COLUMNS
    padded = torch.full((ROWS, columns * size), 3.0)  # padding that would win if it counted
    padded[:, :VOCAB] = inputs["logits"]
    shard = padded[:, rank * columns : (rank + 1) * columns].clone().requires_grad_()
    logprobs, entropy = vocab_parallel_logprobs_entropy(shard, inputs["targets"], dist.group.WORLD, VOCAB, temperature)
    result = {"logprobs": logprobs.detach(), "entropy": entropy.detach()}
    for name, value, weight in zip(("logprob", "entropy"), (logprobs, entropy), inputs["weights"], strict=True):
        (gradient,) = torch.autograd.grad((value * weight).sum(), shard, retain_graph=True)
        result[f"{name}_gradient"] = gradient
    return result


def assert_equal(results: list[dict[str, torch.Tensor]], inputs: dict[str, torch.Tensor]) -> None:
    for result in results:
        for name in ("logprobs", "entropy"):
            torch.testing.assert_close(result[name].double(), inputs[name], rtol=2e-6, atol=2e-6)
    for name in ("logprob_gradient", "entropy_gradient"):
        gradient = torch.cat([result[name] for result in results], -1).double()
        torch.testing.assert_close(gradient[:, :VOCAB], inputs[name], rtol=1e-5, atol=2e-6)
        assert (gradient[:, VOCAB:] == 0).all()


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients(size: int, temperature: float, ranks: Any) -> None:
    inputs = make_inputs(temperature)
    assert_equal(ranks.run(size, run_operator, inputs=inputs, temperature=temperature), inputs)


def test_the_check_catches_gradients_on_the_owner_only(ranks: Any) -> None:
    """The public bug of several trainers: shards that do not own the target get no gradient."""
    inputs = make_inputs(1.0)
    results = ranks.run(2, run_operator, inputs=inputs, temperature=1.0)
    columns = results[0]["logprob_gradient"].shape[1]
    for rank, result in enumerate(results):
        owned = inputs["targets"] // columns == rank
        result["logprob_gradient"] *= owned[:, None]
    with pytest.raises(AssertionError):
        assert_equal(results, inputs)


def empty_rows() -> list[int]:
    logits = torch.zeros(0, COLUMNS, requires_grad=True)
    logprobs, entropy = vocab_parallel_logprobs_entropy(logits, torch.zeros(0).long(), dist.group.WORLD, 20)
    (logprobs.sum() + entropy.sum()).backward()
    return [logprobs.numel(), entropy.numel(), logits.grad.numel()]


def test_no_rows(ranks: Any) -> None:
    assert ranks.run(2, empty_rows) == [[0, 0, 0]] * 2


def sample_many(logits: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    size, rank = dist.get_world_size(), dist.get_rank()
    columns = COLUMNS * 4 // size
    padded = torch.full((logits.shape[0], COLUMNS * 4), 99.0)
    padded[:, :VOCAB] = logits
    shard = padded[:, rank * columns : (rank + 1) * columns]
    return vocab_parallel_gumbel_argmax(shard, noise, dist.group.WORLD, VOCAB, 0.5)


def test_samples_have_the_softmaxs_frequencies_on_every_layout(ranks: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    count = 20000
    logits = torch.randn(VOCAB, generator=generator)
    noise = -(-torch.rand(count, VOCAB, generator=generator).log()).log()
    samples = [ranks.run(s, sample_many, logits=logits.expand(count, -1), noise=noise)[0] for s in (1, 2, 4)]
    assert torch.equal(samples[0], samples[1])
    assert torch.equal(samples[0], samples[2])
    frequency = torch.bincount(samples[0], minlength=VOCAB) / count
    p = (logits / 0.5).softmax(-1)
    deviation = (p * (1 - p) / count).sqrt()
    assert ((frequency - p).abs() < 5 * deviation).all()
