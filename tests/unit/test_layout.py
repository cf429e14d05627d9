"""Pieces: every canonical element has exactly the holders it should."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from checkpoint_conversion.families import family_of
from grpo_mega.layout import Box, Piece, check_exact_cover
from grpo_mega.policy.layout import canonical_shapes, megatron_pieces
from grpo_mega.runtime.topology import Topology

BASE = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 151,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 128,
}
CONFIGS = {
    "llama": {"architectures": ["LlamaForCausalLM"], **BASE},
    "tied": {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True, **BASE},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], **BASE},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16, **BASE},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": None, **BASE},
}
LAYOUTS = [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (1, 4), (2, 2), (4, 2)]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("tp", "pp"), LAYOUTS)
@pytest.mark.parametrize("transformer_engine", [False, True])
def test_every_element_is_held_and_no_local_element_twice(
    name: str, tp: int, pp: int, transformer_engine: bool
) -> None:
    architecture = family_of(CONFIGS[name]).read_config(CONFIGS[name])
    topology = Topology(tensor=tp, pipeline=pp, data=1)
    pieces = [p for rank in range(tp * pp) for p in megatron_pieces(architecture, topology, rank, transformer_engine)]
    for tensor, shape in canonical_shapes(architecture).items():
        held = torch.zeros(shape, dtype=torch.int64)
        for piece in pieces:
            if piece.tensor == tensor:
                held[piece.box.slices] += 1
        expected = 1
        if tensor.endswith("norm.weight"):
            expected = tp  # replicated over tensor parallelism
        elif name == "tied" and tensor == "model.embed_tokens.weight" and pp > 1:
            expected = 2  # first and last stage
        assert (held == expected).all(), f"{tensor}: {held.unique().tolist()} holders, not {expected}"
    for rank in range(tp * pp):
        own = [piece for piece in pieces if piece.holder == rank]
        for index, a in enumerate(own):
            for b in own[index + 1 :]:
                assert a.param != b.param or a.local_box.intersect(b.local_box) is None, (a, b)


def test_published_shapes() -> None:
    """Parameter counts of published models from their config.json values alone."""
    llama = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
    }
    count = sum(Box.whole(shape).numel for shape in canonical_shapes(family_of(llama).read_config(llama)).values())
    assert count == 70_553_706_496  # Llama 3.1 70B
    qwen = {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": True,
    }
    count = sum(Box.whole(shape).numel for shape in canonical_shapes(family_of(qwen).read_config(qwen)).values())
    assert count == 596_049_920  # Qwen3-0.6B


def test_the_cover_check_catches_planted_faults() -> None:
    whole = [Box(((0, 2), (0, 3))), Box(((2, 4), (0, 3)))]
    check_exact_cover("t", (4, 3), whole)
    with pytest.raises(AssertionError, match="overlap"):
        check_exact_cover("t", (4, 3), [*whole, Box(((1, 3), (0, 1)))])
    with pytest.raises(AssertionError, match="cover 6 of 12"):
        check_exact_cover("t", (4, 3), whole[:1])


def test_a_piece_has_one_shape_on_both_sides() -> None:
    piece = Piece("t", Box(((0, 2),)), 0, "p", Box(((4, 6),)))
    with pytest.raises(AssertionError):
        replace(piece, local_box=Box(((4, 7),)))
