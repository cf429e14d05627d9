"""One table a model family; the only place that knows a family's tensor names. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkpoint_conversion.families.base import Architecture, Family, Segment, TensorRule
from checkpoint_conversion.families.llama import LLAMA
from checkpoint_conversion.families.mistral import MISTRAL
from checkpoint_conversion.families.qwen2 import QWEN2
from checkpoint_conversion.families.qwen3 import QWEN3
from grpo_mega.errors import UserError

FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3)

__all__ = ["FAMILIES", "Architecture", "Family", "Segment", "TensorRule", "family_of", "read_architecture"]


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a config.json. Raises `UserError` that lists the known architectures."""
    names = config.get("architectures") or []
    for family in FAMILIES:
        if set(names) & set(family.architectures):
            return family
    known = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise UserError(f"config.json: architectures={names} is not known; known: {known}")


def read_architecture(directory: Path) -> Architecture:
    """Architecture of a Hugging Face checkpoint directory, from its config.json alone."""
    if not directory.is_dir():
        raise UserError(f"model directory {directory} does not exist")
    path = directory / "config.json"
    if not path.is_file():
        raise UserError(f"{directory} is not a Hugging Face checkpoint: it has no config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    return family_of(config).read_config(config)
