"""Metrics files, the report and the closing table."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from grpo_mega.errors import UserError
from grpo_mega.telemetry.progress import closing_table, reward_ends
from grpo_mega.telemetry.report import write_report, write_reward_png
from grpo_mega.telemetry.timing import PhaseTimer
from grpo_mega.telemetry.trackers import JsonlWriter, read_jsonl


def make_run(directory: Path, steps: int = 12) -> Path:
    writer = JsonlWriter(directory / "metrics.jsonl", 0)
    for step in range(1, steps + 1):
        metrics = {
            "reward": step / 10,
            "rewards/closeness/mean": step / 10,
            "entropy": 2.0,
            "completions/mean_length": 5.0,
            "grad_norm": 1.0,
            "perf/tokens_per_s": 100.0,
            "sampling/logp_difference/max": 1e-6,
            "step_time": 2.0,
            "timing_s/rollout": 1.0,
            "timing_s/update": 0.5,
        }
        writer.log(step, metrics)
    writer.close()
    row = {"prompt": "<script>alert(1)</script>", "completion": [{"role": "assistant", "content": "a & b"}]}
    (directory / "completions.jsonl").write_text(
        json.dumps({"step": 1, **row, "rewards": {"closeness": None}, "advantage": 0.5}) + "\n"
    )
    return directory


class Checker(HTMLParser):
    """Collects tags, and what a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href")]


def test_the_report_is_one_self_contained_page(tmp_path: Path) -> None:
    text = write_report(make_run(tmp_path)).read_text()
    checker = Checker()
    checker.feed(text)
    assert checker.fetched == []
    assert "http" not in text
    assert "script" not in checker.tags  # what a model wrote is shown, never run
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "assistant: a &amp; b" in text
    for title in ("Reward", "Entropy, nats", "Completion length, tokens", "Seconds by phase"):
        assert f">{title}</text>" in text
    assert "KL to the reference" not in text  # this run has none
    reward = re.search(r'>Reward</text>.*?points="([^"]*)"', text)
    assert reward is not None
    heights = [float(point.split(",")[1]) for point in reward.group(1).split()]
    assert len(heights) == 12
    assert heights == sorted(heights, reverse=True)  # a rising reward rises on the page


def test_the_report_of_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is it a run's directory"):
        write_report(tmp_path)


def test_reward_png(tmp_path: Path) -> None:
    write_reward_png(make_run(tmp_path), tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_closing_table_adds_up(tmp_path: Path) -> None:
    rows = read_jsonl(make_run(tmp_path) / "metrics.jsonl")
    assert reward_ends(rows) == pytest.approx((0.3, 1.0))
    cells = {
        str(a): str(b) for a, b in zip(*(c.cells for c in closing_table(rows, {"report": "r"}).columns), strict=True)
    }
    assert cells["time in rollout"] == "12.0 s  (50 %)"
    assert cells["tokens/s"] == "100"
    assert cells["report"] == "r"


def test_a_resumed_run_drops_the_steps_it_repeats(tmp_path: Path) -> None:
    path = make_run(tmp_path) / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"step": 13, "rew')  # cut short by a crash
    writer = JsonlWriter(path, 5)
    writer.log(6, {"reward": 9.0})
    writer.close()
    assert [row["step"] for row in read_jsonl(path)] == [1, 2, 3, 4, 5, 6]
    assert read_jsonl(path)[-1]["reward"] == 9.0


def test_timer_adds_up_and_forgets() -> None:
    timer = PhaseTimer()
    for _ in range(2):
        with timer.phase("a"):
            pass
    assert timer.peek("a") > 0
    assert timer.peek("b") == 0
    assert set(timer.take()) == {"a"}
    assert timer.take() == {}
