"""Token sequences as the policy sees them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SequenceBatch:
    """Prompts with their completions, right-padded.

    Under a causal mask padding on the right never reaches a real token, so no row needs a mask of its own.
    """

    tokens: torch.Tensor
    """(B, S) int64: prompt, completion, padding."""
    prompt_lengths: torch.Tensor
    """(B,) int64."""
    completion_lengths: torch.Tensor
    """(B,) int64."""
    width: int
    """T: columns of per-completion-token tensors such as log-probs."""

    @classmethod
    def build(
        cls, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], width: int, multiple: int
    ) -> SequenceBatch:
        """Pad B prompts and completions to one length, a multiple of `multiple` (sequence parallelism needs TP)."""
        longest = max(len(p) + len(c) for p, c in zip(prompts, completions, strict=True))
        tokens = torch.zeros(len(prompts), math.ceil(longest / multiple) * multiple, dtype=torch.int64)
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            sequence = [*prompt, *completion]
            tokens[row, : len(sequence)] = torch.tensor(sequence, dtype=torch.int64)
        return cls(
            tokens=tokens,
            prompt_lengths=torch.tensor([len(p) for p in prompts]),
            completion_lengths=torch.tensor([len(c) for c in completions]),
            width=width,
        )

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def rows(self, index: slice | torch.Tensor) -> SequenceBatch:
        return SequenceBatch(self.tokens[index], self.prompt_lengths[index], self.completion_lengths[index], self.width)

    def to(self, device: torch.device) -> SequenceBatch:
        return SequenceBatch(
            self.tokens.to(device), self.prompt_lengths.to(device), self.completion_lengths.to(device), self.width
        )

    @property
    def completion_mask(self) -> torch.Tensor:
        """(B, T) bool: True on completion tokens."""
        columns = torch.arange(self.width, device=self.tokens.device)
        return columns < self.completion_lengths[:, None]

    def predicting_positions(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Row, position and target of every completion token, in (row, column) order.

        The token at position i is predicted by the logits at position i - 1.
        """
        row, column = self.completion_mask.nonzero(as_tuple=True)
        position = self.prompt_lengths[row] + column - 1
        return row, position, self.tokens[row, position + 1]

    def scatter(self, values: torch.Tensor) -> torch.Tensor:
        """(N,) values of completion tokens as (B, T), zero elsewhere. Differentiable."""
        mask = self.completion_mask
        return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)
