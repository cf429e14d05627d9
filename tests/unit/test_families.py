"""config.json to architecture, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from checkpoint_conversion.families import family_of, read_architecture
from grpo_mega.errors import UserError
from grpo_mega.policy.layout import canonical_shapes
from grpo_mega.policy.model import rotary_frequencies
from tests.models import COMMON, FAMILIES
from tests.unit.test_layout import CONFIGS


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_has_exactly_transformers_tensors(family: str) -> None:
    config = AutoConfig.for_model(**{**COMMON, **FAMILIES[family]})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    stored = {**config.to_dict(), "architectures": [type(model).__name__]}
    shapes = canonical_shapes(family_of(stored).read_config(stored))
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes == expected


@pytest.mark.parametrize("family", ["llama", "llama3.1"])
def test_rotary_frequencies_are_transformers(family: str) -> None:
    config = AutoConfig.for_model(**{**COMMON, **FAMILIES[family]})
    model = AutoModelForCausalLM.from_config(config)
    stored = {**config.to_dict(), "architectures": [type(model).__name__]}
    ours = rotary_frequencies(family_of(stored).read_config(stored))
    torch.testing.assert_close(ours, model.model.rotary_emb.inv_freq, rtol=1e-6, atol=0)


def test_rope_is_read_from_both_generations_of_config_json() -> None:
    old = {**CONFIGS["llama"], "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
           "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}  # fmt: skip
    new = {**CONFIGS["llama"], "rope_parameters": {"rope_theta": 500000.0, **old["rope_scaling"]}}
    assert family_of(old).read_config(old) == family_of(new).read_config(new)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("llama", {"architectures": ["GPT2LMHeadModel"]}, "known: LlamaForCausalLM"),
        ("llama", {"hidden_size": None}, "no `hidden_size`"),
        ("llama", {"attention_bias": True}, "attention_bias"),
        ("llama", {"hidden_act": "gelu"}, "silu only"),
        ("llama", {"rope_scaling": {"type": "yarn", "factor": 4}}, "'yarn' is not supported"),
        ("mistral", {"sliding_window": 64}, "sliding_window=64 is shorter"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window"),
        ("qwen3", {"head_dim": None}, "no `head_dim`"),
    ],
)
def test_what_a_table_cannot_place_is_refused(name: str, change: dict, message: str) -> None:
    config = {**CONFIGS[name], **change}
    with pytest.raises(UserError, match=message):
        family_of(config).read_config(config)


def test_tensor_parallel_sizes() -> None:
    architecture = family_of(CONFIGS["llama"]).read_config(CONFIGS["llama"])
    for size in (1, 2, 4, 8):
        architecture.check_tensor_parallel(size)  # 2 KV heads: fewer than TP is fine
    for size, message in ((3, "8 attention heads"), (16, "8 attention heads")):
        with pytest.raises(UserError, match=message):
            architecture.check_tensor_parallel(size)


def test_a_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_architecture(tmp_path / "absent")
    with pytest.raises(UserError, match=r"no config\.json"):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["qwen3"]))
    assert read_architecture(tmp_path).qk_layernorm
