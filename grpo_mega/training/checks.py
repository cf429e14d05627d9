"""What can be checked before any rank starts: sizes against the model and the ranks. Needs no torch."""

from __future__ import annotations

from checkpoint_conversion.families import Architecture
from grpo_mega.config.schema import Config
from grpo_mega.errors import UserError
from grpo_mega.runtime.topology import Topology


def check_run(config: Config, architecture: Architecture, world_size: int) -> Topology:
    """The grid of ranks. Raises `UserError` for the first size that does not fit; the message has the arithmetic."""
    parallel = config.parallel
    topology = Topology.from_world(world_size, parallel.tensor_parallel_size, parallel.pipeline_parallel_size)
    architecture.check_tensor_parallel(topology.tensor)
    if architecture.num_layers % topology.pipeline:
        raise UserError(
            f"parallel.pipeline_parallel_size={topology.pipeline} does not divide the model's "
            f"{architecture.num_layers} layers"
        )
    _check_batches(config, topology)
    if config.max_sequence_length > architecture.max_position_embeddings:
        raise UserError(
            f"data.max_prompt_length + rollout.max_completion_length = {config.data.max_prompt_length} + "
            f"{config.rollout.max_completion_length} = {config.max_sequence_length} is over the model's "
            f"{architecture.max_position_embeddings} positions"
        )
    if config.rollout.engine == "vllm":
        _check_vllm(config, architecture, world_size)
    if config.eval.every_steps and config.data.eval is None:
        raise UserError(f"eval.every_steps={config.eval.every_steps} needs data.eval")
    return topology


def _check_batches(config: Config, topology: Topology) -> None:
    rollout, step = config.rollout_batch_size, config.global_batch_size
    if rollout % step:
        raise UserError(
            f"train.global_batch_size={step} does not divide the rollout: rollout.prompts_per_step × "
            f"rollout.num_generations = {config.rollout.prompts_per_step} × {config.rollout.num_generations} = "
            f"{rollout}"
        )
    unit = topology.data * config.train.micro_batch_size
    if step % unit:
        raise UserError(
            f"data-parallel size × train.micro_batch_size = {topology.data} × {config.train.micro_batch_size} = {unit} "
            f"does not divide the {step} completions of an optimizer step (train.global_batch_size)"
        )


def _check_vllm(config: Config, architecture: Architecture, world_size: int) -> None:
    tensor = config.rollout.vllm.tensor_parallel_size
    key = f"rollout.vllm.tensor_parallel_size={tensor}"
    if world_size % tensor:
        raise UserError(f"{key} does not divide the {world_size} ranks")
    if architecture.num_attention_heads % tensor:
        raise UserError(f"{key} does not divide the model's {architecture.num_attention_heads} attention heads")


def describe_run(config: Config, architecture: Architecture, topology: Topology) -> str:
    """The grid and the batch arithmetic, for `--dry-run` and the start of a run."""
    rollout, step = config.rollout_batch_size, config.global_batch_size
    share = step // topology.data
    lines = [
        topology.describe(),
        f"model: {architecture.family}, {architecture.num_layers} layers "
        f"({architecture.num_layers // topology.pipeline} a stage), {architecture.num_attention_heads} heads, "
        f"{architecture.num_query_groups} KV heads, vocabulary {architecture.vocab_size} "
        f"(padded to {architecture.padded_vocab_size(topology.tensor)})",
        f"rollout: {config.rollout.prompts_per_step} prompts × {config.rollout.num_generations} generations = {rollout}"
        f" completions of at most {config.rollout.max_completion_length} tokens, engine {config.rollout.engine}",
        f"optimizer step: {step} completions = {topology.data} data-parallel ranks × "
        f"{share // config.train.micro_batch_size} micro-batches × {config.train.micro_batch_size}",
        f"run: {config.train.steps} rollouts × {rollout // step} mini-batches × {config.algorithm.num_iterations} "
        f"iterations = {config.train.steps * config.optimizer_steps_per_rollout} optimizer steps",
    ]
    return "\n".join(lines)
