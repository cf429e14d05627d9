"""Errors that can differ by rank are agreed on here before any rank raises."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from grpo_mega.errors import UserError

T = TypeVar("T")


def agree(check: Callable[[], T]) -> T:
    """Run `check` on every rank; if it raises `UserError` on any, every rank raises the lowest rank's message.

    A collective: every rank must call. Other exceptions are bugs and propagate at once on their own rank.
    """
    message, result = "", None
    try:
        result = check()
    except UserError as error:
        message = str(error) or type(error).__name__
    messages = [m for m in all_gather_text(message) if m]
    if messages:
        raise UserError(messages[0])
    return result  # type: ignore[return-value]


def on_rank_zero(compute: Callable[[], T], rank: int) -> T:
    """Run `compute` on rank 0 and give every rank its (JSON) result, or its `UserError`. A collective."""
    outcome: dict[str, Any] = {}
    if rank == 0:
        try:
            outcome = {"result": compute()}
        except UserError as error:
            outcome = {"error": str(error)}
    outcome = json.loads(broadcast_text(json.dumps(outcome), source=0))
    if "error" in outcome:
        raise UserError(outcome["error"])
    return outcome["result"]


def all_gather_text(text: str) -> list[str]:
    """Every rank's text, in rank order; as bytes of UTF-8, never pickled. A collective."""
    payload = torch.tensor(list(text.encode("utf-8")), dtype=torch.uint8)
    return [bytes(part.tolist()).decode("utf-8") for part in all_gather_ragged(payload)]


def broadcast_text(text: str, source: int) -> str:
    """`text` of rank `source` on every rank. A collective."""
    data = text.encode("utf-8") if dist.get_rank() == source else b""
    size = torch.tensor([len(data)])
    dist.broadcast(size, source)
    payload = (
        torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(int(size), dtype=torch.uint8)
    )
    if int(size):
        dist.broadcast(payload, source)
    return bytes(payload.numpy().tobytes()).decode("utf-8")


def all_gather_ragged(values: torch.Tensor, group: dist.ProcessGroup | None = None) -> list[torch.Tensor]:
    """Gather 1-D CPU tensors of one dtype and any lengths, in the group's rank order. A collective of the group."""
    assert values.dim() == 1
    size = dist.get_world_size(group)
    lengths = torch.zeros(size, dtype=torch.int64)
    lengths[dist.get_rank(group)] = values.numel()
    dist.all_reduce(lengths, group=group)
    longest = int(lengths.max())
    if longest == 0:
        return [values.new_empty(0) for _ in range(size)]
    padded = values.new_zeros(longest)
    padded[: values.numel()] = values
    gathered = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(gathered, padded, group=group)
    return [part[: int(length)] for part, length in zip(gathered, lengths, strict=True)]
