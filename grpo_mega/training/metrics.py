"""Metrics of a step under TRL's names."""

from __future__ import annotations

from grpo_mega.policy.policy import Policy, StepResult
from grpo_mega.training.rollouts import Metrics, Rollout, ScoredRollout


def step_metrics(rollout: Rollout, scored: ScoredRollout, policy: Policy, num_tokens: int, step_time: float) -> Metrics:
    """Rewards, lengths and speed. Tokens are prompt and completion tokens; a "gpu" is a rank, on CPUs too."""
    speed = rollout.num_tokens() / step_time
    return {
        **scored.metrics(),
        **rollout.metrics(),
        "num_tokens": float(num_tokens),
        "step_time": step_time,
        "perf/tokens_per_s": speed,
        "perf/tokens_per_s_per_gpu": speed / policy.runtime.topology.world_size,
    }


def update_metrics(updates: list[tuple[StepResult, float]], has_reference: bool) -> Metrics:
    """Means over the rollout's optimizer steps; engine mismatch over all of them."""
    parts = [result.statistics for result, _ in updates]
    tokens = sum(max(float(part.sums["tokens"]), 1.0) for part in parts)

    def per_token(name: str) -> float:
        return sum(float(part.sums[name]) for part in parts) / tokens

    metrics = {
        "loss": sum(float(part.sums["loss"]) for part in parts) / len(parts),
        "loss/denominator": sum(denominator for _, denominator in updates) / len(updates),
        "grad_norm": sum(result.grad_norm for result, _ in updates) / len(updates),
        "lr": updates[-1][0].learning_rate,
        "entropy": per_token("entropy"),
        "clip_ratio/low_mean": per_token("low_clipped"),
        "clip_ratio/low_min": min(float(part.minima["low_clipped"]) for part in parts),
        "clip_ratio/high_mean": per_token("high_clipped"),
        "clip_ratio/high_max": max(float(part.maxima["high_clipped"]) for part in parts),
        "clip_ratio/region_mean": per_token("low_clipped") + per_token("high_clipped"),
        "sampling/logp_difference/mean": per_token("logp_difference"),
        "sampling/logp_difference/max": max(float(part.maxima["logp_difference"]) for part in parts),
        "sampling/importance_sampling_ratio/mean": per_token("importance_sampling_ratio"),
        "sampling/importance_sampling_ratio/min": min(float(p.minima["importance_sampling_ratio"]) for p in parts),
        "sampling/importance_sampling_ratio/max": max(float(p.maxima["importance_sampling_ratio"]) for p in parts),
    }
    if has_reference:
        metrics["kl"] = per_token("kl")
    return metrics
