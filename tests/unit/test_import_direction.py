"""Imports point one way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

LAYERS = [
    {"errors"},
    {"config"},
    {"runtime"},
    {"layout"},
    {"checkpoint_conversion"},
    {"ops", "weight_sync"},
    {"policy", "rewards", "data", "telemetry"},
    {"rollout"},
    {"training"},
    {"cli"},
]
"""Each may import what stands before it, and its own layer. `algorithms` imports nothing of the project."""
RANK = {room: number for number, layer in enumerate(LAYERS) for room in layer}


def imported_rooms(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "grpo_mega":
                names = [f"grpo_mega.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "grpo_mega" and len(parts) > 1:
                yield parts[1]
            elif parts[0] == "checkpoint_conversion":
                yield "checkpoint_conversion"


def room_of(path: Path) -> str:
    return "checkpoint_conversion" if path.parts[0] == "checkpoint_conversion" else path.parts[1].removesuffix(".py")


def test_imports_point_one_way() -> None:
    wrong = []
    files = [*Path("grpo_mega").rglob("*.py"), *Path("checkpoint_conversion").rglob("*.py")]
    assert len(files) > 50
    for path in files:
        room = room_of(path)
        if room in ("__init__", "__main__"):
            continue
        for imported in imported_rooms(path):
            if imported == "algorithms":
                continue
            if room == "algorithms" or RANK[imported] > RANK[room]:
                wrong.append(f"{path} imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_megatron_is_patched_in_one_place_only() -> None:
    """Assignments to attributes of torch.cuda, torch.Tensor or megatron modules outside cpu_megatron."""
    found = []
    for path in Path("grpo_mega").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign):
                targets = [ast.unparse(target) for target in node.targets]
                if any(target.startswith(("torch.cuda.", "torch.Tensor.", "megatron")) for target in targets):
                    found.append(path.name)
    assert set(found) == {"cpu_megatron.py"}
