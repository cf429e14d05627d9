"""Checkpoints that a run resumes from exactly: megatron-core's distributed format plus the trainer's own state."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies import filesystem_async

from checkpoint_conversion.writer import write_checkpoint
from grpo_mega.errors import UserError
from grpo_mega.policy.optimizer import allocate_state, separate_steps
from grpo_mega.policy.policy import Policy

STATE_FILE = "trainer_state.json"
OPTIMIZER_METADATA = {
    # Optimizer state per parameter, whatever the layout it was saved from.
    "distrib_optim_sharding_type": "fully_reshardable",
    "distrib_optim_fully_reshardable_mem_efficient": False,
}


@dataclass(frozen=True)
class TrainerProgress:
    """What a run needs, beside weights and optimizer, to go on as if it had not stopped. Data order and sampling
    seeds are functions of the configuration's seed and the step."""

    step: int
    """Finished rollouts."""
    weight_version: int
    num_tokens: int
    scheduler: dict[str, Any]


def save_checkpoint(directory: Path, policy: Policy, progress: TrainerProgress, keep_last: int) -> Path:
    """Write <directory>/step_<n>. A collective.

    Everything goes to a temporary directory, the trainer's state last, then a rename: a directory that has its final
    name is whole. Older checkpoints beyond `keep_last` are deleted afterwards.
    """
    final = directory / f"step_{progress.step:06d}"
    temporary = directory / f".step_{progress.step:06d}.partial"
    rank = policy.runtime.rank
    if rank == 0:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    dist.barrier()
    dist_checkpointing.save(_sharded_state(policy, is_loading=False), str(temporary))
    filesystem_async._results_queue = None  # ends the helper process that would outlive a killed rank
    dist.barrier()
    if rank == 0:
        (temporary / STATE_FILE).write_text(json.dumps(asdict(progress), indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        for old in complete_checkpoints(directory)[:-keep_last]:
            shutil.rmtree(old)
    dist.barrier()
    return final


def load_checkpoint(path: Path, policy: Policy) -> TrainerProgress:
    """Restore weights, optimizer, schedule and version into a trainable policy, on any layout. A collective."""
    progress = TrainerProgress(**json.loads((path / STATE_FILE).read_text(encoding="utf-8")))
    allocate_state(policy.optimizer)
    state = dist_checkpointing.load(_sharded_state(policy, is_loading=True), str(path))
    policy.module.load_state_dict(state["model"])
    policy.optimizer.load_state_dict(state["optimizer"])
    separate_steps(policy.optimizer)
    policy.scheduler.load_state_dict(progress.scheduler)
    policy.version = progress.weight_version
    return progress


def complete_checkpoints(directory: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.glob("step_*") if (path / STATE_FILE).is_file())


def latest_checkpoint(directory: Path) -> Path:
    """The newest whole checkpoint. Raises `UserError` when there is none."""
    found = complete_checkpoints(directory)
    if not found:
        raise UserError(f"--resume: {directory} has no complete checkpoint; run without --resume to start anew")
    return found[-1]


def export_hf(policy: Policy, out: Path, source: Path) -> Path:
    """Write the policy as a Hugging Face checkpoint with the source's config and tokenizer. A collective.

    Replaces an export of an earlier stage of the same run.
    """
    tensors = policy.canonical_tensors()
    if policy.runtime.rank == 0:
        shutil.rmtree(out, ignore_errors=True)
        write_checkpoint(((name, tensor.cpu()) for name, tensor in tensors), out, source, policy.dtype)
    else:
        for _ in tensors:
            pass
    dist.barrier()
    return out


def _sharded_state(policy: Policy, is_loading: bool) -> dict[str, Any]:
    metadata = dict(OPTIMIZER_METADATA)  # megatron-core adds its process groups to it
    model = policy.module.sharded_state_dict(metadata=metadata)
    optimizer = policy.optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=metadata)
    return {"model": model, "optimizer": optimizer}
