"""Qwen2 and Qwen2.5: Llama's layout with biases on Q, K and V."""

from __future__ import annotations

from checkpoint_conversion.families.base import Family
from checkpoint_conversion.families.dense import dense_rules, read_dense_config

QWEN2 = Family(
    "qwen2", ("Qwen2ForCausalLM",), lambda config: read_dense_config(config, "qwen2", qkv_bias=True), dense_rules
)
