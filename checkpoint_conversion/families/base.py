"""What a family table is made of: an architecture, and rules that place Hugging Face tensors in Megatron's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from grpo_mega.errors import UserError

VOCAB_MULTIPLE = 64
"""Each TP rank's share of the vocabulary is a multiple of this (GEMM tiles; vLLM pads to the same)."""


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's frequency scaling (`rope_type: llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class Architecture:
    """The dimensions of a dense decoder, in megatron-core's terms."""

    family: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    kv_channels: int
    vocab_size: int
    layernorm_epsilon: float
    rotary_base: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    qk_layernorm: bool = False

    def padded_vocab_size(self, tensor_parallel_size: int) -> int:
        """Rows of Megatron's embedding: the vocabulary rounded up to VOCAB_MULTIPLE rows a TP rank."""
        unit = VOCAB_MULTIPLE * tensor_parallel_size
        return math.ceil(self.vocab_size / unit) * unit

    @property
    def qkv_rows(self) -> int:
        """Rows of the fused QKV projection."""
        return (self.num_attention_heads + 2 * self.num_query_groups) * self.kv_channels

    def check_tensor_parallel(self, tensor_parallel_size: int) -> None:
        """Raise `UserError` when TP cannot split this architecture. KV heads may be fewer than TP."""
        key = f"parallel.tensor_parallel_size={tensor_parallel_size}"
        if self.num_attention_heads % tensor_parallel_size:
            raise UserError(f"{key} does not divide the model's {self.num_attention_heads} attention heads")
        if self.ffn_hidden_size % tensor_parallel_size:
            raise UserError(f"{key} does not divide the model's intermediate size {self.ffn_hidden_size}")
        fewer, more = sorted((self.num_query_groups, tensor_parallel_size))
        if more % fewer:
            raise UserError(f"{key} and the model's {self.num_query_groups} KV heads: neither divides the other")
        if self.qkv_rows % tensor_parallel_size:
            raise UserError(f"{key} does not divide the {self.qkv_rows} rows of the fused QKV projection")


@dataclass(frozen=True)
class Segment:
    """Rows `[canonical, canonical + length)` of the HF tensor are rows `[fused, fused + length)` of Megatron's
    parameter, all TP shards laid end to end."""

    canonical: int
    fused: int
    length: int


Segments = Callable[[int], list[Segment]]
"""A function of the tensor-parallel size."""


@dataclass(frozen=True)
class TensorRule:
    """Where one Hugging Face tensor lives in Megatron. `{layer}` in names is the layer's global number in `hf`
    and its number on the pipeline stage in the Megatron names."""

    hf: str
    local: str
    """Parameter name under megatron-core's local layer spec."""
    transformer_engine: str
    """Parameter name under its Transformer Engine layer spec."""
    shape: tuple[int, ...]
    stage: Literal["embedding", "layer", "final"]
    """First stage, the layer's own stage, or last stage."""
    split_dim: int | None = None
    """Dimension that tensor parallelism splits; None: every TP rank holds the whole tensor."""
    segments: Segments | None = None
    """How rows are interleaved along split_dim with those of other HF tensors; None: not at all."""
    fused_size: Callable[[int], int] | None = None
    """Size of Megatron's parameter along split_dim over all TP ranks, when it is not the tensor's own."""


@dataclass(frozen=True)
class Family:
    """One model family: how to read its config.json, and its table of tensors."""

    name: str
    architectures: tuple[str, ...]
    """Values of `architectures` in config.json."""
    read_config: Callable[[Mapping[str, Any]], Architecture]
    rules: Callable[[Architecture], list[TensorRule]]


def require(config: Mapping[str, Any], key: str) -> Any:
    """A key that config.json must have."""
    if config.get(key) is None:
        raise UserError(f"config.json has no `{key}`")
    return config[key]


def read_rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

    Raises:
        UserError: a scaling other than none or Llama 3's.
    """
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = parameters.get("rope_theta", config.get("rope_theta", 10000.0))
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return float(base), None
    if kind != "llama3":
        raise UserError(f"config.json: rope scaling of type {kind!r} is not supported; known: default, llama3")
    return float(base), RopeScaling(
        factor=float(parameters["factor"]),
        low_freq_factor=float(parameters["low_freq_factor"]),
        high_freq_factor=float(parameters["high_freq_factor"]),
        original_max_position_embeddings=int(parameters["original_max_position_embeddings"]),
    )
