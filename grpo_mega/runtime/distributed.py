"""Process groups by purpose, and this rank's place among them."""

from __future__ import annotations

import datetime
import importlib.metadata
from dataclasses import dataclass

import torch
import torch.distributed as dist

from grpo_mega.config.schema import ParallelConfig
from grpo_mega.errors import UserError
from grpo_mega.runtime import environment
from grpo_mega.runtime.topology import Coordinates, Topology


@dataclass(frozen=True)
class Runtime:
    """Everything a component may ask about where it runs. Groups are passed on as arguments, never looked up."""

    topology: Topology
    rank: int
    coordinates: Coordinates
    device: torch.device
    tensor_group: dist.ProcessGroup
    data_group: dist.ProcessGroup

    @property
    def is_first_stage(self) -> bool:
        return self.coordinates.pipeline == 0

    @property
    def is_last_stage(self) -> bool:
        return self.coordinates.pipeline == self.topology.pipeline - 1

    @property
    def reports_results(self) -> bool:
        """True on one rank of each data-parallel replica: TP rank 0 of the last stage, which has the losses."""
        return self.is_last_stage and self.coordinates.tensor == 0


def start_runtime(parallel: ParallelConfig) -> Runtime:
    """Join the process group and lay the grid over it. Every rank must call.

    Raises:
        UserError: TP × PP does not divide the number of ranks, or the wrong `apex` is installed (raised before
            anything is joined).
    """
    environment.ensure_rendezvous()
    topology = Topology.from_world(
        environment.torchrun_world_size(), parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    )
    refuse_the_other_apex()
    has_cuda = torch.cuda.is_available()
    environment.prepare_library_environment(has_cuda)
    if has_cuda:
        torch.cuda.set_device(environment.torchrun_local_rank())
    if not dist.is_initialized():
        # gloo beside nccl: small CPU tensors (rollouts, rewards, error texts) travel without touching the GPU.
        backend = "cpu:gloo,cuda:nccl" if has_cuda else "gloo"
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=parallel.collective_timeout_s))
    return attach_runtime(topology)


def attach_runtime(topology: Topology) -> Runtime:
    """Lay the grid over a process group that exists already. Every rank must call."""
    from megatron.core import parallel_state

    has_cuda = torch.cuda.is_available()
    if not has_cuda:
        from grpo_mega.runtime import cpu_megatron

        cpu_megatron.install()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=topology.tensor, pipeline_model_parallel_size=topology.pipeline
    )
    if has_cuda:
        from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

        model_parallel_cuda_manual_seed(0)  # the tracker must exist; nothing draws from it (dropout is 0)
    rank = dist.get_rank()
    return Runtime(
        topology=topology,
        rank=rank,
        coordinates=topology.coordinates(rank),
        device=torch.device("cuda", torch.cuda.current_device()) if has_cuda else torch.device("cpu"),
        tensor_group=parallel_state.get_tensor_model_parallel_group(),
        data_group=parallel_state.get_data_parallel_group(),
    )


def stop_runtime() -> None:
    """Leave the grid and the process group, if an engine has not already closed it.

    Every rank must call, on success only: error paths join no collective.
    """
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


def refuse_the_other_apex() -> None:
    """megatron-core takes any importable `apex` for NVIDIA's; the index's `apex` is a web toolkit.

    Raises:
        UserError: that package is installed.
    """
    try:
        summary = str(importlib.metadata.metadata("apex")["Summary"])
    except importlib.metadata.PackageNotFoundError:
        return
    if "pyramid" in summary.lower() or "velruse" in summary.lower():
        raise UserError(
            "the installed package `apex` is not NVIDIA's (it is a Pyramid web toolkit of the same name): "
            "`pip uninstall apex`; NVIDIA's is built from https://github.com/NVIDIA/apex"
        )
