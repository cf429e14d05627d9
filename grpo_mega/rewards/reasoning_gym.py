"""Rewards from reasoning-gym's own verifiers."""

from __future__ import annotations

import re
from typing import Any


def verified(completions: list[Any], reasoning_gym: list[dict[str, Any]], **_: Any) -> list[float]:
    """Score of each answer by its task's verifier, from 0 to 1. The answer is the whole completion."""
    return [_verify(text_of(c), item) for c, item in zip(completions, reasoning_gym, strict=True)]


def verified_answer_tag(completions: list[Any], reasoning_gym: list[dict[str, Any]], **_: Any) -> list[float]:
    """As `verified`, for the text between the last `<answer>` and `</answer>`; 0 without the tags."""
    scores = []
    for completion, item in zip(completions, reasoning_gym, strict=True):
        answers = re.findall(r"<answer>(.*?)</answer>", text_of(completion), re.DOTALL)
        scores.append(_verify(answers[-1], item) if answers else 0.0)
    return scores


def verified_last_number(completions: list[Any], reasoning_gym: list[dict[str, Any]], **_: Any) -> list[float]:
    """As `verified`, for the last number in the completion; 0 without one."""
    scores = []
    for completion, item in zip(completions, reasoning_gym, strict=True):
        found = re.findall(r"-?\d+(?:\.\d+)?", text_of(completion))
        scores.append(_verify(found[-1], item) if found else 0.0)
    return scores


def text_of(completion: Any) -> str:
    """Text of a plain or conversational completion."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def _verify(answer: str, item: dict[str, Any]) -> float:
    from reasoning_gym import get_score_answer_fn

    return float(get_score_answer_fn(item["task"])(answer.strip(), item["entry"]))
