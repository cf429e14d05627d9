"""Safetensors in and out, and every way they can be broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoint_conversion.init_model import write_random_checkpoint
from checkpoint_conversion.reader import INDEX_NAME, CheckpointReader
from checkpoint_conversion.writer import write_checkpoint
from grpo_mega.errors import UserError
from grpo_mega.layout import Box
from tests.unit.test_prompts import SIZES

TENSORS = {f"t{i}": torch.arange(12.0).view(3, 4) + 100 * i for i in range(4)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    (directory / "config.json").write_text('{"dtype": "bfloat16", "a": 1}')
    (directory / "tokenizer.json").write_text("{}")
    (directory / "old.safetensors").write_text("not copied")
    return directory


def write(source: Path, out: Path, shard_bytes: int) -> Path:
    write_checkpoint(iter(TENSORS.items()), out, source, torch.float32, shard_bytes)
    return out


@pytest.mark.parametrize(("shard_bytes", "files"), [(10**6, 1), (100, 2), (1, 4)])
def test_round_trip(source: Path, tmp_path: Path, shard_bytes: int, files: int) -> None:
    out = write(source, tmp_path / "out", shard_bytes)
    assert len(list(out.glob("*.safetensors"))) == files
    assert (out / INDEX_NAME).exists() == (files > 1)
    reader = CheckpointReader(out)
    assert reader.names == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        assert torch.equal(reader.read(name, Box.whole(tensor.shape)), tensor)
        assert torch.equal(reader.read(name, Box(((1, 3), (2, 3)))), tensor[1:3, 2:3])
    assert json.loads((out / "config.json").read_text()) == {"dtype": "float32", "a": 1}
    assert (out / "tokenizer.json").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "source"]  # no temporary directory is left


def test_a_failure_half_way_leaves_nothing(source: Path, tmp_path: Path) -> None:
    def broken():
        yield "t0", TENSORS["t0"]
        yield "t1", TENSORS["t1"]
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_checkpoint(broken(), tmp_path / "out", source, torch.float32, shard_bytes=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]


def test_output_must_be_empty(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with pytest.raises(UserError, match="not empty"):
        write(source, tmp_path / "out", 100)
    assert (tmp_path / "out" / "precious").exists()


def test_broken_checkpoints_are_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no weights"):
        CheckpointReader(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match="pickles, which are not read"):
        CheckpointReader(tmp_path)
    out = write(source, tmp_path / "out", 100)
    shards = sorted(out.glob("*.safetensors"))
    whole = shards[0].read_bytes()
    shards[0].write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=f"{shards[0].name} is truncated"):
        CheckpointReader(out)
    shards[0].unlink()
    with pytest.raises(UserError, match=f"lacks the shard {shards[0].name}"):
        CheckpointReader(out)
    save_file({"t0": TENSORS["t0"]}, shards[0])  # t1 is gone
    with pytest.raises(UserError, match="the index names t1"):
        CheckpointReader(out)
    index = json.loads((out / INDEX_NAME).read_text())
    index["weight_map"]["t0"] = "../source/old.safetensors"
    (out / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(UserError, match="outside the directory"):
        CheckpointReader(out)


def test_contents_are_checked_against_the_table(source: Path, tmp_path: Path) -> None:
    reader = CheckpointReader(write(source, tmp_path / "out", 100))
    shapes = dict.fromkeys(TENSORS, (3, 4))
    reader.check(shapes)
    with pytest.raises(UserError, match=r"lacks extra \(1 of 5"):
        reader.check({**shapes, "extra": (1,)})
    with pytest.raises(UserError, match="has t0, which the family's table does not place"):
        reader.check({name: shape for name, shape in shapes.items() if name != "t0"})
    with pytest.raises(UserError, match=r"t2 has shape \(3, 4\), config.json implies \(4, 4\)"):
        reader.check({**shapes, "t2": (4, 4)})


def test_random_checkpoints(tmp_path: Path) -> None:
    for family in ("llama", "mistral", "qwen2", "qwen3"):
        count = write_random_checkpoint(tmp_path / family, family, 0, **SIZES)
        assert count == sum(t.numel() for t in load_file(tmp_path / family / "model.safetensors").values())
    write_random_checkpoint(tmp_path / "again", "qwen2", 0, **SIZES)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "qwen2" / "model.safetensors"
    ).read_bytes()
    with pytest.raises(UserError, match="is not empty"):
        write_random_checkpoint(tmp_path / "qwen2", "qwen2", 0, **SIZES)
    with pytest.raises(UserError, match="gpt2 is not known"):
        write_random_checkpoint(tmp_path / "x", "gpt2", 0, **SIZES)
