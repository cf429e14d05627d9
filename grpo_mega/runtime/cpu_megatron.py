"""megatron-core on CPUs over gloo: every patch of megatron-core (and of the torch.cuda it calls) is here.

Loaded only where torch has no CUDA. Each stand-in names the upstream line that needs it (megatron-core 0.16.1;
the same places in 0.19.2). Nothing here changes arithmetic: devices, streams and type names only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_installed: list[TorchFunctionMode] = []


class _CudaKeywordToCpu(TorchFunctionMode):
    """`device="cuda"` means the CPU.

    Upstream: buffers such as `torch.zeros(..., device="cuda")` in pipeline_parallel/schedules.py (total_num_tokens)
    and optimizer/clip_grads.py (total_norm_cuda), written without asking for the device.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs:
            device = kwargs.get("device")
            if device is not None and torch.device(device).type == "cuda":
                kwargs = {**kwargs, "device": "cpu"}
        return func(*args, **(kwargs or {}))


class _Stream:
    """A CUDA stream or event on a device that runs in order.

    Upstream: distributed/param_and_grad_buffer.py and pipeline_parallel/p2p_communication.py order streams.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> _Stream:
        return self

    def record(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass


def install() -> None:
    """Install the stand-ins, once in a process. Must precede the construction of any megatron-core object."""
    if _installed:
        return
    mode = _CudaKeywordToCpu()
    mode.__enter__()
    _installed.append(mode)
    _stand_in_for_torch_cuda()
    _stand_in_for_tensor_methods()
    _stand_in_for_rng_tracker()
    _define_te_general_gemm()
    _keep_adam_steps_on_load()


def _stand_in_for_torch_cuda() -> None:
    # models/common/embeddings/rotary_pos_embedding.py: `.to(device=torch.cuda.current_device())`.
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
    # pipeline_parallel/p2p_communication.py: synchronises after batch_isend_irecv.
    torch.cuda.synchronize = lambda device=None: None
    # distributed/param_and_grad_buffer.py: communication streams.
    torch.cuda.current_stream = lambda device=None: _Stream()  # type: ignore[assignment, return-value]
    torch.cuda.Stream = _Stream  # type: ignore[assignment, misc]
    torch.cuda.Event = _Stream  # type: ignore[assignment, misc]
    torch.cuda.stream = lambda stream: contextlib.nullcontext()  # type: ignore[assignment, return-value]


def _stand_in_for_tensor_methods() -> None:
    # models/common/language_module/language_module.py: `weight.data = weight.data.cuda()` for tied embeddings.
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]
    # distributed/param_and_grad_buffer.py: keeps a buffer alive on a side stream.
    torch.Tensor.record_stream = lambda self, stream: None  # type: ignore[assignment]
    original_type = torch.Tensor.type

    def type_with_cuda_name(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """optimizer/distrib_optimizer.py and clip_grads.py compare `param.type()` with 'torch.cuda.FloatTensor'."""
        result = original_type(self, *args, **kwargs)
        if isinstance(result, str) and result.startswith("torch.") and not result.startswith("torch.cuda."):
            return result.replace("torch.", "torch.cuda.", 1)
        return result

    torch.Tensor.type = type_with_cuda_name  # type: ignore[assignment]


def _stand_in_for_rng_tracker() -> None:
    """tensor_parallel/random.py swaps CUDA generator states around dropout; dropout is 0 here, nothing to swap."""
    from megatron.core.tensor_parallel import random as megatron_random

    class NoSwapTracker(megatron_random.CudaRNGStatesTracker):
        @contextlib.contextmanager
        def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
            yield

    megatron_random.initialize_rng_tracker()
    megatron_random._CUDA_RNG_STATE_TRACKER = NoSwapTracker()
    megatron_random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True


def _define_te_general_gemm() -> None:
    """transformer/moe/moe_utils.py refers to `te_general_gemm` though it imports it only with Transformer Engine."""
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None


def _keep_adam_steps_on_load() -> None:
    """optimizer/distrib_optimizer.py, _set_main_param_and_optimizer_states, copies every entry of a parameter's state
    from the checkpoint. torch's AdamW (used where neither Transformer Engine nor Apex is) has a `step` among them;
    the checkpoint keeps that once, in the parameter groups, and load_state_dict has restored it before this is called.
    """
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    original = DistributedOptimizer._set_main_param_and_optimizer_states

    def set_with_step(self: Any, model_param: torch.Tensor, tensors: dict[str, torch.Tensor]) -> None:
        group, order = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        original(self, model_param, {**({"step": state["step"]} if "step" in state else {}), **tensors})

    DistributedOptimizer._set_main_param_and_optimizer_states = set_with_step
