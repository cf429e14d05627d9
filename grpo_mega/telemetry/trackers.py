"""Where metrics go: JSON lines always; TensorBoard and Weights & Biases by configuration. Rank 0 only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from grpo_mega.config.schema import Config
from grpo_mega.errors import UserError

Metrics = dict[str, float]


class Tracker(Protocol):
    def log(self, step: int, metrics: Metrics) -> None: ...

    def close(self) -> None: ...


class JsonlWriter:
    """Appends one JSON object a line, flushed at once; lines of steps after a resume point are dropped first."""

    def __init__(self, path: Path, resume_step: int) -> None:
        kept = [row for row in read_jsonl(path) if row["step"] <= resume_step] if resume_step else []
        self._file = path.open("w", encoding="utf-8")
        for row in kept:
            self.write(row)

    def write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._file.flush()

    def log(self, step: int, metrics: Metrics) -> None:
        self.write({"step": step, **metrics})

    def close(self) -> None:
        self._file.close()


class TensorBoardTracker:
    def __init__(self, directory: Path, resume_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("telemetry.tensorboard=true needs TensorBoard: pip install 'grpo-mega[trackers]'") from None
        self._writer = SummaryWriter(str(directory), purge_step=resume_step + 1 if resume_step else None)

    def log(self, step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    def __init__(self, config: Config) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError("telemetry.wandb needs Weights & Biases: pip install 'grpo-mega[trackers]'") from None
        assert config.telemetry.wandb is not None
        self._run = wandb.init(
            project=config.telemetry.wandb.project,
            name=config.name,
            dir=str(config.run_dir),
            mode=config.telemetry.wandb.mode,
            config=config.model_dump(mode="json"),
        )

    def log(self, step: int, metrics: Metrics) -> None:
        self._run.log(metrics, step=step)

    def close(self) -> None:
        self._run.finish()


def build_trackers(config: Config, resume_step: int) -> list[Tracker]:
    """The trackers that the configuration asks for, metrics.jsonl first."""
    trackers: list[Tracker] = [JsonlWriter(config.run_dir / "metrics.jsonl", resume_step)]
    if config.telemetry.tensorboard:
        trackers.append(TensorBoardTracker(config.run_dir / "tensorboard", resume_step))
    if config.telemetry.wandb is not None:
        trackers.append(WandbTracker(config))
    return trackers


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file; a last line cut short by a crash is left out."""
    rows: list[dict[str, Any]] = []
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for number, line in enumerate(lines):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            if number < len(lines) - 1:
                raise
    return rows
