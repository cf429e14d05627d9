"""From an architecture to this rank's part of a megatron-core GPT model."""

from __future__ import annotations

import math
from typing import Any

import torch
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

from checkpoint_conversion.families import Architecture
from grpo_mega.config.schema import ParallelConfig
from grpo_mega.runtime.distributed import Runtime
from grpo_mega.runtime.layer_spec import has_transformer_engine, transformer_block_spec


def build_model(architecture: Architecture, runtime: Runtime, parallel: ParallelConfig, dtype: torch.dtype) -> GPTModel:
    """This rank's pipeline stage and tensor shard, weights not yet set. Every rank must call."""
    config = transformer_config(architecture, runtime, parallel, dtype)
    stage = runtime.coordinates.pipeline
    num_layers = len(runtime.topology.layers_of_stage(architecture.num_layers, stage))
    model = GPTModel(
        config,
        transformer_block_spec(num_layers, architecture.qk_layernorm),
        vocab_size=architecture.padded_vocab_size(runtime.topology.tensor),
        max_sequence_length=architecture.max_position_embeddings,
        pre_process=runtime.is_first_stage,
        post_process=runtime.is_last_stage,
        share_embeddings_and_output_weights=architecture.tie_word_embeddings,
        position_embedding_type="rope",
        rotary_base=architecture.rotary_base,
    )
    if architecture.rope_scaling is not None:
        # megatron-core's own Llama 3 scaling fixes the low and high factors and the original context length
        # (rotary_pos_embedding.py, _apply_scaling); checkpoints state theirs.
        model.rotary_pos_emb.inv_freq = rotary_frequencies(architecture).to(model.rotary_pos_emb.inv_freq.device)
    return model.to(device=runtime.device, dtype=dtype)


def transformer_config(
    architecture: Architecture, runtime: Runtime, parallel: ParallelConfig, dtype: torch.dtype
) -> TransformerConfig:
    """The architecture in megatron-core's terms. Fusions need CUDA kernels and are off on CPUs."""
    topology = runtime.topology
    fused = runtime.device.type == "cuda"
    return TransformerConfig(
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        ffn_hidden_size=architecture.ffn_hidden_size,
        num_attention_heads=architecture.num_attention_heads,
        num_query_groups=architecture.num_query_groups,
        kv_channels=architecture.kv_channels,
        layernorm_epsilon=architecture.layernorm_epsilon,
        normalization="RMSNorm",
        qk_layernorm=architecture.qk_layernorm,
        add_bias_linear=False,
        add_qkv_bias=architecture.qkv_bias,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_softmax_in_fp32=True,
        tensor_model_parallel_size=topology.tensor,
        pipeline_model_parallel_size=topology.pipeline,
        sequence_parallel=parallel.sequence_parallel and topology.tensor > 1,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        # Every weight is overwritten from a checkpoint, but initialisation is also what marks parameters as
        # tensor-parallel (tensor_parallel/layers.py); without the mark the gradient norm counts rank 0's shards only.
        perform_initialization=True,
        use_cpu_initialization=not fused,
        bias_activation_fusion=fused,
        masked_softmax_fusion=False,
        persist_layer_norm=has_transformer_engine(),
        bias_dropout_fusion=fused,
        apply_rope_fusion=has_transformer_engine(),
        gradient_accumulation_fusion=False,
        # The objective weighs every token by its share of the global loss, so gradients are summed over
        # micro-batches and data-parallel ranks, never averaged: this turns off both of megatron-core's divisions,
        # and `sum_gradients` drops the third.
        calculate_per_token_loss=True,
        finalize_model_grads_func=sum_gradients,
    )


def sum_gradients(models: list[torch.nn.Module], num_tokens: torch.Tensor | None = None, **groups: Any) -> None:
    """megatron-core's gradient reduction (data parallel, sequence-parallel norms, tied embeddings), undivided."""
    finalize_model_grads(models, None, **groups)


def rotary_frequencies(architecture: Architecture) -> torch.Tensor:
    """(kv_channels / 2,) inverse frequencies, with Llama 3.1's scaling (Meta's `apply_scaling`): wavelengths longer
    than original / low_freq_factor are slowed by `factor`, those shorter than original / high_freq_factor kept, and
    between them the two are interpolated."""
    exponent = torch.arange(0, architecture.kv_channels, 2, dtype=torch.float32) / architecture.kv_channels
    frequency = 1.0 / architecture.rotary_base**exponent
    scaling = architecture.rope_scaling
    if scaling is None:
        return frequency
    periods = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
    smooth = (periods - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = smooth.clamp(0.0, 1.0)
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency
