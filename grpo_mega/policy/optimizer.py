"""megatron-core's optimizer and learning-rate schedule from the project's configuration."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from grpo_mega.config.schema import OptimizerConfig


def build_optimizer(
    config: OptimizerConfig, use_distributed_optimizer: bool, dtype: torch.dtype, models: list[torch.nn.Module]
) -> Any:
    """Adam with decoupled weight decay; biases and norm weights are in a group without decay (megatron-core's rule).

    Gradient clipping is by the global norm: each parameter counted once over TP, PP and tied embeddings.
    """
    return get_megatron_optimizer(
        MegatronOptimizerConfig(
            optimizer="adam",
            lr=config.learning_rate,
            min_lr=min(config.min_learning_rate, config.learning_rate),
            weight_decay=config.weight_decay,
            adam_beta1=config.adam_beta1,
            adam_beta2=config.adam_beta2,
            adam_eps=config.adam_eps,
            clip_grad=config.clip_grad,
            bf16=dtype == torch.bfloat16,
            params_dtype=dtype,
            use_distributed_optimizer=use_distributed_optimizer,
        ),
        models,
    )


def build_scheduler(config: OptimizerConfig, optimizer: Any, total_steps: int) -> OptimizerParamScheduler:
    """Linear warm-up from 0, then constant, linear or cosine down to min_learning_rate at `total_steps`."""
    # megatron-core asserts warm-up < decay steps; with a longer warm-up the run ends inside it.
    decay_steps = max(total_steps, config.warmup_steps + 1)
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0 if config.warmup_steps else config.learning_rate,
        max_lr=config.learning_rate,
        min_lr=min(config.min_learning_rate, config.learning_rate),
        lr_warmup_steps=config.warmup_steps,
        lr_decay_steps=decay_steps,
        lr_decay_style=config.lr_schedule,
        start_wd=config.weight_decay,
        end_wd=config.weight_decay,
        wd_incr_steps=decay_steps,
        wd_incr_style="constant",
    )


def allocate_state(optimizer: Any) -> None:
    """Give torch's AdamW (used where neither Transformer Engine nor Apex is) its state before a checkpoint is loaded.

    megatron-core's DistributedOptimizer.state_dict reads every parameter's step, which torch makes at the first step
    only. All zeros is the state that torch would make.
    """
    for inner in _torch_optimizers(optimizer):
        for group in inner.param_groups:
            for param in group["params"]:
                if not inner.state[param]:
                    inner.state[param].update(
                        step=torch.zeros((), dtype=torch.float32),
                        exp_avg=torch.zeros_like(param),
                        exp_avg_sq=torch.zeros_like(param),
                    )


def separate_steps(optimizer: Any) -> None:
    """After a load, give every parameter a step counter of its own.

    DistributedOptimizer.load_state_dict puts one tensor into every parameter's state; torch's AdamW adds to it once a
    parameter, so that the next step would count as many.
    """
    for inner in _torch_optimizers(optimizer):
        for state in inner.state.values():
            state["step"] = state["step"].clone()


def _torch_optimizers(optimizer: Any) -> list[torch.optim.Optimizer]:
    """The torch AdamW instances inside megatron-core's (possibly chained) optimizer."""
    parts = getattr(optimizer, "chained_optimizers", [optimizer])
    return [part.optimizer for part in parts if isinstance(part.optimizer, torch.optim.Adam | torch.optim.AdamW)]
