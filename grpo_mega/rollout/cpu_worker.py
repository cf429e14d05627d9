"""vLLM's CPU worker (its public `worker_cls` option) for ranks that share their cores with others."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker


class SharedCoresCpuWorker(CPUWorker):
    """Lets vLLM's tensor parallelism go through torch.distributed and not through its spinning shared memory.

    vLLM names the shared memory of its CPU collectives after the rendezvous address (cpu_worker.py, VLLM_DIST_IDENT),
    which under `external_launcher` is always `env://`. So two runs on one machine would use one name, and after a run
    that was killed every later one fails with "create shm in SHMManager failed. errno: 17". And its collectives spin:
    with more ranks than cores the quickstart's rollouts take four times as long, with stalls of seconds. Given a name
    of its own on each rank, vLLM sees that the names differ and uses torch.distributed (cpu_communicator.py,
    _all_group_ranks_share_shm_group_name). The process group exists already, so the address has no other use here.
    """

    def __init__(
        self, vllm_config: Any, local_rank: int, rank: int, distributed_init_method: str, **kwargs: Any
    ) -> None:
        super().__init__(vllm_config, local_rank, rank, f"{distributed_init_method}:rank-{rank}", **kwargs)
