"""The configuration tree. Every setting of the project is a field here, with its default and its meaning.

Imports neither torch nor any engine: a configuration can be validated on a login node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt


class Section(BaseModel):
    """A part of the tree: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


class ModelConfig(Section):
    path: Path
    """Hugging Face checkpoint directory (config.json, tokenizer, safetensors) that the policy starts from."""
    reference_path: Path | None = None
    """Checkpoint of the reference policy; the policy's own start when not given. Loaded only if algorithm.beta > 0."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Parameter dtype: `auto` is bfloat16 on GPUs (master weights stay float32) and float32 on CPUs."""


class ParallelConfig(Section):
    tensor_parallel_size: PositiveInt = 1
    """Ranks over which each layer is split (TP). Must divide the attention heads."""
    pipeline_parallel_size: PositiveInt = 1
    """Pipeline stages (PP). Must divide the number of layers. Data parallelism takes the ranks that remain."""
    sequence_parallel: bool = True
    """With TP > 1, split norms and residuals over the sequence too (Megatron sequence parallelism)."""
    use_distributed_optimizer: bool = True
    """Shard optimizer state over data-parallel ranks (megatron-core's distributed optimizer)."""
    collective_timeout_s: PositiveFloat = 600.0
    """A collective that waits longer than this, in seconds, ends the run with an error."""


class ReasoningGymData(Section):
    kind: Literal["reasoning_gym"] = "reasoning_gym"
    """Procedural tasks of the `reasoning-gym` package, verified by their own scorers."""
    task: str
    """Name of the reasoning-gym data set, e.g. `chain_sum`."""
    options: dict[str, Any] = {}
    """Keyword arguments of the task, e.g. `{min_digits: 1, max_digits: 2}`."""
    size: PositiveInt = 1000
    """Number of rows."""
    seed: int = 0
    """Seed of the task's generator."""


class JsonlData(Section):
    kind: Literal["jsonl"] = "jsonl"
    """A JSON-lines file: one object a row, with `prompt` (or the template's fields) and ground-truth columns."""
    path: Path
    """The file."""


DataSource = Annotated[ReasoningGymData | JsonlData, Field(discriminator="kind")]


class DataConfig(Section):
    train: DataSource
    """Where training prompts come from."""
    eval: DataSource | None = None
    """Held-out prompts for `grpo-mega eval` and evaluation during training."""
    prompt_template: str | None = None
    """Python format string over a row's columns that makes the prompt, e.g. `{question}\\nAnswer:`."""
    conversational: bool = False
    """Send each prompt as a user message through the tokenizer's chat template."""
    system_prompt: str | None = None
    """System message put before the user's, when conversational."""
    max_prompt_length: PositiveInt = 512
    """Longest prompt, in tokens."""
    long_prompts: Literal["error", "keep_last"] = "error"
    """A prompt over max_prompt_length is an error, or keeps its last max_prompt_length tokens."""
    shuffle: bool = True
    """Draw prompts in a new random order each epoch (a function of `seed` and the epoch)."""


class VllmConfig(Section):
    tensor_parallel_size: PositiveInt = 1
    """vLLM's TP inside the trainer's ranks; must divide the number of ranks. Replicas share the prompts."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.45
    """Share of GPU memory vLLM may take (weights and KV cache). Unused on CPUs."""
    cpu_kv_cache_gib: PositiveInt = 1
    """KV cache of each rank on CPUs, GiB."""
    enforce_eager: bool = True
    """Run without CUDA graphs or compilation."""
    max_num_seqs: PositiveInt = 256
    """Sequences decoded together on one replica."""


class RolloutConfig(Section):
    engine: Literal["vllm", "policy"] = "vllm"
    """`vllm`: colocated vLLM engines. `policy`: sample with the Megatron policy itself (slow; needs no vLLM)."""
    prompts_per_step: PositiveInt = 16
    """Prompts of one rollout."""
    num_generations: Annotated[int, Field(ge=2)] = 8
    """Completions of each prompt: the group over which advantages are computed."""
    max_completion_length: PositiveInt = 256
    """Longest completion, in tokens."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature; log-probs everywhere are of the distribution sampled from."""
    logp_difference_limit: PositiveFloat | None = None
    """Stop the run when an engine log-prob differs from Megatron's by more than this (float32: 1e-4)."""
    vllm: VllmConfig = VllmConfig()
    """Settings of the vLLM engines."""


class RewardConfig(Section):
    function: str
    """Reward function: `package.module:name` or `path/to/file.py:name`."""
    weight: float = 1.0
    """Weight of this function in the total reward."""
    options: dict[str, Any] = {}
    """Extra keyword arguments given to the function on every call."""


