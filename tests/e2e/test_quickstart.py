"""The quickstart learns, for three seeds, in the time and memory that the README promises."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from checkpoint_conversion.init_model import write_random_checkpoint
from grpo_mega.telemetry.progress import reward_ends
from grpo_mega.telemetry.trackers import read_jsonl
from tests.e2e.launching import run, torchrun


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What launch/quickstart.sh makes."""
    path = tmp_path_factory.mktemp("quickstart") / "tiny-random"
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 512}
    write_random_checkpoint(path, "qwen2", 0, **sizes, tie_word_embeddings=False, initializer_range=0.1)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_quickstart(seed: int, model: Path, tmp_path: Path) -> None:
    overrides = [f"seed={seed}", f"model.path={model}", f"output_dir={tmp_path}"]
    outcome = run(torchrun(4, "train", "--config", "configs/quickstart.yaml", *overrides))
    assert outcome.code == 0, outcome.output[-3000:]
    rows = read_jsonl(tmp_path / "quickstart" / "metrics.jsonl")
    first, last = reward_ends(rows)
    print(f"seed {seed}: reward {first:.3f} -> {last:.3f}, {outcome.seconds:.0f} s, {outcome.peak_gib:.1f} GiB")
    assert last >= 3 * first
    assert last > 0.6  # the largest possible reward is 1
    assert max(row["sampling/logp_difference/max"] for row in rows) <= 1e-4
    assert outcome.seconds < 300
    assert outcome.peak_gib <= 12
    assert "reward, last 5 steps" in outcome.output
    assert "report.html" in outcome.output
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "quickstart" / "hf", dtype=torch.float32)
    assert sum(parameter.numel() for parameter in exported.parameters()) == 614_016
