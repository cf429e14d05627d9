"""The language in which weights move: boxes of canonical (Hugging Face) tensors and who holds them."""

from grpo_mega.layout.box import Box
from grpo_mega.layout.piece import Piece, check_exact_cover

__all__ = ["Box", "Piece", "check_exact_cover"]
