"""Weights in and out of the policy are exact, and what is exported is the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from grpo_mega.config.schema import OptimizerConfig
from grpo_mega.training.checkpoint import export_hf
from tests.models import FAMILIES
from tests.parity.test_transformers import transformers_logprobs
from tests.policies import make_policy, make_sequences

LAYOUTS = [(1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 2)]


def canonical(directory: Path, tp: int, pp: int) -> dict[str, torch.Tensor]:
    policy = make_policy(directory, tp, pp)
    policy.gather._buckets = policy.gather._split_into_buckets(20_000)  # several buckets
    assert len(policy.gather._buckets) > 3
    return {name: tensor.clone() for name, tensor in policy.canonical_tensors()}


@pytest.mark.parametrize("family", FAMILIES)
def test_loading_and_gathering_is_the_identity_bit_for_bit(family: str, checkpoint: Any, ranks: Any) -> None:
    stored = load_file(checkpoint(family) / "model.safetensors")
    for tp, pp in LAYOUTS:
        for result in ranks.run(tp * pp, canonical, directory=checkpoint(family), tp=tp, pp=pp):
            assert set(result) == set(stored)
            for name, tensor in stored.items():
                assert torch.equal(result[name], tensor), f"{name} at tp{tp} pp{pp}"


def train_and_export(directory: Path, tp: int, pp: int, out: Path) -> torch.Tensor:
    """One real optimizer step, so that what is exported is not what was loaded."""
    from tests.distributed.test_one_step import AlgorithmConfig, GrpoObjective, make_experience, statistics_names

    policy = make_policy(directory, tp, pp)
    policy.make_trainable(OptimizerConfig(learning_rate=0.01), total_steps=1)
    objective = GrpoObjective(AlgorithmConfig(), max_completion_length=16)
    rows, _ = objective.weigh(make_experience())
    policy.step(rows, objective, statistics_names())
    export_hf(policy, out, directory)
    return policy.logprobs(make_sequences())


@pytest.mark.parametrize("family", ["qwen2", "llama-tied", "qwen3"])
def test_the_export_loaded_by_transformers_is_the_policy(
    family: str, checkpoint: Any, ranks: Any, tmp_path: Path
) -> None:
    out = tmp_path / "hf"
    results = ranks.run(4, train_and_export, directory=checkpoint(family), tp=2, pp=2, out=out)
    exported = transformers_logprobs(out, make_sequences(), 1.0)
    before = transformers_logprobs(checkpoint(family), make_sequences(), 1.0)
    assert (exported - before).abs().max() > 0.05  # the step did something
    for result in results:
        torch.testing.assert_close(result, exported, rtol=0, atol=1e-5)
    assert set(load_file(out / "model.safetensors")) == set(load_file(checkpoint(family) / "model.safetensors"))


def load_broken(directory: Path) -> str:
    from grpo_mega.errors import UserError

    try:
        make_policy(directory, 2, 1)
    except UserError as error:
        return str(error)
    return ""


def test_a_checkpoint_that_lacks_a_tensor_is_refused_on_every_rank(checkpoint: Any, ranks: Any, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    source = checkpoint("qwen2")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    messages = ranks.run(2, load_broken, directory=tmp_path)
    assert all("lacks model.layers.2.mlp.up_proj.weight" in message for message in messages), messages
