"""Which implementation of a transformer layer the policy is built from."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch


def has_transformer_engine() -> bool:
    """Transformer Engine is used on GPUs when it can be imported."""
    return torch.cuda.is_available() and importlib.util.find_spec("transformer_engine") is not None


class RMSNorm(torch.nn.Module):
    """RMS norm for the local spec, with the interface megatron-core builds norms by.

    megatron-core's own WrappedTorchNorm asserts that sequence parallel is off (transformer/torch_norm.py), because
    torch's norm does not mark its weight. `weight.sequence_parallel` is that mark: finalize_model_grads then sums the
    weight's gradient, which each TP rank has for its part of the sequence, over the TP group.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.eps = eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(hidden, (hidden.shape[-1],), self.weight, self.eps)


def transformer_block_spec(num_layers: int, qk_layernorm: bool) -> Any:
    """Spec of the `num_layers` layers on this pipeline stage, with the final norm."""
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

    if has_transformer_engine():
        from megatron.core.extensions.transformer_engine import TENorm
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec

        layer = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=qk_layernorm)
        return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=TENorm)

    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    layer = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=qk_layernorm)
    layer.submodules.input_layernorm = RMSNorm
    layer.submodules.pre_mlp_layernorm = RMSNorm
    if qk_layernorm:
        attention = layer.submodules.self_attention.submodules
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=RMSNorm)


def causal_mask(sequence_length: int, device: torch.device) -> torch.Tensor | None:
    """What the spec's attention takes: (1, 1, S, S), True where masked; None for Transformer Engine, whose attention
    is causal by its own type."""
    if has_transformer_engine():
        return None
    return torch.ones(1, 1, sequence_length, sequence_length, dtype=torch.bool, device=device).triu(1)
