"""GRPO's mathematics: pure functions of tensors. Imports nothing of the project."""
