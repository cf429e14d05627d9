"""One optimizer step is the same on every layout, and for every micro-batch size.

Adam's first step is lr · g / (|g| + eps): with a small eps every element moves by about lr whatever its gradient, and
an element whose gradient is rounding noise moves by ±lr at random. With eps = 1, far above every gradient here, the
step is proportional to the gradient, so that the updated weights measure the layout and not rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_mega.config.schema import AlgorithmConfig, OptimizerConfig
from grpo_mega.training.objective import Experience, GrpoObjective, statistics_names
from tests.policies import make_policy, make_sequences

LAYOUTS = [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2), (1, 2, 2)]
ALGORITHM = AlgorithmConfig(beta=0.1, loss_type="grpo")


def make_experience(rows: int = 8) -> Experience:
    sequences = make_sequences(rows)
    generator = torch.Generator().manual_seed(5)

    def logprobs() -> torch.Tensor:
        return -3 + torch.randn(rows, sequences.width, generator=generator)

    return Experience(sequences, torch.randn(rows, generator=generator), logprobs(), logprobs(), logprobs())


def canonical_gradients(policy: Any) -> dict[str, torch.Tensor]:
    """Every gradient in Hugging Face coordinates: the weights' own plan applied to the gradient buffers.

    The distributed optimizer leaves each data-parallel rank only its shard of the reduced gradient, so the buffers are
    summed over the data-parallel group with every other rank's part zeroed.
    """
    gradients = {}
    buffers = policy.model.buffers
    for buffer in buffers:
        for bucket in buffer.buckets:
            shards = list(bucket.grad_data.chunk(policy.runtime.topology.data))
            for index, shard in enumerate(shards):
                if index != policy.runtime.coordinates.data:
                    shard.zero_()
            torch.distributed.all_reduce(bucket.grad_data, group=policy.runtime.data_group)
    for name, param in policy.module.named_parameters():
        gradients[name] = param.main_grad
    return {n: t.clone() for n, t in policy.gather.tensors(gradients, policy.runtime.device)}


def one_step(
    directory: Path, tp: int, pp: int, dp: int, micro_batch_size: int, loss_type: str = "grpo", bug: str = ""
) -> Any:
    policy = make_policy(directory, tp, pp, dp, micro_batch_size)
    if bug == "unmarked parameters":  # megatron-core then counts the shards of TP rank 0 only
        for param in policy.module.parameters():
            param.tensor_model_parallel = False
    optimizer = OptimizerConfig(learning_rate=0.5, adam_eps=1.0, clip_grad=0.25, weight_decay=0.1)
    policy.make_trainable(optimizer, total_steps=10)
    kind = LocalDenominator if bug == "local denominator" else GrpoObjective
    objective = kind(ALGORITHM.model_copy(update={"loss_type": loss_type}), max_completion_length=16)
    rows, _ = objective.weigh(make_experience())
    gradients: dict[str, torch.Tensor] = {}
    inner = policy.optimizer.step

    def step_after_a_look() -> Any:
        gradients.update(canonical_gradients(policy))
        return inner()

    policy.optimizer.step = step_after_a_look
    result = policy.step(rows, objective, statistics_names())
    weights = {name: tensor.clone() for name, tensor in policy.canonical_tensors()}
    return float(result.statistics.sums["loss"]), result.grad_norm, gradients, weights


class LocalDenominator(GrpoObjective):
    """A planted bug, common in public trainers: each micro-batch divides by its own token count."""

    def __call__(self, logprobs: torch.Tensor, entropy: torch.Tensor, rows: Experience) -> Any:
        rows, _ = self.weigh(rows)
        return super().__call__(logprobs, entropy, rows)


def assert_same(actual: Any, expected: Any, where: str) -> None:
    for value, reference, what in zip(actual[:2], expected[:2], ("loss", "gradient norm"), strict=True):
        assert value == pytest.approx(reference, rel=1e-5), f"{where}: {what}"
    for kind, tensors, references in (("gradient", actual[2], expected[2]), ("weight", actual[3], expected[3])):
        assert list(tensors) == list(references)
        for name, reference in references.items():
            error = (tensors[name] - reference).abs().max() / reference.abs().max()
            assert error <= 1e-5, f"{where}: {kind} of {name} differs by {error:.1e} of its largest element"


@pytest.mark.parametrize("family", ["llama", "llama-tied", "qwen2", "qwen3", "qwen3-one-kv-head"])
def test_one_step_is_layout_independent(family: str, checkpoint, ranks) -> None:
    directory = checkpoint(family)
    expected = ranks.run(1, one_step, directory=directory, tp=1, pp=1, dp=1, micro_batch_size=8)[0]
    assert expected[1] > 0.25  # clipping is active
    assert all(gradient.abs().max() > 0 for gradient in expected[2].values())
    for tp, pp, dp in LAYOUTS:
        results = ranks.run(tp * pp * dp, one_step, directory=directory, tp=tp, pp=pp, dp=dp, micro_batch_size=2)
        for rank, actual in enumerate(results):
            assert_same(actual, expected, f"{family} tp{tp} pp{pp} dp{dp} rank {rank}")


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_micro_batch_size_does_not_matter(loss_type: str, checkpoint, ranks) -> None:
    directory = checkpoint("qwen2")
    runs = {
        size: ranks.run(2, one_step, directory=directory, tp=1, pp=2, dp=1, micro_batch_size=size, loss_type=loss_type)[
            0
        ]
        for size in (1, 2, 4, 8)
    }
    for size in (1, 2, 4):
        assert_same(runs[size], runs[8], f"{loss_type}, micro-batch {size}")


@pytest.mark.parametrize("bug", ["local denominator", "unmarked parameters"])
def test_the_comparison_catches_planted_bugs(bug: str, checkpoint, ranks) -> None:
    directory = checkpoint("qwen2")
    expected = ranks.run(1, one_step, directory=directory, tp=1, pp=1, dp=1, micro_batch_size=8)[0]
    actual = ranks.run(2, one_step, directory=directory, tp=2, pp=1, dp=1, micro_batch_size=2, bug=bug)[0]
    with pytest.raises(AssertionError, match=r"loss|gradient norm"):
        assert_same(actual, expected, bug)
