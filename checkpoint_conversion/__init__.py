"""Hugging Face checkpoints in and out: family tables, a reader and a writer of safetensors, GGUF import."""
