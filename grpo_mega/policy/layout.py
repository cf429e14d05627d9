"""Where every canonical tensor lives in the Megatron policy: a pure function of architecture and topology."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from checkpoint_conversion.families import FAMILIES, Architecture, Segment, TensorRule
from grpo_mega.layout import Box, Piece
from grpo_mega.runtime.topology import Topology


def tensor_rules(architecture: Architecture) -> list[TensorRule]:
    """The table of the architecture's family."""
    family = next(family for family in FAMILIES if family.name == architecture.family)
    return family.rules(architecture)


def canonical_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Every Hugging Face tensor of a checkpoint with its shape, in the order of the layers."""
    rules = tensor_rules(architecture)
    shapes = {rule.hf: rule.shape for rule in rules if rule.stage == "embedding"}
    for layer in range(architecture.num_layers):
        shapes |= {rule.hf.format(layer=layer): rule.shape for rule in rules if rule.stage == "layer"}
    return shapes | {rule.hf: rule.shape for rule in rules if rule.stage == "final"}


def megatron_pieces(architecture: Architecture, topology: Topology, rank: int, transformer_engine: bool) -> list[Piece]:
    """What global rank `rank` holds. Every rank can compute this for every other."""
    tp, place = topology.tensor, topology.coordinates(rank)
    pieces = []
    for rule, hf_layer, local_layer in _rules_of_stage(architecture, topology, place.pipeline):
        tensor = rule.hf.format(layer=hf_layer)
        param = (rule.transformer_engine if transformer_engine else rule.local).format(layer=local_layer)
        for box, local_box in _shard(rule, tp, place.tensor):
            pieces.append(Piece(tensor, box, rank, param, local_box))
    return pieces


def _rules_of_stage(
    architecture: Architecture, topology: Topology, stage: int
) -> Iterator[tuple[TensorRule, int, int]]:
    """Rules with the layer's global number and its number on the stage."""
    rules = tensor_rules(architecture)
    first, last = stage == 0, stage == topology.pipeline - 1
    for rule in rules:
        if rule.stage == "embedding" and first:
            yield rule, 0, 0
        if rule.stage == "embedding" and last and architecture.tie_word_embeddings and not first:
            # A tied embedding has a second holder: the last stage's output layer.
            yield replace(rule, local="output_layer.weight", transformer_engine="output_layer.weight"), 0, 0
        if rule.stage == "final" and last:
            yield rule, 0, 0
    for local, layer in enumerate(topology.layers_of_stage(architecture.num_layers, stage)):
        for rule in rules:
            if rule.stage == "layer":
                yield rule, layer, local


def _shard(rule: TensorRule, tp: int, rank: int) -> Iterator[tuple[Box, Box]]:
    """The (canonical, local) boxes of TP rank `rank`."""
    whole = Box.whole(rule.shape)
    dim = rule.split_dim
    if dim is None:
        yield whole, whole
        return
    size = rule.fused_size(tp) if rule.fused_size else rule.shape[dim]
    assert size % tp == 0, f"{rule.hf}: {size} over TP {tp}"
    begin, end = rank * size // tp, (rank + 1) * size // tp
    segments = rule.segments(tp) if rule.segments else [Segment(0, 0, rule.shape[dim])]
    for segment in segments:
        start, stop = max(begin, segment.fused), min(end, segment.fused + segment.length)
        if start < stop:
            offset = segment.canonical - segment.fused
            yield whole.narrow(dim, start + offset, stop + offset), whole.narrow(dim, start - begin, stop - begin)
