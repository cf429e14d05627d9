"""Whole runs with the policy's own sampler: what they write, resume, and the same run on other layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from grpo_mega.errors import UserError
from grpo_mega.telemetry.trackers import read_jsonl
from grpo_mega.training.checkpoint import complete_checkpoints
from tests.runs import largest_difference, make_config, make_model, mathematics, train


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def test_a_run_writes_what_it_promises(model: Path, ranks: Any, tmp_path: Path) -> None:
    config = make_config(
        model,
        tmp_path,
        parallel={"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
        telemetry={"tensorboard": True, "wandb": {"mode": "offline"}, "completions_per_step": 2, "progress_bar": False},
    )
    result = ranks.run(4, train, config=config)[0]
    run = tmp_path / "run"
    rows = result["metrics"]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for name in (
        "reward", "reward_std", "frac_reward_zero_std", "rewards/number_closeness/mean", "rewards/verified/std",
        "kl", "entropy", "loss", "loss/denominator", "grad_norm", "lr", "num_tokens", "step_time",
        "completions/mean_length", "completions/min_length", "completions/max_length", "completions/clipped_ratio",
        "completions/mean_terminated_length", "clip_ratio/low_mean", "clip_ratio/low_min", "clip_ratio/high_mean",
        "clip_ratio/high_max", "clip_ratio/region_mean", "sampling/logp_difference/mean",
        "sampling/logp_difference/max", "sampling/importance_sampling_ratio/min",
        "sampling/importance_sampling_ratio/mean", "sampling/importance_sampling_ratio/max", "timing_s/sync",
        "timing_s/rollout", "timing_s/reward", "timing_s/ref_logprob", "timing_s/update", "perf/tokens_per_s",
        "perf/tokens_per_s_per_gpu", "sync/bytes", "sync/seconds", "sync/gb_per_s", "sync/weight_version",
    ):  # fmt: skip
        assert name in rows[0], name
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-6)  # the reference is the start
    assert rows[-1]["kl"] > 1e-5
    assert [row["lr"] for row in rows[:2]] == [0.0, 1e-3]  # warm-up of one step
    assert [row["sync/weight_version"] for row in rows] == [1, 2, 3, 4]
    assert max(row["sampling/logp_difference/max"] for row in rows) < 1e-5  # the engine is the policy
    samples = read_jsonl(run / "completions.jsonl")
    assert len(samples) == 8
    assert set(samples[0]["rewards"]) == {"number_closeness", "verified"}
    assert yaml.safe_load((run / "config.yaml").read_text())["train"]["micro_batch_size"] == 4
    assert "<svg" in (run / "report.html").read_text()
    assert list((run / "tensorboard").glob("events*"))
    assert list((run / "wandb").glob("offline-run*"))
    assert [path.name for path in complete_checkpoints(run / "checkpoints")] == ["step_000004"]
    exported = AutoModelForCausalLM.from_pretrained(run / "hf", dtype=torch.float32).state_dict()
    for name, tensor in result["weights"].items():
        assert torch.equal(exported[name], tensor)


@pytest.mark.parametrize(
    ("tp", "pp", "dp", "algorithm"),
    [(1, 1, 1, {}), (2, 2, 1, {}), (1, 1, 2, {"num_iterations": 2})],
)
def test_resume_is_exact(
    tp: int, pp: int, dp: int, algorithm: dict[str, Any], model: Path, ranks: Any, tmp_path: Path
) -> None:
    """A run that stops after two steps and goes on equals, bit for bit, the run that never stopped."""
    changes = {
        "parallel": {"tensor_parallel_size": tp, "pipeline_parallel_size": pp},
        "algorithm": {"beta": 0.05, **algorithm},
        "checkpoint": {"every_steps": 2},
    }
    world = tp * pp * dp
    whole = ranks.run(world, train, config=make_config(model, tmp_path / "a", **changes), data=dp)[0]
    config = make_config(model, tmp_path / "b", **changes)
    ranks.run(world, train, config=config, data=dp, steps=2)
    resumed = ranks.run(world, train, config=config, data=dp, resume=True)[0]
    assert mathematics(resumed["metrics"]) == mathematics(whole["metrics"])
    assert largest_difference(resumed["weights"], whole["weights"]) == 0.0


def test_resume_on_another_layout(model: Path, ranks: Any, tmp_path: Path) -> None:
    changes = {"checkpoint": {"every_steps": 2}}
    whole = ranks.run(1, train, config=make_config(model, tmp_path / "a", **changes))[0]
    ranks.run(1, train, config=make_config(model, tmp_path / "b", **changes), steps=2)
    other = make_config(
        model, tmp_path / "b", parallel={"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, **changes
    )
    resumed = ranks.run(4, train, config=other, resume=True)[0]
    assert [row["step"] for row in resumed["metrics"]] == [1, 2, 3, 4]
    for ours, expected in zip(mathematics(resumed["metrics"]), mathematics(whole["metrics"]), strict=True):
        assert ours["reward"] == expected["reward"]
        assert ours["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    assert largest_difference(resumed["weights"], whole["weights"]) < 1e-4


def test_every_layout_trains_the_same(model: Path, ranks: Any, tmp_path: Path) -> None:
    """Four steps of sampling, reward, update: same samples, same rewards, same losses, on five layouts."""
    expected = ranks.run(1, train, config=make_config(model, tmp_path / "one"))[0]
    for tp, pp, dp in [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2)]:
        parallel = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp}
        config = make_config(model, tmp_path / f"{tp}{pp}{dp}", parallel=parallel)
        actual = ranks.run(tp * pp * dp, train, config=config, data=dp)[0]
        for ours, reference in zip(mathematics(actual["metrics"]), mathematics(expected["metrics"]), strict=True):
            for name in ("reward", "reward_std", "completions/mean_length", "num_tokens", "loss/denominator"):
                assert ours[name] == reference[name], f"tp{tp} pp{pp} dp{dp}: {name}"
            for name in ("loss", "kl", "entropy", "grad_norm"):
                close = pytest.approx(reference[name], rel=1e-3, abs=1e-5)
                assert ours[name] == close, f"tp{tp} pp{pp} dp{dp}: {name}"


def test_several_updates_of_one_rollout(model: Path, ranks: Any, tmp_path: Path) -> None:
    """Two mini-batches, two iterations: four optimizer steps a rollout, old log-probs from before the first."""
    config = make_config(
        model, tmp_path, train={"steps": 2, "global_batch_size": 8}, algorithm={"num_iterations": 2, "beta": 0.0},
        optimizer={"learning_rate": 0.02},
    )  # fmt: skip
    rows = ranks.run(2, train, config=config, data=2)[0]["metrics"]
    assert [row["sync/weight_version"] for row in rows] == [4, 8]
    assert "timing_s/old_logprob" in rows[0]
    assert "timing_s/ref_logprob" not in rows[0]
    assert "kl" not in rows[0]
    assert rows[-1]["clip_ratio/region_mean"] > 0  # later iterations are off-policy
    assert rows[-1]["sampling/logp_difference/max"] < 1e-5  # measured against the policy that sampled


def failing_run(config: Any) -> str:
    try:
        train(config)
    except UserError as error:
        return str(error)
    return "no error"


def test_bad_inputs_are_every_ranks_error(model: Path, ranks: Any, tmp_path: Path) -> None:
    reward = tmp_path / "bad.py"
    reward.write_text("def bad(completions, **kwargs):\n    return [1.0] * (len(completions) - 1)\n")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    cases = {
        "returned 15 values for 16 completions": {"rewards": [{"function": f"{reward}:bad"}]},
        "data.train: the data set is empty": {"data": {"train": {"kind": "jsonl", "path": str(empty)}}},
        "tokens, over data.max_prompt_length=1": {"data": {"max_prompt_length": 1}},
        "no chat template": {"data": {"conversational": True}},
    }  # fmt: skip
    for number, (message, changes) in enumerate(cases.items()):
        config = make_config(model, tmp_path / str(number), parallel={"tensor_parallel_size": 2}, **changes)
        for text in ranks.run(2, failing_run, config=config):
            assert message in text


def test_a_used_run_directory_is_not_overwritten(model: Path, ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    assert "is not empty" in ranks.run(1, failing_run, config=make_config(model, tmp_path))[0]
    assert read_jsonl(tmp_path / "run" / "metrics.jsonl") == [{"step": 1}]


def run_with_stale_engine(config: Any) -> str:
    """A planted fault: the engine reports log-probs that are off by 1e-3."""
    from grpo_mega.rollout.policy_engine import PolicyEngine

    original = PolicyEngine.generate

    def stale(self: Any, prompts: Any, seeds: Any) -> Any:
        generation = original(self, prompts, seeds)
        generation.logprobs[3][0] += 1e-3
        return generation

    PolicyEngine.generate = stale  # type: ignore[method-assign]
    try:
        return failing_run(config)
    finally:
        PolicyEngine.generate = original  # type: ignore[method-assign]


def test_the_engine_mismatch_limit_stops_a_run(model: Path, ranks: Any, tmp_path: Path) -> None:
    config = make_config(model, tmp_path / "stale", rollout={"logp_difference_limit": 1e-4})
    text = ranks.run(1, run_with_stale_engine, config=config)[0]
    assert "over rollout.logp_difference_limit=0.0001" in text
    fine = make_config(model, tmp_path / "fine", rollout={"logp_difference_limit": 1e-4})
    assert ranks.run(1, failing_run, config=fine)[0] == "no error"
