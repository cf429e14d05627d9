"""What rank 0 prints: a line a step, a live bar on terminals, and the closing table."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from grpo_mega.telemetry.trackers import Metrics

PHASES = ("sync", "rollout", "reward", "old_logprob", "ref_logprob", "update", "eval", "save")
"""Keys `timing_s/<phase>` in the order of the step."""

REWARD_WINDOW = 5
"""First and last rewards are means over so many steps."""


class ProgressDisplay:
    """The bar and the lines. A bar only on a terminal: logs get the lines alone."""

    def __init__(self, total_steps: int, first_step: int, bar: bool) -> None:
        self.console = Console(soft_wrap=True)
        self._progress = Progress(
            TextColumn("step"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not (bar and self.console.is_terminal),
        )
        self._task = self._progress.add_task("train", total=total_steps, completed=first_step)
        self._total = total_steps
        self._progress.start()

    def step(self, step: int, metrics: Metrics) -> None:
        """One line for a finished step."""
        self._progress.console.print(step_line(step, self._total, metrics), highlight=False)
        self._progress.update(self._task, completed=step)

    def close(self) -> None:
        self._progress.stop()


def step_line(step: int, total: int, metrics: Metrics) -> str:
    """The numbers one watches."""
    parts = [
        f"step {step}/{total}",
        f"reward {metrics['reward']:.3f}",
        f"kl {metrics['kl']:.4f}" if "kl" in metrics else "",
        f"entropy {metrics['entropy']:.2f}",
        f"len {metrics['completions/mean_length']:.1f}",
        f"grad {metrics['grad_norm']:.2f}",
        f"|Δlogp| {metrics['sampling/logp_difference/max']:.1e}",
        f"{metrics['perf/tokens_per_s']:.0f} tok/s",
        f"{metrics['step_time']:.2f}s",
    ]
    return "  ".join(part for part in parts if part)


def reward_ends(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Mean reward of the first and of the last REWARD_WINDOW steps."""
    rewards = [row["reward"] for row in rows]
    first, last = rewards[:REWARD_WINDOW], rewards[-REWARD_WINDOW:]
    return sum(first) / len(first), sum(last) / len(last)


def closing_table(rows: list[dict[str, Any]], paths: dict[str, str]) -> Table:
    """First and last reward, speed, where the time went, and where the results are."""
    first, last = reward_ends(rows)
    table = Table(title="run", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    table.add_row("steps", str(rows[-1]["step"]))
    table.add_row(f"reward, first {REWARD_WINDOW} steps", f"{first:.3f}")
    table.add_row(f"reward, last {REWARD_WINDOW} steps", f"{last:.3f}")
    total = sum(row["step_time"] for row in rows)
    speed = sum(row["perf/tokens_per_s"] * row["step_time"] for row in rows) / total
    table.add_row("tokens/s", f"{speed:.0f}")
    table.add_row("worst |Δlogp| engine–policy", f"{max(row['sampling/logp_difference/max'] for row in rows):.1e}")
    for phase in PHASES:
        seconds = sum(row.get(f"timing_s/{phase}", 0.0) for row in rows)
        if seconds:
            table.add_row(f"time in {phase}", f"{seconds:.1f} s  ({100 * seconds / total:.0f} %)")
    for name, path in paths.items():
        table.add_row(name, path)
    return table
