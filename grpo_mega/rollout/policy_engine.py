"""Sampling with the Megatron policy itself: needs no engine, and is the oracle for those that are engines."""

from __future__ import annotations

import math

import torch

from grpo_mega.ops.vocab_parallel import vocab_parallel_gumbel_argmax
from grpo_mega.policy.batch import SequenceBatch
from grpo_mega.policy.policy import Policy
from grpo_mega.rollout.engine import Generation, Weights


class PolicyEngine:
    """Runs the whole sequence through the pipeline for every token (no KV cache): for small models and for tests.

    Noise is drawn for the whole vocabulary from each completion's own seed, so samples do not depend on the layout.
    """

    def __init__(self, policy: Policy, max_completion_length: int, eos_token_ids: set[int]) -> None:
        self._policy = policy
        self._max_length = max_completion_length
        self._eos = eos_token_ids
        self._version = policy.version

    def sync(self, weights: Weights) -> None:
        self._version = weights.version  # the weights are the policy's own

    def close(self) -> None:
        """Nothing to free."""

    def generate(self, prompts: list[list[int]], seeds: list[int]) -> Generation:
        count = len(prompts)
        unit = self._policy.runtime.topology.data * self._policy.micro_batch_size
        padding = math.ceil(count / unit) * unit - count
        prompts = prompts + [prompts[-1]] * padding
        generators = [torch.Generator().manual_seed(seed) for seed in seeds + [0] * padding]
        completions: list[list[int]] = [[] for _ in prompts]
        running = set(range(count))
        while running:
            tokens = self._next_tokens(prompts, completions, generators)
            for row in sorted(running):
                completions[row].append(tokens[row])
                if tokens[row] in self._eos or len(completions[row]) == self._max_length:
                    running.remove(row)
        logprobs = self._policy.logprobs(self._batch(prompts, completions))
        return Generation(
            completions=completions[:count],
            logprobs=[logprobs[row, : len(completions[row])].tolist() for row in range(count)],
            weight_version=self._version,
        )

    def _next_tokens(
        self, prompts: list[list[int]], completions: list[list[int]], generators: list[torch.Generator]
    ) -> list[int]:
        policy = self._policy
        vocab_size = policy.architecture.vocab_size
        uniform = torch.stack([torch.rand(vocab_size, generator=generator) for generator in generators])
        noise = -(-uniform.clamp_min(1e-20).log()).log()
        own = policy.own_rows(len(prompts))
        chunks = iter(noise[own].split(policy.micro_batch_size))

        def sample(logits: torch.Tensor) -> torch.Tensor:
            return vocab_parallel_gumbel_argmax(
                logits, next(chunks).to(logits.device), policy.runtime.tensor_group, vocab_size, policy.temperature
            )

        return policy.last_logits(self._batch(prompts, completions), sample).tolist()

    def _batch(self, prompts: list[list[int]], completions: list[list[int]]) -> SequenceBatch:
        return SequenceBatch.build(prompts, completions, self._max_length, self._policy.runtime.topology.tensor)
