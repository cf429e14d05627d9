"""Rows, prompts and their order."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from checkpoint_conversion.init_model import write_random_checkpoint
from grpo_mega.config.schema import DataConfig, JsonlData, ReasoningGymData
from grpo_mega.data.prompts import PromptOrder, build_prompts, load_tokenizer
from grpo_mega.data.sources import load_rows
from grpo_mega.errors import UserError

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("model") / "tiny"
    write_random_checkpoint(directory, "llama", 0, **SIZES)
    return load_tokenizer(directory)


def config(**changes: Any) -> DataConfig:
    return DataConfig(train=JsonlData(path=Path("x")), **changes)


def test_each_epoch_draws_every_prompt_once() -> None:
    order = PromptOrder(10, 4, seed=1, shuffle=True)
    drawn = [index for step in range(5) for index in order.indices(step)]  # two epochs
    assert Counter(drawn) == Counter(dict.fromkeys(range(10), 2))
    assert drawn[:10] != drawn[10:]
    assert order.indices(3) == PromptOrder(10, 4, seed=1, shuffle=True).indices(3)  # no state: a resume is exact
    assert order.indices(0) != PromptOrder(10, 4, seed=2, shuffle=True).indices(0)
    assert PromptOrder(10, 4, seed=1, shuffle=False).indices(2) == [8, 9, 0, 1]


def test_templates_and_columns(tokenizer: Any) -> None:
    rows = [{"question": "1+1", "answer": "2", "metadata": {"n": 7}}]
    prompt = build_prompts(rows, config(prompt_template="{question}={metadata[n]}"), tokenizer)[0]
    assert prompt.text == "1+1=7"
    assert tokenizer.decode(prompt.tokens) == "1+1=7"
    assert prompt.columns == rows[0]
    with pytest.raises(UserError, match="row 0"):
        build_prompts(rows, config(prompt_template="{nothing}"), tokenizer)
    with pytest.raises(UserError, match="neither a `prompt` nor a `question`"):
        build_prompts([{"text": "a"}], config(), tokenizer)


def test_long_prompts(tokenizer: Any) -> None:
    rows = [{"prompt": "abc"}, {"prompt": "abcdef"}]
    with pytest.raises(UserError, match=r"row 1: the prompt has 6 tokens, over data\.max_prompt_length=4"):
        build_prompts(rows, config(max_prompt_length=4), tokenizer)
    kept = build_prompts(rows, config(max_prompt_length=4, long_prompts="keep_last"), tokenizer)[1]
    assert tokenizer.decode(kept.tokens) == "cdef"


def test_conversations_need_a_chat_template(tokenizer: Any) -> None:
    rows = [{"question": "hi"}]
    with pytest.raises(UserError, match="no chat template"):
        build_prompts(rows, config(conversational=True), tokenizer)
    with pytest.raises(UserError, match="no chat template"):
        build_prompts([{"prompt": [{"role": "user", "content": "hi"}]}], config(), tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }};{% endfor %}{% if add_generation_prompt %}!{% endif %}"
    )
    prompt = build_prompts(rows, config(conversational=True, system_prompt="be good"), tokenizer)[0]
    tokenizer.chat_template = None
    assert prompt.text == [{"role": "system", "content": "be good"}, {"role": "user", "content": "hi"}]
    assert tokenizer.decode(prompt.tokens) == "be good;hi;!"


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "a"}) + "\n\n" + json.dumps({"prompt": "b"}) + "\n")
    assert [row["prompt"] for row in load_rows(JsonlData(path=path), "data.train")] == ["a", "b"]
    for text, message in (
        ("", "data set is empty"),
        ('{"a": 1}\n[1]\n', ":2: a row must be an object"),
        ("{\n", ":1: not"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            load_rows(JsonlData(path=path), "data.train")
    with pytest.raises(UserError, match="no such file"):
        load_rows(JsonlData(path=tmp_path / "absent"), "data.train")


def test_unknown_tasks() -> None:
    with pytest.raises(UserError, match="'no_such_task'"):
        load_rows(ReasoningGymData(task="no_such_task"), "data.train")
    with pytest.raises(UserError, match=r"data\.train: reasoning-gym does not make"):
        load_rows(ReasoningGymData(task="chain_sum", options={"colour": 1}), "data.train")


def test_a_checkpoint_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no tokenizer"):
        load_tokenizer(tmp_path)
