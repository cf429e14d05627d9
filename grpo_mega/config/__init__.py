"""The configuration tree, its loading and its arithmetic. Importable without torch."""

from grpo_mega.config.loading import dump_config, load_config, validate_config
from grpo_mega.config.schema import Config

__all__ = ["Config", "dump_config", "load_config", "validate_config"]
