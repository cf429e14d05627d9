"""Small training runs inside test ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from checkpoint_conversion.init_model import write_random_checkpoint
from grpo_mega.config import validate_config
from grpo_mega.config.schema import Config
from grpo_mega.runtime.distributed import attach_runtime
from grpo_mega.runtime.topology import Topology
from grpo_mega.telemetry.trackers import read_jsonl

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,
}


def make_model(directory: Path) -> Path:
    """A checkpoint with tokenizer; head size 32, which vLLM's CPU attention takes."""
    path = directory / "model"
    write_random_checkpoint(path, "qwen2", 0, **SIZES)
    return path


def make_config(model: Path, output_dir: Path, **changes: Any) -> Config:
    """A run of a few steps on sums, sampling with the policy. `changes` are sections, merged key by key."""
    tree: dict[str, Any] = {
        "name": "run",
        "output_dir": str(output_dir),
        "model": {"path": str(model)},
        "data": {
            "train": {"kind": "reasoning_gym", "task": "count_bits", "options": {"min_n": 1, "max_n": 15}, "size": 20},
            "prompt_template": "{metadata[number]}",
            "max_prompt_length": 8,
        },
        "rollout": {"engine": "policy", "prompts_per_step": 4, "num_generations": 4, "max_completion_length": 3},
        "rewards": [
            {"function": "configs/rewards/number_closeness.py:number_closeness"},
            {"function": "grpo_mega.rewards.reasoning_gym:verified", "weight": 0.5},
        ],
        "algorithm": {"beta": 0.05},
        "optimizer": {"learning_rate": 1e-3, "lr_schedule": "cosine", "warmup_steps": 1},
        "train": {"steps": 4, "micro_batch_size": 4},
        "telemetry": {"progress_bar": False},
    }
    for section, values in changes.items():
        tree[section] = {**tree[section], **values} if isinstance(values, dict) and section in tree else values
    return validate_config(tree)


def train(config: Config, data: int = 1, resume: bool = False, steps: int | None = None) -> dict[str, Any]:
    """Run (or go on with) training; the final weights and the metrics. `steps` stops early, as a kill would."""
    from grpo_mega.training.trainer import build_trainer

    parallel = config.parallel
    topology = Topology(parallel.tensor_parallel_size, parallel.pipeline_parallel_size, data)
    trainer = build_trainer(config, attach_runtime(topology), resume)
    if steps is not None:
        shorter = config.train.model_copy(update={"steps": steps})
        trainer.config = config.model_copy(update={"train": shorter})
    trainer.fit()
    weights = {name: tensor.clone() for name, tensor in trainer.policy.canonical_tensors()}
    return {"weights": weights, "metrics": read_jsonl(config.run_dir / "metrics.jsonl")}


MEASURED = ("step_time", "perf/", "timing_s/", "sync/seconds", "sync/gb_per_s")
"""Metrics that are times, not mathematics."""


def mathematics(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith(MEASURED)} for row in rows]


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)
