"""grpo-mega: GRPO with a megatron-core policy and vLLM rollouts, without Ray."""

__version__ = "0.1.0"
