"""The reward contract, and what a wrong function gets."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from grpo_mega.config.schema import RewardConfig
from grpo_mega.data.sources import load_rows
from grpo_mega.errors import UserError
from grpo_mega.rewards.functions import Completions, RewardFunction, TrainerState, load_reward_functions, score
from grpo_mega.rewards.reasoning_gym import verified, verified_answer_tag, verified_last_number

BATCH = Completions(
    prompts=["p", "p", "q"],
    completions=["aa", "b", "ccc"],
    completion_ids=[[1, 1], [2], [3, 3, 3]],
    columns={"answer": ["x", "x", "y"]},
)
STATE = TrainerState(global_step=3, max_steps=10)


def run(*functions: Any, **options: Any) -> list[list[float | None]]:
    return score([RewardFunction(f.__name__, f, 1.0, options) for f in functions], BATCH, STATE)


def test_arguments_are_trls() -> None:
    seen: dict[str, Any] = {}

    def probe(prompts, completions, completion_ids, trainer_state, answer, **kwargs):
        seen.update(locals())
        return [1, 2.5, None]

    assert run(probe, bonus=4) == [[1.0, 2.5, None]]
    assert seen["prompts"] == BATCH.prompts
    assert seen["completion_ids"] == BATCH.completion_ids
    assert seen["answer"] == ["x", "x", "y"]
    assert seen["trainer_state"].global_step == 3
    assert seen["kwargs"] == {"bonus": 4}


def test_async_functions_run_together() -> None:
    first_waits = asyncio.Event()

    async def first(completions, **_):
        await asyncio.wait_for(first_waits.wait(), 5)  # only `second` can end this wait
        return [1.0] * len(completions)

    async def second(completions, **_):
        first_waits.set()
        return [2.0] * len(completions)

    assert run(first, second) == [[1.0] * 3, [2.0] * 3]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1.0, 2.0], "returned 2 values for 3 completions"),
        ([1.0, "high", 0.0], "row 1 is 'high'"),
        ([1.0, 0.0, math.inf], "row 2 is inf"),
        (1.0, "returned float, not a list of 3 numbers"),
    ],
)
def test_wrong_results_are_named(result: Any, message: str) -> None:
    def wrong(**_):
        return result

    with pytest.raises(UserError) as caught:
        run(wrong)
    assert message in str(caught.value)
    assert "wrong" in str(caught.value)


def test_a_function_that_raises_names_its_row() -> None:
    def fragile(completions, **_):
        return [1 / (len(c) - 1) for c in completions]

    with pytest.raises(UserError, match=r"fragile raised ZeroDivisionError.*row 1: prompt 'p', completion 'b'"):
        run(fragile)


def test_nan_is_no_score() -> None:
    def unsure(**_):
        return [math.nan, 1.0, None]

    assert run(unsure) == [[None, 1.0, None]]


def test_import_by_module_and_by_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def closeness(completions, **kwargs):\n    return [0.5] * len(completions)\n")
    configs = [RewardConfig(function=f"{path}:closeness"), RewardConfig(function=f"{path}:closeness", weight=2)]
    configs.append(RewardConfig(function="grpo_mega.rewards.reasoning_gym:verified"))
    functions = load_reward_functions(configs)
    assert [f.name for f in functions] == ["closeness", "closeness_2", "verified"]
    assert score(functions[:1], BATCH, STATE) == [[0.5] * 3]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_colon", "is not `package.module:name`"),
        ("absent_module_x:f", "cannot be imported"),
        ("absent/file.py:f", "does not exist"),
        ("grpo_mega.rewards.reasoning_gym:absent", "has no function 'absent'"),
    ],
)
def test_functions_that_cannot_be_found(reference: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_reward_functions([RewardConfig(function=reference)])


def test_reasoning_gym_verifiers() -> None:
    from grpo_mega.config.schema import ReasoningGymData

    source = ReasoningGymData(task="chain_sum", options={"min_terms": 2, "max_terms": 2}, size=3)
    rows = load_rows(source, "data.train")
    items, answers = [row["reasoning_gym"] for row in rows], [row["answer"] for row in rows]
    assert verified(answers, items) == [1.0] * 3
    assert verified(["nonsense"] * 3, items) == [0.0] * 3
    assert verified_last_number([f"it is 0, no, {a}" for a in answers], items) == [1.0] * 3
    tagged = [[{"role": "assistant", "content": f"<answer>1</answer> <answer> {a} </answer>"}] for a in answers]
    assert verified_answer_tag(tagged, items) == [1.0] * 3
    assert verified_answer_tag(answers, items) == [0.0] * 3
