"""Building policies and batches inside test ranks."""

from __future__ import annotations

from pathlib import Path

import torch

from checkpoint_conversion.families import read_architecture
from grpo_mega.config.schema import ParallelConfig
from grpo_mega.policy.batch import SequenceBatch
from grpo_mega.policy.policy import Policy
from grpo_mega.runtime.distributed import attach_runtime
from grpo_mega.runtime.topology import Topology


def make_policy(
    directory: Path, tp: int, pp: int, dp: int = 1, micro_batch_size: int = 2, temperature: float = 1.0
) -> Policy:
    runtime = attach_runtime(Topology(tensor=tp, pipeline=pp, data=dp))
    policy = Policy(
        read_architecture(directory), runtime, ParallelConfig(), torch.float32, micro_batch_size, temperature
    )
    policy.load_hf(directory)
    return policy


def make_sequences(rows: int = 8, seed: int = 0, vocab_size: int = 99, multiple: int = 4) -> SequenceBatch:
    """Random prompts and completions of ragged lengths, one completion empty."""
    generator = torch.Generator().manual_seed(seed)

    def sample(low: int, high: int) -> list[int]:
        length = int(torch.randint(low, high, (1,), generator=generator))
        return torch.randint(3, vocab_size, (length,), generator=generator).tolist()

    prompts = [sample(2, 12) for _ in range(rows)]
    completions = [sample(1, 15) for _ in range(rows)]
    completions[1] = []
    return SequenceBatch.build(prompts, completions, width=16, multiple=multiple)
