"""Llama 2, 3, 3.1 and later text models (and those that use its architecture, e.g. SmolLM2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoint_conversion.families.base import Architecture, Family
from checkpoint_conversion.families.dense import dense_rules, read_dense_config
from grpo_mega.errors import UserError


def _read(config: Mapping[str, Any]) -> Architecture:
    if config.get("attention_bias"):
        raise UserError("config.json: attention_bias=true is not in the llama table")
    return read_dense_config(config, "llama")


LLAMA = Family("llama", ("LlamaForCausalLM",), _read, dense_rules)
