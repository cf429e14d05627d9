"""Qwen3 dense: RMS norms on Q and K, and a head size that is not hidden size / heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoint_conversion.families.base import Architecture, Family, require
from checkpoint_conversion.families.dense import dense_rules, read_dense_config
from grpo_mega.errors import UserError


def _read(config: Mapping[str, Any]) -> Architecture:
    if config.get("attention_bias"):
        raise UserError("config.json: attention_bias=true is not in the qwen3 table")
    require(config, "head_dim")
    return read_dense_config(config, "qwen3", qk_layernorm=True)


QWEN3 = Family("qwen3", ("Qwen3ForCausalLM",), _read, dense_rules)
