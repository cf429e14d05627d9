"""Tiny random checkpoints, for the quickstart and for tests of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo_mega.errors import UserError

CHARACTERS = "0123456789+-*/=()<> abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ?.,:;'\"!_\n"
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")


def write_random_checkpoint(out: Path, family: str, seed: int, **dimensions: Any) -> int:
    """Write a float32 checkpoint with a character tokenizer; returns the number of parameters.

    Raises:
        UserError: unknown family, dimensions that do not fit, or an output directory that is not empty.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()

    from checkpoint_conversion.families import FAMILIES

    known = [f.name for f in FAMILIES]
    if family not in known:
        raise UserError(f"--family {family} is not known; known: {', '.join(known)}")
    heads, groups = dimensions["num_attention_heads"], dimensions["num_key_value_heads"]
    if dimensions["hidden_size"] % heads or heads % groups:
        raise UserError(
            f"hidden size {dimensions['hidden_size']}, {heads} heads, {groups} KV heads: each must divide the last"
        )
    if out.exists() and any(out.iterdir()):
        raise UserError(f"--out {out} is not empty")
    tokenizer = _character_tokenizer()
    settings = {
        "vocab_size": len(tokenizer),
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
        **dimensions,
    }
    if family == "mistral":
        settings["sliding_window"] = None
    if family == "qwen3":
        settings["head_dim"] = dimensions["hidden_size"] // heads
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings), dtype=torch.float32)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return sum(parameter.numel() for parameter in model.parameters())


def _character_tokenizer() -> Any:
    """One token a character; anything else is <unk>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate((*SPECIAL_TOKENS, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )
