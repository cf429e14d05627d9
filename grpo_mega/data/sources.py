"""Rows of a data set: procedural tasks or a JSON-lines file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpo_mega.config.schema import DataSource, JsonlData, ReasoningGymData
from grpo_mega.errors import UserError

Row = dict[str, Any]


def load_rows(source: DataSource, key: str) -> list[Row]:
    """All rows of a source; `key` is its place in the configuration, for messages.

    Raises:
        UserError: unknown task or options, missing or malformed file, no rows.
    """
    rows = _reasoning_gym_rows(source, key) if isinstance(source, ReasoningGymData) else _jsonl_rows(source, key)
    if not rows:
        raise UserError(f"{key}: the data set is empty")
    return rows


def _reasoning_gym_rows(source: ReasoningGymData, key: str) -> list[Row]:
    """Columns `question`, `answer`, `metadata`, and `reasoning_gym`: what the task's own verifier needs."""
    try:
        import reasoning_gym
    except ImportError:
        raise UserError(f"{key}: the tasks need reasoning-gym: pip install 'grpo-mega[tasks]'") from None
    try:
        dataset = reasoning_gym.create_dataset(source.task, size=source.size, seed=source.seed, **source.options)
    except (ValueError, TypeError, AssertionError) as error:
        raise UserError(f"{key}: reasoning-gym does not make {source.task!r} with {source.options}: {error}") from None
    return [
        {
            "question": entry["question"],
            "answer": entry["answer"],
            "metadata": entry["metadata"],
            "reasoning_gym": {"task": source.task, "entry": entry},
        }
        for entry in dataset
    ]


def _jsonl_rows(source: JsonlData, key: str) -> list[Row]:
    path = Path(source.path)
    if not path.is_file():
        raise UserError(f"{key}.path={path}: no such file")
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not valid JSON: {error}") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: a row must be an object, not {type(row).__name__}")
        rows.append(row)
    return rows