class AlgorithmConfig(Section):
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo"] = "grpo"
    """Denominator of the loss; always global, never per micro-batch or rank."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Standard deviation that divides r - mean(group): the group's, the batch's, or no division."""
    beta: NonNegativeFloat = 0.0
    """Weight of the k3 KL to the reference policy; at 0 no reference is loaded."""
    epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Lower clip: the ratio is clipped below at 1 - epsilon."""
    epsilon_high: PositiveFloat | None = None
    """Upper clip: the ratio is clipped above at 1 + epsilon_high; epsilon when not given."""
    num_iterations: PositiveInt = 1
    """Passes over each rollout (mu in the GRPO paper)."""


class OptimizerConfig(Section):
    learning_rate: NonNegativeFloat = 1e-6
    """Peak learning rate."""
    min_learning_rate: NonNegativeFloat = 0.0
    """Learning rate at the end of a linear or cosine schedule."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the learning rate after the warm-up."""
    warmup_steps: NonNegativeInt = 0
    """Optimizer steps over which the learning rate rises linearly from 0."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay; biases and norm weights have none."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the gradient's average."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the squared gradient's average."""
    adam_eps: PositiveFloat = 1e-8
    """Added to the denominator of Adam's step."""
    clip_grad: NonNegativeFloat = 1.0
    """Global gradient norm is clipped to this, over all ranks; 0 turns clipping off."""


class TrainConfig(Section):
    steps: PositiveInt = 100
    """Rollouts of the run. Each gives batch / global_batch_size * num_iterations optimizer steps."""
    global_batch_size: PositiveInt | None = None
    """Completions of one optimizer step over all ranks; the whole rollout when not given."""
    micro_batch_size: PositiveInt = 1
    """Completions of one forward/backward pass on one data-parallel rank."""


class EvalConfig(Section):
    every_steps: NonNegativeInt = 0
    """Evaluate on data.eval every so many steps; 0: never during training."""
    num_prompts: PositiveInt = 64
    """Prompts of an evaluation, from the start of data.eval."""
    num_generations: PositiveInt = 1
    """Completions of each evaluation prompt."""


class CheckpointConfig(Section):
    every_steps: NonNegativeInt = 0
    """Save every so many steps; 0: only at the end."""
    keep_last: PositiveInt = 2
    """Older checkpoints are deleted."""
    export_hf: bool = True
    """Write a Hugging Face checkpoint to <run>/hf at the end."""


class WandbConfig(Section):
    project: str = "grpo-mega"
    """Weights & Biases project."""
    mode: Literal["online", "offline"] = "offline"
    """`offline` writes to the run directory and needs no account."""


class TelemetryConfig(Section):
    completions_per_step: NonNegativeInt = 4
    """Sample completions written to completions.jsonl each step."""
    tensorboard: bool = False
    """Write TensorBoard events to <run>/tensorboard."""
    wandb: WandbConfig | None = None
    """Log to Weights & Biases."""
    progress_bar: bool = True
    """Show a live progress bar with ETA on a terminal."""


class Config(Section):
    """A whole run."""

    name: str = "run"
    """The run's directory is <output_dir>/<name>."""
    output_dir: Path = Path("runs")
    """Parent directory of run directories."""
    seed: int = 0
    """Seed of the data order and of sampling; the same seed gives the same run on the same layout."""
    model: ModelConfig
    """The policy."""
    parallel: ParallelConfig = ParallelConfig()
    """How the policy is laid out over ranks."""
    data: DataConfig
    """Prompts."""
    rollout: RolloutConfig = RolloutConfig()
    """Generation."""
    rewards: Annotated[tuple[RewardConfig, ...], Field(min_length=1)]
    """Reward functions; the total is their weighted sum."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """GRPO."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Adam and its schedule."""
    train: TrainConfig = TrainConfig()
    """Batch sizes and length of the run."""
    eval: EvalConfig = EvalConfig()
    """Evaluation."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    telemetry: TelemetryConfig = TelemetryConfig()
    """Metrics and samples."""

    @property
    def run_dir(self) -> Path:
        return self.output_dir / self.name

    @property
    def rollout_batch_size(self) -> int:
        """Completions of one rollout."""
        return self.rollout.prompts_per_step * self.rollout.num_generations

    @property
    def global_batch_size(self) -> int:
        """Completions of one optimizer step."""
        return self.train.global_batch_size or self.rollout_batch_size

    @property
    def optimizer_steps_per_rollout(self) -> int:
        return self.rollout_batch_size // self.global_batch_size * self.algorithm.num_iterations

    @property
    def max_sequence_length(self) -> int:
        return self.data.max_prompt_length + self.rollout.max_completion_length
