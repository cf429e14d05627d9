"""Mistral. A sliding window shorter than the context is refused: megatron-core's local attention has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoint_conversion.families.base import Architecture, Family
from checkpoint_conversion.families.dense import dense_rules, read_dense_config
from grpo_mega.errors import UserError


def _read(config: Mapping[str, Any]) -> Architecture:
    window = config.get("sliding_window")
    if window is not None and window < config.get("max_position_embeddings", 0):
        raise UserError(
            f"config.json: sliding_window={window} is shorter than max_position_embeddings="
            f"{config['max_position_embeddings']}; sliding-window attention is not supported. Where no sequence is "
            f"longer than {window}, set max_position_embeddings={window} in config.json"
        )
    return read_dense_config(config, "mistral")


MISTRAL = Family("mistral", ("MistralForCausalLM",), _read, dense_rules)
