"""Running commands as a user does, and looking after their processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from grpo_mega.config import Config, dump_config


@dataclass(frozen=True)
class Outcome:
    code: int
    output: str
    seconds: float
    peak_gib: float
    """Largest sum of the processes' own memory (shared pages counted once each, by PSS)."""


def run(command: list[str], timeout_s: float = 300.0) -> Outcome:
    """Run to the end; a timeout kills the whole tree and fails. No process may be left behind."""
    started, peak = time.monotonic(), 0.0
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    seen: dict[int, psutil.Process] = {}
    output: list[str] = []
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    while process.poll() is None:
        output.append(process.stdout.read() or "")
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        seen |= {child.pid: child for child in tree}
        peak = max(peak, sum(_memory(child) for child in tree))
        if time.monotonic() - started > timeout_s:
            for child in seen.values():
                if child.is_running():
                    child.kill()
            raise AssertionError(f"{command} ran over {timeout_s} s:\n{''.join(output)[-3000:]}")
        time.sleep(0.5)
    output.append(process.stdout.read() or "")
    seconds = time.monotonic() - started
    left = [child for child in seen.values() if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    _, left = psutil.wait_procs(left, timeout=5)
    assert not left, f"processes left behind: {left}"
    return Outcome(process.returncode, "".join(output), seconds, peak / 2**30)


def _memory(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0.0


def grpo_mega(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "grpo_mega", *arguments]


def torchrun(ranks: int, *arguments: str) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", "0"]
    return [*launcher, "-m", "grpo_mega", *arguments]


def write_config(config: Config, path: Path) -> str:
    path.write_text(dump_config(config))
    return str(path)
