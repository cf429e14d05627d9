"""`grpo-mega eval`: an engine, prompts and rewards, without training."""

from __future__ import annotations

from grpo_mega.config import Config
from grpo_mega.runtime.agreement import agree
from grpo_mega.runtime.distributed import Runtime
from grpo_mega.training.evaluation import Sample, evaluate
from grpo_mega.training.rollouts import Metrics
from grpo_mega.training.trainer import build_engine, build_policy, load_inputs, read_eos_token_ids


def evaluate_model(config: Config, runtime: Runtime, samples: int) -> tuple[Metrics, list[Sample]]:
    """`eval/…` metrics of model.path on data.eval, and the first completions. A collective.

    The weights go to the engine as in training, through the policy, so that what is evaluated is what was synced.
    """
    tokenizer, _, prompts, rewards = agree(lambda: load_inputs(config))
    policy = build_policy(config, runtime, config.model.path)
    eos_token_ids = read_eos_token_ids(config.model.path, tokenizer)
    engine = build_engine(config, policy, eos_token_ids)
    engine.sync(policy)
    evaluation = evaluate(config, engine, prompts, rewards, tokenizer, eos_token_ids)
    engine.close()
    return evaluation.metrics, evaluation.samples(tokenizer, samples)
