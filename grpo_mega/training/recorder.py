"""The run's directory: made once, written by rank 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo_mega.config import Config, dump_config
from grpo_mega.errors import UserError
from grpo_mega.runtime.agreement import on_rank_zero
from grpo_mega.telemetry.progress import ProgressDisplay, closing_table
from grpo_mega.telemetry.report import write_report
from grpo_mega.telemetry.trackers import JsonlWriter, Tracker, build_trackers, read_jsonl
from grpo_mega.training.rollouts import Metrics, Rollout, ScoredRollout


class Recorder:
    """Metrics, sample completions, progress and report. Does nothing on ranks other than 0, except in `__init__`."""

    def __init__(self, config: Config, rank: int, resume: bool) -> None:
        """Check the run directory. A collective.

        Raises:
            UserError: on every rank, when the directory holds a run and `resume` is false.
        """
        self._config, self._rank = config, rank
        on_rank_zero(lambda: self._check_directory(resume), rank)
        self._trackers: list[Tracker] = []

    def _check_directory(self, resume: bool) -> None:
        directory = self._config.run_dir
        if not resume and directory.exists() and any(directory.iterdir()):
            raise UserError(
                f"run directory {directory} is not empty: choose another `name`, remove it, or go on with --resume"
            )

    def start(self, first_step: int) -> None:
        """Open the files; rows of steps after `first_step` (a crashed run's) are dropped."""
        on_rank_zero(lambda: self._open(first_step), self._rank)

    def _open(self, first_step: int) -> None:
        directory = self._config.run_dir
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.yaml").write_text(dump_config(self._config), encoding="utf-8")
        self._trackers = build_trackers(self._config, first_step)
        self._completions = JsonlWriter(directory / "completions.jsonl", first_step)
        self._display = ProgressDisplay(self._config.train.steps, first_step, self._config.telemetry.progress_bar)

    def step(self, step: int, metrics: Metrics, rollout: Rollout, scored: ScoredRollout, tokenizer: Any) -> None:
        if self._rank != 0:
            return
        for tracker in self._trackers:
            tracker.log(step, metrics)
        self._write_completions(step, rollout, scored, tokenizer)
        self._display.step(step, metrics)

    def _write_completions(self, step: int, rollout: Rollout, scored: ScoredRollout, tokenizer: Any) -> None:
        count = min(self._config.telemetry.completions_per_step, len(rollout.prompts))
        if not count:
            return
        batch = rollout.as_reward_input(tokenizer)
        stride = len(rollout.prompts) // count  # spread over the prompts
        for row in range(0, stride * count, stride):
            self._completions.write(
                {
                    "step": step,
                    "prompt": batch.prompts[row],
                    "completion": batch.completions[row],
                    "rewards": scored.by_function(row),
                    "advantage": float(scored.advantages[row]),
                    "terminated": bool(rollout.terminated[row]),
                }
            )

    def finish(self, paths: dict[str, Path]) -> None:
        """Write the report and print the closing table."""
        if self._rank != 0:
            return
        for tracker in self._trackers:
            tracker.close()
        self._completions.close()
        self._display.close()
        paths = {**paths, "report": write_report(self._config.run_dir)}
        rows = read_jsonl(self._config.run_dir / "metrics.jsonl")
        self._display.console.print(closing_table(rows, {name: str(path) for name, path in paths.items()}))
