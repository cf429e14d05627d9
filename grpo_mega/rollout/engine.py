"""What the trainer asks of a rollout engine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from grpo_mega.errors import UserError


@dataclass(frozen=True)
class Generation:
    """Completions of all prompts, the same on every rank."""

    completions: list[list[int]]
    """Token ids, the end-of-sequence token included where there is one."""
    logprobs: list[list[float]]
    """Log-probs of these tokens under the distribution they were sampled from."""
    weight_version: int
    """Version of the weights that sampled them."""


class Weights(Protocol):
    """The source of a sync: whole canonical tensors, yielded on every rank in step, and their version."""

    @property
    def version(self) -> int: ...

    def canonical_tensors(self) -> Iterator[tuple[str, torch.Tensor]]: ...


class Engine(Protocol):
    """All methods are collectives: every rank calls them with the same arguments."""

    def sync(self, weights: Weights) -> None:
        """Take over the weights; `generate` samples with them from then on."""

    def generate(self, prompts: list[list[int]], seeds: list[int]) -> Generation:
        """One completion for each prompt; the same seed and weights give the same completion."""

    def close(self) -> None:
        """Free the engine; the last thing a run does with process groups."""


def completion_seeds(seed: int, step: int, count: int) -> list[int]:
    """A seed for each completion of a step: a hash, so that no two (seed, step, row) are related."""
    return [
        int.from_bytes(hashlib.blake2b(f"{seed}/{step}/{row}".encode(), digest_size=4).digest(), "little") >> 1
        for row in range(count)
    ]


def check_version(generation: Generation, expected: int) -> None:
    """Raise when the engine sampled with weights other than the policy's."""
    if generation.weight_version != expected:
        raise UserError(
            f"the engine sampled with weights of version {generation.weight_version}, the policy is at {expected}: "
            "weights were not synchronised"
        )
