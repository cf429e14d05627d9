"""Canonical tensors out of Megatron shards: the simplest exact way, one bucket of whole tensors at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from grpo_mega.layout import Box, Piece, check_exact_cover


class CanonicalGather:
    """Gives every rank every Hugging Face tensor of the policy, bit for bit.

    Of each box one holder is chosen when the plan is made (the lowest rank that has it); the plan is checked to cover
    each tensor exactly once. Tensors travel in buckets: one broadcast a holder and bucket.
    """

    def __init__(
        self,
        pieces: list[Piece],
        shapes: dict[str, tuple[int, ...]],
        dtype: torch.dtype,
        bucket_bytes: int = 64 * 2**20,
    ) -> None:
        """`pieces`: those of all ranks. `shapes`: every canonical tensor, in the order of delivery."""
        chosen: dict[tuple[str, Box], Piece] = {}
        for piece in sorted(pieces, key=lambda piece: piece.holder):
            chosen.setdefault((piece.tensor, piece.box), piece)
        self._pieces: dict[str, list[Piece]] = {name: [] for name in shapes}
        for piece in chosen.values():
            self._pieces[piece.tensor].append(piece)
        for name, shape in shapes.items():
            check_exact_cover(name, shape, [piece.box for piece in self._pieces[name]])
        self._shapes, self._dtype = shapes, dtype
        self._buckets = self._split_into_buckets(bucket_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all canonical tensors."""
        return sum(Box.whole(shape).numel for shape in self._shapes.values()) * self._dtype.itemsize

    def _split_into_buckets(self, bucket_bytes: int) -> list[list[str]]:
        buckets: list[list[str]] = [[]]
        held = 0
        for name, shape in self._shapes.items():
            size = Box.whole(shape).numel * self._dtype.itemsize
            if buckets[-1] and held + size > bucket_bytes:
                buckets.append([])
                held = 0
            buckets[-1].append(name)
            held += size
        return buckets

    def tensors(self, params: dict[str, torch.Tensor], device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, whole tensor) on every rank. A collective of the world: every rank must exhaust it, in step.

        `params`: this rank's parameters by Megatron name.
        """
        for names in self._buckets:
            whole = {name: torch.empty(self._shapes[name], dtype=self._dtype, device=device) for name in names}
            pieces = [piece for name in names for piece in self._pieces[name]]
            for holder in sorted({piece.holder for piece in pieces}):
                self._broadcast([piece for piece in pieces if piece.holder == holder], params, whole, device)
            yield from whole.items()

    def _broadcast(
        self, pieces: list[Piece], params: dict[str, torch.Tensor], whole: dict[str, torch.Tensor], device: torch.device
    ) -> None:
        """Every piece of one holder, into the whole tensors of every rank."""
        holder = pieces[0].holder
        flat = torch.empty(sum(piece.box.numel for piece in pieces), dtype=self._dtype, device=device)
        parts = flat.split([piece.box.numel for piece in pieces])
        if dist.get_rank() == holder:
            for piece, part in zip(pieces, parts, strict=True):
                part.copy_(params[piece.param][piece.local_box.slices].reshape(-1))
        dist.broadcast(flat, holder)
        for piece, part in zip(pieces, parts, strict=True):
            whole[piece.tensor][piece.box.slices] = part.view(piece.box.shape)
