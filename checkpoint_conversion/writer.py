"""Writing Hugging Face checkpoints: streamed shards, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from checkpoint_conversion.reader import INDEX_NAME, SINGLE_NAME
from grpo_mega.errors import UserError

SHARD_BYTES = 4 * 2**30
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".pth")


def write_checkpoint(
    tensors: Iterator[tuple[str, torch.Tensor]],
    out: Path,
    source: Path,
    dtype: torch.dtype,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write tensors in their order, with config, tokenizer and chat template copied from `source`.

    `dtype` is that of the tensors, for config.json.

    Everything goes to a temporary directory beside `out`, which is renamed last: a partial output is never mistaken
    for a whole one. At most one shard is held in memory.

    Raises:
        UserError: `out` exists and is not empty.
    """
    if out.exists() and any(out.iterdir()):
        raise UserError(f"output directory {out} is not empty")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        _write_shards(tensors, temporary, shard_bytes)
        _copy_companions(source, temporary)
        _set_config_dtype(temporary, str(dtype).removeprefix("torch."))
        if out.exists():
            out.rmdir()
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_shards(tensors: Iterator[tuple[str, torch.Tensor]], directory: Path, shard_bytes: int) -> None:
    shards: list[list[str]] = []
    pending: dict[str, torch.Tensor] = {}
    total = held = 0

    def flush() -> None:
        nonlocal pending, held
        save_file(pending, directory / f"{len(shards)}.part", metadata={"format": "pt"})
        shards.append(list(pending))
        pending, held = {}, 0

    for name, tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if pending and held + size > shard_bytes:
            flush()
        pending[name] = tensor.contiguous()
        held, total = held + size, total + size
    flush()

    if len(shards) == 1:
        (directory / "0.part").rename(directory / SINGLE_NAME)
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (directory / f"{number}.part").rename(directory / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _copy_companions(source: Path, directory: Path) -> None:
    """Every file of the source that is not weights or their index: config, tokenizer, chat template, licence."""
    for path in source.iterdir():
        if path.is_file() and not path.name.endswith(WEIGHT_SUFFIXES) and path.name != INDEX_NAME:
            shutil.copyfile(path, directory / path.name)


def _set_config_dtype(directory: Path, dtype: str) -> None:
    """State in config.json the dtype that the weights now have (under the key that the file already uses)."""
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    key = "torch_dtype" if "torch_dtype" in config else "dtype"
    path.write_text(json.dumps({**config, key: dtype}, indent=2) + "\n", encoding="utf-8")
