"""Log-probs and entropy over a vocabulary that is split across ranks, without ever gathering it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def vocab_parallel_logprobs_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    group: dist.ProcessGroup,
    vocab_size: int,
    temperature: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each target and entropy of each distribution, both differentiable.

    Args:
        logits: (N, V/tp), this rank's columns of the vocabulary; any floating dtype, float32 inside.
        targets: (N,) global token ids, the same on every rank of the group, each below `vocab_size`.
        group: the tensor-parallel group. Forward is two collectives that every rank must join (one MAX, one packed
            SUM); backward has none.
        vocab_size: columns whose global number is not below this pad the vocabulary: they have no probability.
        temperature: logits are divided by it; the gradient is with respect to the logits given.

    Returns:
        (N,) log-probs and (N,) entropies in nats, float32, the same on every rank.

    With z = logits / temperature and p = softmax(z) over the whole vocabulary:
    log p_t = z_t - log Σ exp z, so ∂ log p_t / ∂z_j = 1[j = t] - p_j, on every shard and not only the one that owns t;
    H = log Σ exp z - Σ p z, so ∂H/∂z_j = -p_j (z_j - Σ p z).
    """
    return _LogprobsEntropy.apply(logits, targets, group, vocab_size, temperature)


class _LogprobsEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        targets: torch.Tensor,
        group: dist.ProcessGroup,
        vocab_size: int,
        temperature: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        columns = logits.shape[-1]
        first = dist.get_rank(group) * columns
        z = _scaled(logits, temperature)
        real = max(0, min(columns, vocab_size - first))  # columns from here on pad the vocabulary

        maximum = z[:, :real].amax(-1) if real else z.new_full(z.shape[:1], -torch.inf)
        dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=group)

        shifted = z[:, :real] - maximum[:, None]
        weights = shifted.exp()
        # A column at -inf has weight 0 and adds 0 to Σ p z, not 0 × -inf.
        weighted = torch.where(weights > 0, weights * shifted, 0.0)
        owned = (targets >= first) & (targets < first + real)
        local_target = torch.where(owned, targets - first, 0)
        target = torch.zeros_like(maximum)
        if real:
            target = torch.where(owned, shifted.gather(1, local_target[:, None])[:, 0], 0.0)
        packed = torch.stack((weights.sum(-1), weighted.sum(-1), target))
        dist.all_reduce(packed, group=group)
        total, weighted_total, target = packed.unbind()

        log_total = total.log()
        mean = weighted_total / total  # Σ p z - maximum
        ctx.save_for_backward(logits, local_target, owned, maximum + log_total, maximum + mean)
        ctx.real, ctx.temperature = real, temperature
        return target - log_total, log_total - mean

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad_logprob, grad_entropy = grads
        logits, local_target, owned, log_total, mean = ctx.saved_tensors
        grad = torch.zeros(logits.shape, dtype=torch.float32, device=logits.device)
        if ctx.real:
            z = _scaled(logits, ctx.temperature)[:, : ctx.real]
            p = (z - log_total[:, None]).exp()
            centred = torch.where(p > 0, z - mean[:, None], 0.0)
            grad[:, : ctx.real] = -p * (grad_logprob[:, None] + grad_entropy[:, None] * centred)
            grad.scatter_add_(1, local_target[:, None], torch.where(owned, grad_logprob, 0.0)[:, None])
        return (grad / ctx.temperature).to(logits.dtype), None, None, None, None


def _scaled(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    z = logits.float()
    return z if temperature == 1.0 else z / temperature


def vocab_parallel_gumbel_argmax(
    logits: torch.Tensor,
    noise: torch.Tensor,
    group: dist.ProcessGroup,
    vocab_size: int,
    temperature: float,
) -> torch.Tensor:
    """Sample from softmax(logits / temperature) as the argmax of logits / temperature + Gumbel noise.

    Args:
        logits: (N, V/tp) local columns.
        noise: (N, vocab_size) Gumbel noise over the whole vocabulary, the same on every rank: samples then do not
            depend on how the vocabulary is split.
        group: tensor-parallel group; two all-reduces that every rank must join.

    Returns:
        (N,) sampled token ids, the same on every rank.
    """
    columns = logits.shape[-1]
    first = dist.get_rank(group) * columns
    real = max(0, min(columns, vocab_size - first))
    score = logits.new_full(logits.shape[:1], -torch.inf, dtype=torch.float32)
    token = torch.full_like(score, vocab_size, dtype=torch.int64)
    if real:
        score, token = (_scaled(logits, temperature)[:, :real] + noise[:, first : first + real]).max(-1)
        token = token + first
    best = score.clone()
    dist.all_reduce(best, op=dist.ReduceOp.MAX, group=group)
    token = torch.where(score == best, token, vocab_size)
    dist.all_reduce(token, op=dist.ReduceOp.MIN, group=group)  # a tie goes to the lowest token id
    return token
