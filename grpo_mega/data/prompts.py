"""From rows to prompts, and the order in which they are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grpo_mega.config.schema import DataConfig
from grpo_mega.data.sources import Row
from grpo_mega.errors import UserError

Message = dict[str, str]


@dataclass(frozen=True)
class Prompt:
    """One prompt, as reward functions see it and as tokens."""

    text: str | list[Message]
    """A string, or messages when conversational."""
    tokens: list[int]
    columns: Row
    """Every other column of the row."""


def load_tokenizer(directory: Path) -> Any:
    """The checkpoint's own tokenizer. Raises `UserError` when it has none, or no end-of-sequence token."""
    from transformers import AutoTokenizer

    if not any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")):
        raise UserError(f"{directory} has no tokenizer (tokenizer.json or tokenizer.model)")
    tokenizer = AutoTokenizer.from_pretrained(directory)
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer of {directory} has no end-of-sequence token: completions could not end")
    return tokenizer


def build_prompts(rows: list[Row], config: DataConfig, tokenizer: Any) -> list[Prompt]:
    """Format and tokenize every row.

    Raises:
        UserError: a row lacks a column the template names, conversational prompts without a chat template, or a
            prompt over max_prompt_length (unless long_prompts is keep_last); the message names the row.
    """
    return [_build_prompt(number, row, config, tokenizer) for number, row in enumerate(rows)]


def _build_prompt(number: int, row: Row, config: DataConfig, tokenizer: Any) -> Prompt:
    text = _prompt_text(number, row, config)
    if isinstance(text, str):
        tokens = tokenizer(text).input_ids
    else:
        if not tokenizer.chat_template:
            raise UserError(
                f"row {number} has a conversational prompt, and the tokenizer has no chat template: set "
                "data.conversational=false and give data.prompt_template, or add chat_template.jinja to the checkpoint"
            )
        tokens = tokenizer.apply_chat_template(text, add_generation_prompt=True, return_dict=False)
    if not tokens:
        raise UserError(f"row {number}: the prompt has no tokens")
    if len(tokens) > config.max_prompt_length:
        if config.long_prompts == "error":
            raise UserError(
                f"row {number}: the prompt has {len(tokens)} tokens, over data.max_prompt_length="
                f"{config.max_prompt_length}; raise it, or set data.long_prompts=keep_last"
            )
        tokens = tokens[-config.max_prompt_length :]
    columns = {name: value for name, value in row.items() if name not in ("prompt", "completion", "completion_ids")}
    return Prompt(text, list(tokens), columns)


def _prompt_text(number: int, row: Row, config: DataConfig) -> str | list[Message]:
    if config.prompt_template is not None:
        try:
            text: Any = config.prompt_template.format(**row)
        except (KeyError, IndexError, AttributeError, ValueError) as error:
            raise UserError(
                f"data.prompt_template does not fit row {number}, columns {sorted(row)}: {error!r}"
            ) from None
    else:
        text = row.get("prompt", row.get("question"))
        if text is None:
            raise UserError(f"row {number} has neither a `prompt` nor a `question` column (columns: {sorted(row)})")
    if config.conversational and isinstance(text, str):
        system = [{"role": "system", "content": config.system_prompt}] if config.system_prompt else []
        return [*system, {"role": "user", "content": text}]
    return text


class PromptOrder:
    """Which prompts step s draws: a pure function of (seed, s), so that a resumed run continues exactly."""

    def __init__(self, num_prompts: int, prompts_per_step: int, seed: int, shuffle: bool) -> None:
        self._num_prompts, self._per_step, self._seed, self._shuffle = num_prompts, prompts_per_step, seed, shuffle

    def indices(self, step: int) -> list[int]:
        """Row numbers of step `step`, counted from 0. An epoch's remainder is followed by the next epoch's start."""
        return list(self._draw(step))

    def _draw(self, step: int) -> Iterator[int]:
        for position in range(step * self._per_step, (step + 1) * self._per_step):
            epoch, place = divmod(position, self._num_prompts)
            yield int(self._permutation(epoch)[place])

    def _permutation(self, epoch: int) -> np.ndarray:
        if not self._shuffle:
            return np.arange(self._num_prompts)
        return np.random.default_rng((self._seed, epoch)).permutation(self._num_prompts)
