"""report.html: a run on one page, with nothing to fetch."""

from __future__ import annotations

import html
import math
from pathlib import Path
from typing import Any

from grpo_mega.errors import UserError
from grpo_mega.telemetry.progress import PHASES, reward_ends
from grpo_mega.telemetry.trackers import read_jsonl

CURVES = (
    ("Reward", ("reward",)),
    ("Reward deviation in groups", ("reward_std",)),
    ("KL to the reference", ("kl",)),
    ("Entropy, nats", ("entropy",)),
    ("Completion length, tokens", ("completions/mean_length", "completions/min_length", "completions/max_length")),
    ("Gradient norm", ("grad_norm",)),
    ("Largest |log-prob difference| engine–policy", ("sampling/logp_difference/max",)),
    ("Tokens per second", ("perf/tokens_per_s",)),
)
COLOURS = ("#2563eb", "#dc2626", "#16a34a", "#9333ea", "#ea580c", "#0891b2", "#65a30d", "#be185d")
WIDTH, HEIGHT, MARGIN = 460, 220, 46

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#111}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(460px,1fr));gap:1em}
svg{background:#fafafa;border:1px solid #ddd;width:100%;height:auto}
table{border-collapse:collapse;width:100%}
td,th{border:1px solid #ddd;padding:.3em .5em;text-align:left;vertical-align:top}
pre{white-space:pre-wrap;margin:0;font-size:13px}h2{margin-top:2em}
"""


def write_report(run_dir: Path) -> Path:
    """Build <run>/report.html from metrics.jsonl and completions.jsonl.

    Raises:
        UserError: the directory has no metrics.
    """
    rows = read_jsonl(run_dir / "metrics.jsonl")
    if not rows:
        raise UserError(f"{run_dir} has no metrics.jsonl with steps: is it a run's directory?")
    first, last = reward_ends(rows)
    body = [
        f"<h1>{html.escape(run_dir.name)}</h1>",
        f"<p>{rows[-1]['step']} steps. Mean reward of the first five {first:.3f}, of the last five {last:.3f}.</p>",
        '<div class="grid">',
        *(_curve(title, [(key, _series(rows, key)) for key in keys]) for title, keys in _curves(rows)),
        "</div><h2>Sample completions</h2>",
        _completions(read_jsonl(run_dir / "completions.jsonl")),
    ]
    config = run_dir / "config.yaml"
    if config.is_file():
        text = html.escape(config.read_text(encoding="utf-8"))
        body.append(f"<h2>Configuration</h2><details><summary>resolved</summary><pre>{text}</pre></details>")
    path = run_dir / "report.html"
    title = html.escape(run_dir.name)
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<body>{''.join(body)}</body></html>\n",
        encoding="utf-8",
    )
    return path


def _curves(rows: list[dict[str, Any]]) -> list[tuple[str, tuple[str, ...]]]:
    phases = tuple(f"timing_s/{phase}" for phase in PHASES)
    functions = tuple(k for k in rows[-1] if k.startswith("rewards/") and k.endswith("/mean"))
    curves = [CURVES[0], ("Reward by function", functions), *CURVES[1:], ("Seconds by phase", phases)]
    return [(title, keys) for title, keys in curves if any(key in row for row in rows for key in keys)]


def _series(rows: list[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    return [
        (row["step"], row[key]) for row in rows if isinstance(row.get(key), int | float) and math.isfinite(row[key])
    ]


def _curve(title: str, series: list[tuple[str, list[tuple[float, float]]]]) -> str:
    """An SVG line chart with a legend where there are several lines."""
    series = [(name, points) for name, points in series if points]
    xs = [x for _, points in series for x, _ in points]
    ys = [y for _, points in series for _, y in points]
    low, high = min([0.0, *ys]), max(ys)
    low, high = (low, high) if high > low else (low - 1.0, high + 1.0)
    left, right = min(xs), max(max(xs), min(xs) + 1)

    def place(x: float, y: float) -> str:
        return (
            f"{MARGIN + (x - left) / (right - left) * (WIDTH - MARGIN - 10):.1f},"
            f"{HEIGHT - 24 - (y - low) / (high - low) * (HEIGHT - 60):.1f}"
        )

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}"><text x="8" y="18" font-weight="bold">{html.escape(title)}</text>']
    for value in (low, (low + high) / 2, high):
        x, y = place(left, value).split(",")
        parts.append(f'<line x1="{x}" y1="{y}" x2="{WIDTH - 10}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="4" y="{float(y) + 4}" font-size="11">{value:.3g}</text>')
    for number, (name, points) in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(place(x, y) for x, y in points)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"/>')
        if len(series) > 1:
            label = html.escape(name.rsplit("/", 1)[-1] if not name.startswith("rewards/") else name.split("/")[1])
            left_px, top_px = MARGIN + 100 * (number % 4), 32 + 12 * (number // 4)
            parts.append(f'<text x="{left_px}" y="{top_px}" font-size="11" fill="{colour}">{label}</text>')
    parts.append(f'<text x="{MARGIN}" y="{HEIGHT - 6}" font-size="11">step {left:g}</text>')
    parts.append(f'<text x="{WIDTH - 60}" y="{HEIGHT - 6}" font-size="11">step {right:g}</text></svg>')
    return "".join(parts)


def _completions(rows: list[dict[str, Any]]) -> str:
    """The samples of the first and the last steps."""
    steps = sorted({row["step"] for row in rows})
    shown = [row for row in rows if row["step"] in {*steps[:2], *steps[-3:]}]
    cells = []
    for row in shown:
        rewards = ", ".join(f"{name} {value}" for name, value in row["rewards"].items())
        cells.append(
            f"<tr><td>{row['step']}</td><td><pre>{html.escape(_text(row['prompt']))}</pre></td>"
            f"<td><pre>{html.escape(_text(row['completion']))}</pre></td><td>{html.escape(rewards)}</td>"
            f"<td>{row['advantage']:.3f}</td></tr>"
        )
    head = "<tr><th>step</th><th>prompt</th><th>completion</th><th>rewards</th><th>advantage</th></tr>"
    return f"<table>{head}{''.join(cells)}</table>"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "\n".join(f"{message['role']}: {message['content']}" for message in value)


def write_reward_png(run_dir: Path, path: Path) -> None:
    """The reward curve as a PNG (needs matplotlib)."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise UserError("--png needs matplotlib: pip install matplotlib") from None
    rows = read_jsonl(run_dir / "metrics.jsonl")
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    axes.plot([row["step"] for row in rows], [row["reward"] for row in rows], marker=".")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    axes.set_ylabel("mean reward")
    axes.set_title(run_dir.name)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120, bbox_inches="tight")
