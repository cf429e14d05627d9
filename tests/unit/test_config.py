"""Configuration: merging, overrides, messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from grpo_mega.config import Config, dump_config, load_config
from grpo_mega.errors import UserError

QUICKSTART = Path("configs/quickstart.yaml")


def test_later_files_and_overrides_win(tmp_path: Path) -> None:
    second = tmp_path / "more.yaml"
    second.write_text("train: {steps: 7}\noptimizer: {learning_rate: 1e-3}\n")
    config = load_config([QUICKSTART, second], ["train.micro_batch_size=4", "telemetry.wandb={project: p}"])
    assert config.train.steps == 7
    assert config.optimizer.learning_rate == 0.001  # YAML 1.1 alone would read the text "1e-3"
    assert config.train.micro_batch_size == 4
    assert config.telemetry.wandb is not None
    assert config.telemetry.wandb.project == "p"
    assert config.parallel.tensor_parallel_size == 2  # untouched by the merge


def test_the_dump_reads_back_as_the_same_configuration(tmp_path: Path) -> None:
    config = load_config([QUICKSTART])
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    assert load_config([path]) == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.learning_rat=1", "optimizer.learning_rat: unknown key; did you mean `learning_rate`?"),
        ("paralel.tensor_parallel_size=1", "paralel: unknown key; did you mean `parallel`?"),
        ("data.train.tsk=x", "tsk: unknown key; did you mean `task`?"),
        ("rewards=[{function: a, wight: 2}]", "wight: unknown key; did you mean `weight`?"),
        ("rollout.vllm.tensor_paralel_size=2", "did you mean `tensor_parallel_size`?"),
        ("train.steps=0", "train.steps: Input should be greater than 0 (given: 0)"),
        ("algorithm.loss_type=ppo", "algorithm.loss_type: Input should be 'grpo', 'bnpo', 'dr_grpo' or 'dapo'"),
        ("train.steps", "not of the form section.key=value"),
        ("rewards=[]", "rewards"),
    ],
)
def test_wrong_keys_and_values(override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config([QUICKSTART], [override])
    assert message in str(caught.value)


def test_missing_file_and_missing_sections(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_config([tmp_path / "absent.yaml"])
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    with pytest.raises(UserError) as caught:
        load_config([empty])
    assert "model: required and not given" in str(caught.value)


def test_every_field_has_a_line_of_documentation() -> None:
    def check(section: type, path: str) -> None:
        for name, field in section.model_fields.items():  # type: ignore[attr-defined]
            assert field.description, f"{path}{name} has no documentation"
            if isinstance(field.annotation, type) and hasattr(field.annotation, "model_fields"):
                check(field.annotation, f"{path}{name}.")

    check(Config, "")


def test_configuration_and_cli_import_without_torch() -> None:
    code = "import sys, grpo_mega.cli, grpo_mega.config, grpo_mega.training.checks; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


@pytest.mark.parametrize("path", sorted(Path("configs").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_configurations_are_valid(path: Path) -> None:
    assert yaml.safe_load(dump_config(load_config([path])))["rewards"]
