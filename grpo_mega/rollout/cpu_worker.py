"""vLLM's CPU worker (its public `worker_cls` option) with a name of its own for this run's shared memory."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker


class RunCpuWorker(CPUWorker):
    """Names the shared memory of vLLM's CPU collectives after the run.

    vLLM derives the name from the rendezvous address (cpu_worker.py, VLLM_DIST_IDENT). Under `external_launcher` that
    is always `env://`: two runs on one machine would write into each other's buffers' names, and after a run that was
    killed every later one fails with "create shm in SHMManager failed. errno: 17". The process group exists already,
    so the address has no other use here.
    """

    def __init__(self, vllm_config: Any, local_rank: int, rank: int, distributed_init_method: str, **kwargs: Any) -> None:
        run_id = vllm_config.additional_config["grpo_mega_run_id"]
        super().__init__(vllm_config, local_rank, rank, f"{distributed_init_method}:grpo-mega-{run_id}", **kwargs)
