"""Tiny random checkpoints of each family, with a character tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

COMMON: dict[str, Any] = {
    "vocab_size": 99,  # padded to 128 at TP 1 and 2 and to 256 at TP 4, where two ranks hold padding only
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 16,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama3.1": {"model_type": "llama", "rope_parameters": LLAMA3_ROPE, "max_position_embeddings": 64},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "qwen2": {"model_type": "qwen2"},
    "qwen2-tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 20},
    "one-kv-head": {"model_type": "llama", "num_key_value_heads": 1},
    "qwen3-one-kv-head": {"model_type": "qwen3", "head_dim": 20, "num_key_value_heads": 1},
}


def make_checkpoint(directory: Path, family: str, seed: int = 0, **overrides: Any) -> Path:
    """Write a random float32 checkpoint. Norms and biases are random too, so that a misplaced one shows."""
    settings = {**COMMON, **FAMILIES[family], **overrides}
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if name.endswith("norm.weight") else 0.0))
            else:
                parameter.mul_(4.0)  # sharper distributions than at initialisation
    path = directory / f"{family}-{seed}"
    model.save_pretrained(path)
    return path
