"""A rank that dies, a user's function that fails: under torchrun, as a user sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.launching import run, torchrun, write_config
from tests.runs import make_config, make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def config_with_reward(model: Path, directory: Path, body: str) -> str:
    reward = directory / "reward.py"
    reward.write_text(f"import os, signal\n\ndef reward(completions, trainer_state, **kwargs):\n{body}")
    config = make_config(
        model,
        directory,
        parallel={"tensor_parallel_size": 2},
        rewards=[{"function": f"{reward}:reward"}],
        train={"steps": 1000},
        checkpoint={"every_steps": 1},
    )
    return write_config(config, directory / "config.yaml")


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_run(model: Path, tmp_path: Path) -> None:
    """Rank 0 gets SIGKILL in step 2. The others must not wait for it, and it is named as the cause."""
    body = (
        "    if trainer_state.global_step == 1:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return [0.0] * len(completions)\n"
    )
    outcome = run(torchrun(2, "train", "--config", config_with_reward(model, tmp_path, body)), timeout_s=120)
    assert outcome.code != 0
    assert "step 1/1000" in outcome.output
    assert "step 2/1000" not in outcome.output
    cause = outcome.output.split("Root Cause")[1]
    assert "rank      : 0" in cause
    assert "SIGKILL" in cause
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step_000001"]  # and nothing half-written
    for line in outcome.output.splitlines():
        assert "Traceback" not in line or "torch/distributed/run" in outcome.output  # only the launcher's own


@pytest.mark.slow
def test_a_reward_that_raises_ends_the_run_with_its_row(model: Path, tmp_path: Path) -> None:
    body = "    return [1 / (trainer_state.global_step == 0) for _ in completions]\n"
    outcome = run(torchrun(2, "train", "--config", config_with_reward(model, tmp_path, body)), timeout_s=120)
    assert outcome.code != 0
    assert outcome.output.count("error: reward function reward raised ZeroDivisionError") == 1
    assert outcome.output.index("error: reward") < outcome.output.index("ChildFailedError")
