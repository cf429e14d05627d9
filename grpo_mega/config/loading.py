"""From YAML files and dotted overrides to a validated `Config`."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Union

import yaml
from pydantic import BaseModel, ValidationError

from grpo_mega.config.schema import Config
from grpo_mega.errors import UserError


def load_config(paths: Sequence[Path], overrides: Sequence[str] = ()) -> Config:
    """Merge YAML files (later ones win, mappings are merged key by key), then `a.b=value` overrides.

    Override values are YAML: `optimizer.learning_rate=1e-3`, `telemetry.wandb={mode: offline}`.

    Raises:
        UserError: file missing or not a mapping, malformed override, unknown key (with the nearest
            known one), or a value that its field refuses.
    """
    tree: dict[str, Any] = {}
    for path in paths:
        tree = _merge(tree, _read_yaml(path))
    for override in overrides:
        tree = _merge(tree, _parse_override(override))
    return validate_config(tree)


def validate_config(tree: dict[str, Any]) -> Config:
    """Validate a plain mapping. Raises `UserError` that lists every problem."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        lines = [_describe(problem) for problem in error.errors(include_url=False)]
        raise UserError("configuration is not valid:\n  " + "\n  ".join(lines)) from None


def dump_config(config: Config) -> str:
    """The resolved configuration, every default included, as YAML that `load_config` reads back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"--config {path}: no such file")
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=_FloatLoader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise UserError(f"--config {path}: not valid YAML: {error}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UserError(f"--config {path}: must be a mapping of sections, not {type(tree).__name__}")
    return tree


class _FloatLoader(yaml.SafeLoader):
    """SafeLoader that also reads `1e-3` as a number (YAML 1.1 wants `1.0e-3`)."""


_FloatLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def _parse_override(override: str) -> dict[str, Any]:
    key, separator, text = override.partition("=")
    if not separator or not all(key.split(".")):
        raise UserError(f"override {override!r} is not of the form section.key=value")
    try:
        value: Any = yaml.load(text, Loader=_FloatLoader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise UserError(f"override {override!r}: the value is not valid YAML: {error}") from None
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _merge(base: Any, update: Any) -> Any:
    if isinstance(base, dict) and isinstance(update, dict):
        return {key: _merge(base.get(key), update[key]) if key in update else base[key] for key in {**base, **update}}
    return update


def _describe(problem: Any) -> str:
    location = problem["loc"]
    key = ".".join(str(part) for part in location)
    if problem["type"] == "extra_forbidden":
        known = _known_keys(location[:-1])
        nearest = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.0)
        return f"{key}: unknown key" + (f"; did you mean `{nearest[0]}`?" if nearest else "")
    if problem["type"] == "missing":
        return f"{key}: required and not given"
    return f"{key}: {problem['msg']} (given: {problem['input']!r})"


def _known_keys(path: Iterable[int | str]) -> list[str]:
    """Keys of the section at `path`; list indices and union tags on the way are followed."""
    sections: list[type[BaseModel]] = [Config]
    for part in path:
        fields = [s.model_fields[str(part)].annotation for s in sections if str(part) in s.model_fields]
        if fields:
            sections = [section for field in fields for section in _sections_in(field)]
        else:  # a list index, or the tag of a discriminated union
            tagged = [s for s in sections if "kind" in s.model_fields and s.model_fields["kind"].default == part]
            sections = tagged or sections
    return [name for section in sections for name in section.model_fields]


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) in (Union, types.UnionType, tuple, typing.Annotated):
        return [section for part in typing.get_args(annotation) for section in _sections_in(part)]
    return []
