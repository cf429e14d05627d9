"""vLLM in the trainer's ranks: after every sync it samples with the policy's weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_mega.telemetry.trackers import read_jsonl
from tests.e2e.launching import run, torchrun, write_config
from tests.runs import make_config, make_model


@pytest.mark.slow
def test_vllm_follows_a_tied_policy(tmp_path: Path) -> None:
    """Tied embeddings over two pipeline stages, large steps, two iterations a rollout, two replicas at TP 2.

    A tied model is the case in which vLLM's CPU head keeps the first weights unless it is packed again.
    """
    model = make_model(tmp_path)
    config = make_config(
        model,
        tmp_path,
        parallel={"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
        rollout={"engine": "vllm", "max_completion_length": 6, "vllm": {"tensor_parallel_size": 2}},
        algorithm={"num_iterations": 2, "beta": 0.0},
        optimizer={"learning_rate": 0.01},
        eval={"num_prompts": 8},
        data={
            "train": {"kind": "reasoning_gym", "task": "count_bits", "options": {"min_n": 1, "max_n": 15}, "size": 20},
            "eval": {"kind": "reasoning_gym", "task": "count_bits", "options": {"min_n": 1, "max_n": 15}, "size": 8},
            "prompt_template": "{metadata[number]}",
            "max_prompt_length": 8,
        },
    )
    path = write_config(config, tmp_path / "c.yaml")
    outcome = run(torchrun(4, "train", "--config", path))
    assert outcome.code == 0, outcome.output[-3000:]
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert [row["sync/weight_version"] for row in rows] == [2, 4, 6, 8]
    differences = [row["sampling/logp_difference/max"] for row in rows]
    assert max(differences) <= 1e-4, differences
    assert abs(rows[-1]["entropy"] - rows[0]["entropy"]) > 0.01  # the policy did move

    # What was exported is what vLLM and the policy load: eval over another layout, from the export.
    one_rank = ["parallel.tensor_parallel_size=1", "parallel.pipeline_parallel_size=1"]
    overrides = [f"model.path={tmp_path / 'run' / 'hf'}", "rollout.vllm.tensor_parallel_size=1", *one_rank]
    outcome = run(torchrun(1, "eval", "--config", path, "--json", *overrides))
    assert outcome.code == 0, outcome.output[-3000:]
    metrics = json.loads(next(line for line in outcome.output.splitlines() if line.startswith("{")))
    assert 0 <= metrics["eval/reward"] <= 1.5
    assert metrics["eval/completions/max_length"] <= 6
