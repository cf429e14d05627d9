"""The table that Llama, Mistral, Qwen2 and Qwen3 share: a pre-norm decoder with GQA and a gated MLP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoint_conversion.families.base import Architecture, Segment, Segments, TensorRule, read_rope, require
from grpo_mega.errors import UserError


def read_dense_config(config: Mapping[str, Any], family: str, **features: bool) -> Architecture:
    """Dimensions common to the dense families, from config.json."""
    if config.get("hidden_act", "silu") != "silu":
        raise UserError(f"config.json: hidden_act={config['hidden_act']!r}; the {family} table knows silu only")
    if config.get("mlp_bias"):
        raise UserError(f"config.json: mlp_bias=true is not in the {family} table")
    if config.get("use_sliding_window"):
        raise UserError("config.json: use_sliding_window=true; sliding-window attention is not supported")
    heads = int(require(config, "num_attention_heads"))
    hidden = int(require(config, "hidden_size"))
    rotary_base, rope_scaling = read_rope(config)
    return Architecture(
        family=family,
        num_layers=int(require(config, "num_hidden_layers")),
        hidden_size=hidden,
        ffn_hidden_size=int(require(config, "intermediate_size")),
        num_attention_heads=heads,
        num_query_groups=int(config.get("num_key_value_heads") or heads),
        kv_channels=int(config.get("head_dim") or hidden // heads),
        vocab_size=int(require(config, "vocab_size")),
        layernorm_epsilon=float(require(config, "rms_norm_eps")),
        rotary_base=rotary_base,
        rope_scaling=rope_scaling,
        max_position_embeddings=int(require(config, "max_position_embeddings")),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        **features,
    )


def dense_rules(arch: Architecture) -> list[TensorRule]:
    """Every tensor of the checkpoint, once."""
    hidden, ffn, head = arch.hidden_size, arch.ffn_hidden_size, arch.kv_channels
    hf, mg = "model.layers.{layer}.", "decoder.layers.{layer}."
    attention = mg + "self_attention."
    rules = [
        _vocabulary("model.embed_tokens.weight", "embedding.word_embeddings.weight", arch, "embedding"),
        _replicated(
            hf + "input_layernorm.weight",
            mg + "input_layernorm.weight",
            attention + "linear_qkv.layer_norm_weight",
            (hidden,),
        ),
        *(_qkv(arch, part, "weight") for part in "qkv"),
        _split(
            hf + "self_attn.o_proj.weight",
            attention + "linear_proj.weight",
            (hidden, arch.num_attention_heads * head),
            dim=1,
        ),
        _replicated(
            hf + "post_attention_layernorm.weight",
            mg + "pre_mlp_layernorm.weight",
            mg + "mlp.linear_fc1.layer_norm_weight",
            (hidden,),
        ),
        _gated(hf + "mlp.gate_proj.weight", mg + "mlp.linear_fc1.weight", (ffn, hidden), slot=0),
        _gated(hf + "mlp.up_proj.weight", mg + "mlp.linear_fc1.weight", (ffn, hidden), slot=1),
        _split(hf + "mlp.down_proj.weight", mg + "mlp.linear_fc2.weight", (hidden, ffn), dim=1),
        _replicated(
            "model.norm.weight", "decoder.final_layernorm.weight", "decoder.final_layernorm.weight", (hidden,), "final"
        ),
    ]
    if arch.qkv_bias:
        rules += [_qkv(arch, part, "bias") for part in "qkv"]
    if arch.qk_layernorm:
        for part in "qk":
            name = attention + f"{part}_layernorm.weight"
            rules.append(_replicated(hf + f"self_attn.{part}_norm.weight", name, name, (head,)))
    if not arch.tie_word_embeddings:
        rules.append(_vocabulary("lm_head.weight", "output_layer.weight", arch, "final"))
    return rules


def _replicated(hf: str, local: str, te: str, shape: tuple[int, ...], stage: Any = "layer") -> TensorRule:
    return TensorRule(hf, local, te, shape, stage)


def _split(hf: str, name: str, shape: tuple[int, ...], dim: int) -> TensorRule:
    return TensorRule(hf, name, name, shape, "layer", split_dim=dim)


def _vocabulary(hf: str, name: str, arch: Architecture, stage: Any) -> TensorRule:
    shape = (arch.vocab_size, arch.hidden_size)
    return TensorRule(hf, name, name, shape, stage, split_dim=0, fused_size=arch.padded_vocab_size)


def _gated(hf: str, name: str, shape: tuple[int, ...], slot: int) -> TensorRule:
    """Each TP rank holds its rows of the gate, then its rows of the up projection."""

    def segments(tp: int) -> list[Segment]:
        rows = shape[0] // tp
        return [Segment(rank * rows, (2 * rank + slot) * rows, rows) for rank in range(tp)]

    return TensorRule(hf, name, name, shape, "layer", 0, segments, fused_size=lambda tp: 2 * shape[0])


def _qkv(arch: Architecture, part: str, suffix: str) -> TensorRule:
    """Megatron interleaves by query group: the group's query heads, its key head, its value head."""
    name = f"decoder.layers.{{layer}}.self_attention.linear_qkv.{suffix}"
    rows = (arch.num_attention_heads if part == "q" else arch.num_query_groups) * arch.kv_channels
    shape = (rows, arch.hidden_size) if suffix == "weight" else (rows,)
    return TensorRule(
        f"model.layers.{{layer}}.self_attn.{part}_proj.{suffix}",
        name,
        name,
        shape,
        "layer",
        0,
        _qkv_segments(arch, part),
        fused_size=lambda tp: arch.qkv_rows,
    )


def _qkv_segments(arch: Architecture, part: str) -> Segments:
    head, groups = arch.kv_channels, arch.num_query_groups
    queries = arch.num_attention_heads // groups
    length = {"q": queries * head, "k": head, "v": head}[part]
    offset = {"q": 0, "k": queries * head, "v": (queries + 1) * head}[part]
    group_rows = (queries + 2) * head
    return lambda tp: [Segment(group * length, group * group_rows + offset, length) for group in range(groups)]
