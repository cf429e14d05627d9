"""The training loop."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from checkpoint_conversion.families import read_architecture
from grpo_mega.config import Config
from grpo_mega.data.prompts import Prompt, PromptOrder, build_prompts, load_tokenizer
from grpo_mega.data.sources import load_rows
from grpo_mega.errors import UserError
from grpo_mega.policy.batch import SequenceBatch
from grpo_mega.policy.policy import Policy, StepResult
from grpo_mega.rewards.functions import RewardFunction, TrainerState, load_reward_functions
from grpo_mega.rollout.engine import Engine, check_version, completion_seeds
from grpo_mega.rollout.policy_engine import PolicyEngine
from grpo_mega.rollout.vllm_engine import VllmEngine
from grpo_mega.runtime.agreement import agree
from grpo_mega.runtime.distributed import Runtime
from grpo_mega.telemetry.timing import PhaseTimer
from grpo_mega.training.checkpoint import (
    TrainerProgress,
    export_hf,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from grpo_mega.training.evaluation import evaluate
from grpo_mega.training.metrics import step_metrics, update_metrics
from grpo_mega.training.objective import Experience, GrpoObjective, statistics_names
from grpo_mega.training.recorder import Recorder
from grpo_mega.training.rollouts import Metrics, Rollout, ScoredRollout, score_rollout


@dataclass
class Trainer:
    """What a run owns. Every method is a collective: all ranks run the same loop over the same data."""

    config: Config
    runtime: Runtime
    tokenizer: Any
    prompts: list[Prompt]
    eval_prompts: list[Prompt]
    rewards: list[RewardFunction]
    policy: Policy
    reference: Policy | None
    engine: Engine
    recorder: Recorder
    eos_token_ids: set[int]
    first_step: int = 0
    num_tokens: int = 0

    def __post_init__(self) -> None:
        rollout, data = self.config.rollout, self.config.data
        self.timer = PhaseTimer()
        self.order = PromptOrder(len(self.prompts), rollout.prompts_per_step, self.config.seed, data.shuffle)
        self.objective = GrpoObjective(self.config.algorithm, rollout.max_completion_length)

    def fit(self) -> None:
        """Train from `first_step` to the end, then export."""
        self.sync_weights()
        self.timer.take()
        for step in range(self.first_step, self.config.train.steps):
            started = time.perf_counter()
            rollout = self.generate(step)
            scored = self.score(rollout, step)
            experience = self.prepare(rollout, scored)
            updates = self.update(experience)
            self.sync_weights()
            evaluation = self.evaluate(step)
            self.save(step, rollout)
            self.record(step, started, rollout, scored, updates, evaluation)
        self.finish()

    def sync_weights(self) -> None:
        with self.timer.phase("sync"):
            self.engine.sync(self.policy)

    def generate(self, step: int) -> Rollout:
        """Completions of the step's prompts, num_generations each."""
        generations = self.config.rollout.num_generations
        prompts = [self.prompts[index] for index in self.order.indices(step) for _ in range(generations)]
        with self.timer.phase("rollout"):
            seeds = completion_seeds(self.config.seed, step, len(prompts))
            generation = self.engine.generate([prompt.tokens for prompt in prompts], seeds)
        check_version(generation, self.policy.version)
        return Rollout.of(prompts, generation, self.eos_token_ids)

    def score(self, rollout: Rollout, step: int) -> ScoredRollout:
        state = TrainerState(global_step=step, max_steps=self.config.train.steps)
        with self.timer.phase("reward"):
            return score_rollout(
                rollout,
                self.rewards,
                self.tokenizer,
                state,
                self.config.rollout.num_generations,
                self.config.algorithm.scale_rewards,
                self.runtime.rank,
            )

    def prepare(self, rollout: Rollout, scored: ScoredRollout) -> Experience:
        """Sequences with advantages, and the log-probs that the objective will need."""
        width = self.config.rollout.max_completion_length
        completions = rollout.generation.completions
        sequences = SequenceBatch.build(
            [prompt.tokens for prompt in rollout.prompts], completions, width, self.runtime.topology.tensor
        )
        rollout_logprobs = torch.zeros(len(sequences), width)
        for row, values in enumerate(rollout.generation.logprobs):
            rollout_logprobs[row, : len(values)] = torch.tensor(values)
        old_logprobs = ref_logprobs = None
        if self.config.optimizer_steps_per_rollout > 1:  # otherwise they are the step's own, without a gradient
            with self.timer.phase("old_logprob"):
                old_logprobs = self.policy.logprobs(sequences)
        if self.reference is not None:
            with self.timer.phase("ref_logprob"):
                ref_logprobs = self.reference.logprobs(sequences)
        return Experience(sequences, scored.advantages, rollout_logprobs, old_logprobs, ref_logprobs)

    def update(self, experience: Experience) -> list[tuple[StepResult, float]]:
        """Every optimizer step of the rollout, each with its loss denominator."""
        size, results = self.config.global_batch_size, []
        with self.timer.phase("update"):
            for _ in range(self.config.algorithm.num_iterations):
                for start in range(0, len(experience), size):
                    rows, denominator = self.objective.weigh(experience.rows(slice(start, start + size)))
                    results.append((self.policy.step(rows, self.objective, statistics_names()), denominator))
        self._check_engine(results[: len(experience) // size])
        return results

    def _check_engine(self, first_pass: list[tuple[StepResult, float]]) -> None:
        limit = self.config.rollout.logp_difference_limit
        worst = max(float(result.statistics.maxima["logp_difference"]) for result, _ in first_pass)
        if limit is not None and not worst <= limit:
            raise UserError(
                f"an engine log-prob differs from Megatron's by {worst:.3e}, over rollout.logp_difference_limit={limit}"
            )

    def evaluate(self, step: int) -> Metrics:
        every = self.config.eval.every_steps
        if not every or (step + 1) % every:
            return {}
        with self.timer.phase("eval"):
            evaluation = evaluate(
                self.config, self.engine, self.eval_prompts, self.rewards, self.tokenizer, self.eos_token_ids
            )
        return evaluation.metrics

    def save(self, step: int, rollout: Rollout) -> None:
        self.num_tokens += rollout.num_tokens()
        every, done = self.config.checkpoint.every_steps, step + 1
        if (every and done % every == 0) or done == self.config.train.steps:
            progress = TrainerProgress(done, self.policy.version, self.num_tokens, self.policy.scheduler.state_dict())
            with self.timer.phase("save"):
                directory = self.config.run_dir / "checkpoints"
                save_checkpoint(directory, self.policy, progress, self.config.checkpoint.keep_last)

    def record(
        self,
        step: int,
        started: float,
        rollout: Rollout,
        scored: ScoredRollout,
        updates: list[tuple[StepResult, float]],
        evaluation: Metrics,
    ) -> None:
        metrics = {
            **step_metrics(rollout, scored, self.policy, self.num_tokens, time.perf_counter() - started),
            **update_metrics(updates, self.config.algorithm.beta > 0),
            **self._sync_metrics(),
            **{f"timing_s/{name}": seconds for name, seconds in self.timer.take().items()},
            **evaluation,
        }
        self.recorder.step(step + 1, metrics, rollout, scored, self.tokenizer)

    def _sync_metrics(self) -> Metrics:
        seconds = self.timer.peek("sync")
        size = self.policy.gather.nbytes
        return {
            "sync/bytes": float(size),
            "sync/seconds": seconds,
            "sync/gb_per_s": size / seconds / 1e9,
            "sync/weight_version": float(self.policy.version),
        }

    def finish(self) -> None:
        paths: dict[str, Path] = {}
        if self.config.checkpoint.export_hf:
            paths["HF checkpoint"] = export_hf(self.policy, self.config.run_dir / "hf", self.config.model.path)
        self.recorder.finish(paths)
        self.engine.close()


def build_trainer(config: Config, runtime: Runtime, resume: bool) -> Trainer:
    """Make everything a run owns. A collective; errors that depend on files are raised on every rank.

    Raises:
        UserError: see `load_rows`, `build_prompts`, `load_reward_functions`, `Policy.load_hf`, `Recorder`.
    """
    tokenizer, prompts, eval_prompts, rewards = agree(lambda: load_inputs(config))
    recorder = Recorder(config, runtime.rank, resume)
    policy = build_policy(config, runtime, config.model.path)
    policy.make_trainable(config.optimizer, config.train.steps * config.optimizer_steps_per_rollout)
    reference = None
    if config.algorithm.beta > 0:
        reference = build_policy(config, runtime, config.model.reference_path or config.model.path)
    eos_token_ids = read_eos_token_ids(config.model.path, tokenizer)
    trainer = Trainer(
        config=config,
        runtime=runtime,
        tokenizer=tokenizer,
        prompts=prompts,
        eval_prompts=eval_prompts,
        rewards=rewards,
        policy=policy,
        reference=reference,
        engine=build_engine(config, policy, eos_token_ids),
        recorder=recorder,
        eos_token_ids=eos_token_ids,
    )
    if resume:
        path = agree(lambda: latest_checkpoint(config.run_dir / "checkpoints"))
        progress = load_checkpoint(path, policy)
        trainer.first_step, trainer.num_tokens = progress.step, progress.num_tokens
    recorder.start(trainer.first_step)
    return trainer


def load_inputs(config: Config) -> tuple[Any, list[Prompt], list[Prompt], list[RewardFunction]]:
    tokenizer = load_tokenizer(config.model.path)
    prompts = build_prompts(load_rows(config.data.train, "data.train"), config.data, tokenizer)
    eval_prompts = []
    if config.data.eval is not None:
        rows = load_rows(config.data.eval, "data.eval")[: config.eval.num_prompts]
        eval_prompts = build_prompts(rows, config.data, tokenizer)
    return tokenizer, prompts, eval_prompts, load_reward_functions(config.rewards)


def build_policy(config: Config, runtime: Runtime, path: Path) -> Policy:
    """A policy with the weights of an HF checkpoint, not trainable yet. A collective."""
    policy = Policy(
        read_architecture(path),
        runtime,
        config.parallel,
        resolve_dtype(config, runtime),
        config.train.micro_batch_size,
        config.rollout.temperature,
    )
    policy.load_hf(path)
    return policy


def resolve_dtype(config: Config, runtime: Runtime) -> torch.dtype:
    if config.model.dtype == "auto":
        return torch.bfloat16 if runtime.device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.model.dtype]


def build_engine(config: Config, policy: Policy, eos_token_ids: set[int]) -> Engine:
    """The rollout engine that the configuration names. A collective."""
    if config.rollout.engine == "policy":
        return PolicyEngine(policy, config.rollout.max_completion_length, eos_token_ids)
    return VllmEngine(config.model.path, config.rollout, config.max_sequence_length, policy.dtype, config.seed)


def read_eos_token_ids(directory: Path, tokenizer: Any) -> set[int]:
    """Tokens that end a completion: the tokenizer's, and those of generation_config.json (as vLLM takes them)."""
    from transformers import GenerationConfig

    ids = {int(tokenizer.eos_token_id)}
    if (directory / "generation_config.json").is_file():
        extra = GenerationConfig.from_pretrained(directory).eos_token_id
        ids |= set(extra if isinstance(extra, list) else [extra] if extra is not None else [])
    return ids
