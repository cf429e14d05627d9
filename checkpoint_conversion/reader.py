"""Reading Hugging Face checkpoints: safetensors only, slice by slice."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from grpo_mega.errors import UserError
from grpo_mega.layout import Box

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


class CheckpointReader:
    """The tensors of a checkpoint directory, one file or sharded with an index."""

    def __init__(self, directory: Path) -> None:
        """Read names and places of all tensors; no weights yet.

        Raises:
            UserError: no safetensors, an index that is broken or points outside the directory, a missing or
                unreadable shard.
        """
        self.directory = directory
        self._file_of = self._locate()
        self._shapes: dict[str, tuple[int, ...]] = {}
        for path in sorted(set(self._file_of.values())):
            self._shapes |= _read_shapes(path)
        absent = sorted(set(self._file_of) - set(self._shapes))
        if absent:
            raise UserError(
                f"{directory}: the index names {absent[0]} in {self._file_of[absent[0]].name}, which lacks it"
            )
        self._open: dict[Path, Any] = {}

    def _locate(self) -> dict[str, Path]:
        index, single = self.directory / INDEX_NAME, self.directory / SINGLE_NAME
        if not index.is_file():
            if not single.is_file():
                raise UserError(self._nothing_to_read())
            return dict.fromkeys(_read_shapes(single), single)
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (json.JSONDecodeError, KeyError) as error:
            raise UserError(f"{index} is not a safetensors index: {error!r}") from None
        for name, file in weight_map.items():
            if Path(file).name != file:
                raise UserError(f"{index}: {name} is said to be in {file!r}, outside the directory")
            if not (self.directory / file).is_file():
                raise UserError(f"{self.directory} lacks the shard {file}, which its index names for {name}")
        return {name: self.directory / file for name, file in weight_map.items()}

    def _nothing_to_read(self) -> str:
        if list(self.directory.glob("*.bin")):
            return (
                f"{self.directory} has only .bin pickles, which are not read (unpickling runs code). Convert them with "
                "`AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(OUT, safe_serialization=True)`"
            )
        return f"{self.directory} has no weights: neither {INDEX_NAME} nor {SINGLE_NAME}"

    @property
    def names(self) -> list[str]:
        return sorted(self._file_of)

    def check(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Raise `UserError` unless the checkpoint has exactly these tensors, with these shapes.

        A stored `lm_head.weight` beside tied embeddings is a copy that some writers leave; it is allowed.
        """
        missing = [name for name in shapes if name not in self._shapes]
        if missing:
            raise UserError(
                f"{self.directory} lacks {missing[0]} ({len(missing)} of {len(shapes)} tensors are missing)"
            )
        unknown = [name for name in self._shapes if name not in shapes and name != "lm_head.weight"]
        if unknown:
            raise UserError(f"{self.directory} has {unknown[0]}, which the family's table does not place")
        for name, shape in shapes.items():
            if self._shapes[name] != shape:
                raise UserError(f"{self.directory}: {name} has shape {self._shapes[name]}, config.json implies {shape}")

    def read(self, name: str, box: Box) -> torch.Tensor:
        """The part `box` of a tensor, in the stored dtype; only its rows are read from disk."""
        path = self._file_of[name]
        if path not in self._open:
            self._open[path] = safe_open(path, framework="pt")
        return self._open[path].get_slice(name)[box.slices] if box.intervals else self._open[path].get_tensor(name)


def _read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 not a dict
    except (SafetensorError, OSError, struct.error) as error:
        raise UserError(f"{path} is truncated or not a safetensors file: {error}") from None
