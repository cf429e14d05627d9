"""Reward functions by name, called as TRL calls them."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import itertools
import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_mega.config.schema import RewardConfig
from grpo_mega.errors import UserError

Scores = list[float | None]


@dataclass(frozen=True)
class TrainerState:
    """What a reward function may ask about the run."""

    global_step: int
    max_steps: int


@dataclass(frozen=True)
class Completions:
    """A batch as reward functions see it: B rows, each prompt repeated for its group."""

    prompts: list[Any]
    completions: list[Any]
    """Strings; or `[{"role": "assistant", "content": …}]` where the prompt is conversational."""
    completion_ids: list[list[int]]
    columns: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(self.completions)

    def row(self, number: int) -> Completions:
        one = slice(number, number + 1)
        columns = {name: values[one] for name, values in self.columns.items()}
        return Completions(self.prompts[one], self.completions[one], self.completion_ids[one], columns)


@dataclass(frozen=True)
class RewardFunction:
    """A user's function with its name, weight and options."""

    name: str
    function: Callable[..., Any]
    weight: float
    options: dict[str, Any]

    def arguments(self, batch: Completions, state: TrainerState) -> dict[str, Any]:
        return {
            "prompts": batch.prompts,
            "completions": batch.completions,
            "completion_ids": batch.completion_ids,
            "trainer_state": state,
            **batch.columns,
            **self.options,
        }


def load_reward_functions(configs: Sequence[RewardConfig]) -> list[RewardFunction]:
    """Import every function. Names are made unique with a number. Raises `UserError` for what cannot be imported."""
    functions: list[RewardFunction] = []
    for config in configs:
        function = _import_function(config.function)
        base = getattr(function, "__name__", config.function)
        names = {f.name for f in functions}
        name = next(n for n in itertools.chain([base], (f"{base}_{i}" for i in itertools.count(2))) if n not in names)
        functions.append(RewardFunction(name, function, config.weight, config.options))
    return functions


def _import_function(reference: str) -> Callable[..., Any]:
    location, separator, name = reference.rpartition(":")
    if not separator:
        raise UserError(f"rewards.function={reference!r} is not `package.module:name` or `path/to/file.py:name`")
    try:
        if location.endswith(".py"):
            module = _load_file(Path(location), reference)
        else:
            module = importlib.import_module(location)
    except ImportError as error:
        raise UserError(f"rewards.function={reference!r} cannot be imported: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"rewards.function={reference!r}: {location} has no function {name!r}")
    return function


def _load_file(path: Path, reference: str) -> Any:
    if not path.is_file():
        raise UserError(f"rewards.function={reference!r}: {path} does not exist")
    spec = importlib.util.spec_from_file_location(f"grpo_mega_reward_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def score(functions: Sequence[RewardFunction], batch: Completions, state: TrainerState) -> list[Scores]:
    """One list of B scores a function; None where it gave none. Async functions run concurrently.

    Raises:
        UserError: a function raised, or returned something other than B numbers or None; the row is named.
    """
    outcomes: dict[int, Any] = {}
    coroutines = {}
    for index, reward in enumerate(functions):
        if inspect.iscoroutinefunction(reward.function):
            coroutines[index] = _call_async(reward, batch, state)
        else:
            outcomes[index] = _call(reward, batch, state)
    if coroutines:
        outcomes |= zip(coroutines, asyncio.run(_gather(list(coroutines.values()))), strict=True)
    return [_checked(reward, outcomes[index], len(batch)) for index, reward in enumerate(functions)]


async def _gather(coroutines: list[Any]) -> list[Any]:
    return await asyncio.gather(*coroutines)


def _call(reward: RewardFunction, batch: Completions, state: TrainerState) -> Any:
    try:
        return reward.function(**reward.arguments(batch, state))
    except Exception as error:
        raise UserError(_raised(reward, batch, state, error)) from error


async def _call_async(reward: RewardFunction, batch: Completions, state: TrainerState) -> Any:
    try:
        return await reward.function(**reward.arguments(batch, state))
    except Exception as error:
        raise UserError(f"reward function {reward.name} raised {type(error).__name__}: {error}") from error


def _raised(reward: RewardFunction, batch: Completions, state: TrainerState, error: Exception) -> str:
    """Name the row by calling again one row at a time (only after a failure)."""
    problem = f"reward function {reward.name} raised {type(error).__name__}: {error}"
    for number in range(len(batch)):
        try:
            reward.function(**reward.arguments(batch.row(number), state))
        except type(error):
            row = batch.row(number)
            return f"{problem}; at row {number}: prompt {row.prompts[0]!r}, completion {row.completions[0]!r}"
    return f"{problem} (on the whole batch; no single row raises)"


def _checked(reward: RewardFunction, values: Any, expected: int) -> Scores:
    where = f"reward function {reward.name}"
    if not isinstance(values, Sequence) and not hasattr(values, "tolist"):
        raise UserError(f"{where} returned {type(values).__name__}, not a list of {expected} numbers")
    values = values.tolist() if hasattr(values, "tolist") else list(values)
    if len(values) != expected:
        raise UserError(f"{where} returned {len(values)} values for {expected} completions")
    scores: Scores = []
    for number, value in enumerate(values):
        if value is not None and not isinstance(value, numbers.Real):
            raise UserError(f"{where}: row {number} is {value!r}, neither a number nor None")
        number_or_none = None if value is None or math.isnan(float(value)) else float(value)
        if number_or_none is not None and math.isinf(number_or_none):
            raise UserError(f"{where}: row {number} is {value!r}, not a finite number")
        scores.append(number_or_none)
    return scores
