"""Running commands as a user does, and looking after their processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
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
    seen: dict[int, psutil.Process] = {}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        root = psutil.Process(process.pid)
        while process.poll() is None:
            tree = [root, *_children(root)]
            seen |= {child.pid: child for child in tree}
            peak = max(peak, sum(_memory(child) for child in tree))
            if time.monotonic() - started > timeout_s:
                for child in seen.values():
                    if child.is_running():
                        child.kill()
                output.seek(0)
                raise AssertionError(f"{command} ran over {timeout_s} s:\n{output.read()[-3000:]}")
            time.sleep(0.5)
        seconds = time.monotonic() - started
        output.seek(0)
        text = output.read()
    _, left = psutil.wait_procs([child for child in seen.values() if child.is_running()], timeout=5)
    assert not left, f"processes left behind: {left}"
    return Outcome(process.returncode, text, seconds, peak / 2**30)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _memory(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0.0


def grpo_mega(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "grpo_mega", *arguments]


def torchrun(ranks: int, *arguments: str) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*launcher, "-m", "grpo_mega", *arguments]


def write_config(config: Config, path: Path) -> str:
    path.write_text(dump_config(config))
    return str(path)
