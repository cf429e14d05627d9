"""A pool of gloo ranks that imports torch and megatron-core once and runs many tests.

Ranks are spawned, not forked: a forked copy of a process that has run OpenMP or gloo threads deadlocks.
"""

from __future__ import annotations

import multiprocessing as mp
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


class RankPool:
    """`run(world, function, **kwargs)` calls an importable function on `world` ranks of a fresh process group."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self._context = mp.get_context("spawn")
        self._workers: list[tuple[Any, Any]] = []

    def run(self, world: int, function: Callable[..., Any], timeout_s: float = 240.0, **kwargs: Any) -> list[Any]:
        """Results in rank order. A rank that raises fails the test with its traceback; the pool then starts anew."""
        assert world <= self.size
        if not self._workers:
            self._start()
        with tempfile.TemporaryDirectory() as directory:
            store = Path(directory) / "store"
            for rank in range(world):
                self._workers[rank][1].send((rank, world, str(store), function, kwargs))
            return self._collect(world, time.monotonic() + timeout_s)

    def _collect(self, world: int, deadline: float) -> list[Any]:
        results: dict[int, Any] = {}
        while len(results) < world:
            for rank in range(world):
                _, pipe = self._workers[rank]
                if rank in results or not pipe.poll(0.005):
                    continue
                ok, value = pipe.recv()
                if not ok:
                    self.close()
                    raise AssertionError(f"rank {rank} of {world}:\n{value}")
                results[rank] = value
            dead = [rank for rank in range(world) if not self._workers[rank][0].is_alive()]
            if dead or time.monotonic() > deadline:
                self.close()
                raise AssertionError(f"ranks {dead} died" if dead else f"ranks {set(range(world)) - set(results)} hang")
        return [results[rank] for rank in range(world)]

    def _start(self) -> None:
        for _ in range(self.size):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs,))  # not daemonic: saving starts processes
            process.start()
            self._workers.append((process, ours))

    def close(self) -> None:
        for process, pipe in self._workers:
            pipe.close()
            process.kill()
            process.join()
        self._workers = []


def _serve(pipe: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    from grpo_mega.runtime import cpu_megatron

    cpu_megatron.install()
    from megatron.core import parallel_state

    while True:
        try:
            rank, world, store, function, kwargs = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
            result = function(**kwargs)
            dist.barrier()
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()
            pipe.send((True, result))
        except BaseException:  # noqa: BLE001 the parent raises it
            pipe.send((False, traceback.format_exc()))
