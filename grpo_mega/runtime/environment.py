"""Environment variables that libraries read. Nothing else in the project sets or reads a setting this way."""

from __future__ import annotations

import logging
import os
import warnings


def prepare_library_environment(has_cuda: bool) -> None:
    """Set what torch, megatron-core, tokenizers and transformers need. Call before the first collective.

    CUDA_DEVICE_MAX_CONNECTIONS=1 keeps megatron-core's tensor-parallel communication ahead of the GEMM it
    overlaps with (asserted by megatron-core when sequence parallel is on).
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if has_cuda:
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")


def silence_library_warnings() -> None:
    """Keep the libraries' remarks to their own developers off the user's terminal; errors are not touched.

    Call before torch is imported, which reads TORCH_CPP_LOG_LEVEL.

    megatron-core warns of every optional package it can do without, torch of its own renamed functions.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    warnings.filterwarnings("ignore", module=r"megatron\.|torch\.|vllm\.|grpo_mega\.runtime\.cpu_megatron")
    warnings.filterwarnings("ignore", message=r".*\.grad attribute of a Tensor that is not a leaf.*")
    logging.getLogger("vllm").setLevel(logging.ERROR)
    logging.getLogger("megatron").setLevel(logging.ERROR)
    logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)


def prepare_vllm_environment(has_cuda: bool, cpu_kv_cache_gib: int) -> None:
    """Set what vLLM reads when it is imported: engine core in this process, and on CPUs no thread pinning
    (several ranks share the cores) and a bounded KV cache."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if not has_cuda:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(cpu_kv_cache_gib)


def torchrun_rank() -> int:
    """This process's global rank as its launcher states it; 0 without a launcher."""
    return int(os.environ.get("RANK", "0"))


def torchrun_world_size() -> int:
    """Number of ranks as the launcher states it; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def torchrun_local_rank() -> int:
    """This process's rank on its node, which is also the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def ensure_rendezvous() -> None:
    """A run without a launcher is a world of one rank on this machine."""
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=_free_port())


def _free_port() -> str:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
