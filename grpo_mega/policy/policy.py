"""The policy: a megatron-core model over TP × PP × DP, with log-probs, gradients and weights as its interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.pipeline_parallel import get_forward_backward_func

from checkpoint_conversion.families import Architecture
from checkpoint_conversion.reader import CheckpointReader
from grpo_mega.config.schema import OptimizerConfig, ParallelConfig
from grpo_mega.ops.vocab_parallel import vocab_parallel_logprobs_entropy
from grpo_mega.policy.batch import SequenceBatch
from grpo_mega.policy.layout import canonical_shapes, megatron_pieces
from grpo_mega.policy.model import build_model
from grpo_mega.policy.optimizer import build_optimizer, build_scheduler
from grpo_mega.policy.statistics import Statistics
from grpo_mega.runtime.agreement import agree
from grpo_mega.runtime.distributed import Runtime
from grpo_mega.runtime.layer_spec import causal_mask, has_transformer_engine
from grpo_mega.weight_sync.gather import CanonicalGather


class TrainingRows(Protocol):
    """Rows of an optimizer step: sequences, and whatever the objective wants beside them."""

    @property
    def sequences(self) -> SequenceBatch: ...

    def rows(self, index: slice) -> TrainingRows: ...

    def to(self, device: torch.device) -> TrainingRows: ...

    def __len__(self) -> int: ...


Objective = Callable[[torch.Tensor, torch.Tensor, Any], tuple[torch.Tensor, Statistics]]
"""(b, T) log-probs and (b, T) entropies of completion tokens (zero elsewhere), and the micro-batch's rows, to this
micro-batch's part of the loss and its statistics. Parts over all micro-batches and ranks add up to the loss."""


@dataclass(frozen=True)
class StepResult:
    """One optimizer step, the same on every rank."""

    statistics: Statistics
    grad_norm: float
    """Global gradient norm before clipping."""
    learning_rate: float


class Policy:
    """One megatron-core GPT model laid over all ranks. Every method is a collective unless it says otherwise."""

    def __init__(
        self,
        architecture: Architecture,
        runtime: Runtime,
        parallel: ParallelConfig,
        dtype: torch.dtype,
        micro_batch_size: int,
        temperature: float = 1.0,
    ) -> None:
        self.architecture = architecture
        self.runtime = runtime
        self.dtype = dtype
        self.micro_batch_size = micro_batch_size
        self.temperature = temperature
        """All log-probs and entropies are of softmax(logits / temperature), the distribution sampled from."""
        self.version = 0
        """Optimizer steps taken: the version of the weights."""
        self._parallel = parallel
        self.module = build_model(architecture, runtime, parallel, dtype)
        self.model: Any = self.module
        """The module, wrapped in megatron-core's DistributedDataParallel once it is trainable."""
        self.optimizer: Any = None
        self.scheduler: Any = None

    # ---- weights ------------------------------------------------------------------------------------------------

    def load_hf(self, directory: Path) -> None:
        """Read this rank's slices of a Hugging Face checkpoint. Rows that pad the vocabulary become zero."""
        agree(lambda: self._load_hf(CheckpointReader(directory)))

    def _load_hf(self, reader: CheckpointReader) -> None:
        reader.check(canonical_shapes(self.architecture))
        params = self.params()
        with torch.no_grad():
            for param in params.values():
                param.zero_()
            for piece in self._pieces(self.runtime.rank):
                params[piece.param][piece.local_box.slices].copy_(reader.read(piece.tensor, piece.box))
        # Over the stage's TP ranks: the last of them may hold nothing but padding of the vocabulary.
        topology, place = self.runtime.topology, self.runtime.coordinates
        stage = [topology.rank(tensor, place.data, place.pipeline) for tensor in range(topology.tensor)]
        unmapped = set(params) - {piece.param for rank in stage for piece in self._pieces(rank)}
        assert not unmapped, f"the {self.architecture.family} table gives no tensor for {sorted(unmapped)}"

    def params(self) -> dict[str, torch.Tensor]:
        """This rank's parameters by Megatron name. Not a collective."""
        return dict(self.module.named_parameters())

    def canonical_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every Hugging Face tensor of the current weights, whole, on every rank; all must exhaust it in step."""
        with torch.no_grad():
            yield from self.gather.tensors(self.params(), self.runtime.device)

    @cached_property
    def gather(self) -> CanonicalGather:
        # Data-parallel replicas hold the same weights: the first one's pieces are all there is to move.
        topology = self.runtime.topology
        ranks = [
            topology.rank(tensor, 0, stage) for stage in range(topology.pipeline) for tensor in range(topology.tensor)
        ]
        pieces = [piece for rank in ranks for piece in self._pieces(rank)]
        return CanonicalGather(pieces, canonical_shapes(self.architecture), self.dtype)

    def _pieces(self, rank: int) -> list[Any]:
        return megatron_pieces(self.architecture, self.runtime.topology, rank, has_transformer_engine())

    # ---- training -----------------------------------------------------------------------------------------------

    def make_trainable(self, config: OptimizerConfig, total_steps: int) -> None:
        """Add gradient buffers, optimizer and schedule to the loaded weights."""
        sharded = self._parallel.use_distributed_optimizer
        self.model = DistributedDataParallel(
            self.module.config,
            DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=sharded),
            self.module,
        )
        self.optimizer = build_optimizer(config, sharded, self.dtype, [self.model])
        self.scheduler = build_scheduler(config, self.optimizer, total_steps)

    def step(self, rows: TrainingRows, objective: Objective, statistics: Statistics) -> StepResult:
        """One optimizer step on the rows of a global batch (all of them on every rank).

        Each data-parallel rank takes a contiguous share. `statistics` is an example that has every name the
        objective returns, for the ranks that compute none.
        """
        gradients = self.gradients(rows, objective, statistics)
        learning_rate = self.learning_rate
        _, grad_norm, _ = self.optimizer.step()
        self.scheduler.step(increment=1)
        self.version += 1
        return StepResult(gradients, float(grad_norm), learning_rate)

    def gradients(self, rows: TrainingRows, objective: Objective, statistics: Statistics) -> Statistics:
        """Forward and backward over the rows; leaves reduced gradients in the buffers for `optimizer.step`."""
        self.model.train()
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()

        def forward_step(data: Iterator[Any], model: torch.nn.Module) -> tuple[torch.Tensor, Any]:
            micro = next(data).to(self.runtime.device)

            def loss(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Statistics]:
                logprobs, entropy = self._token_logprobs(logits, micro.sequences)
                value, part = objective(logprobs, entropy, micro)
                return value, torch.ones((), dtype=torch.int, device=value.device), part

            return self._forward(model, micro.sequences), loss

        parts = self._run_schedule(forward_step, self._micro_batches(rows), rows.sequences, forward_only=False)
        own = parts[0] if parts else statistics
        for part in parts[1:]:
            own = own.merge(part)
        return own.reduce(self.runtime.reports_results, statistics)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next optimizer step. Not a collective."""
        return float(self.optimizer.param_groups[0]["lr"])

    # ---- log-probs ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def logprobs(self, sequences: SequenceBatch) -> torch.Tensor:
        """(B, T) float32 log-probs of the completion tokens on every rank's CPU, zero outside completions.

        B must be a multiple of data-parallel size × micro-batch size.
        """
        result = torch.zeros(len(sequences), sequences.width)
        return self._collect(sequences, lambda logits, micro: self._token_logprobs(logits, micro)[0], result)

    @torch.no_grad()
    def last_logits(self, sequences: SequenceBatch, consume: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """(B,) int64 results of `consume`, which gets the (b, V/tp) logits after each row's last token.

        `consume` runs on every TP rank of the last stage, one micro-batch after another; its results go to all ranks.
        """

        def after_last_token(logits: torch.Tensor, micro: SequenceBatch) -> torch.Tensor:
            last = micro.prompt_lengths + micro.completion_lengths - 1
            return consume(logits[torch.arange(len(micro), device=logits.device), last])

        return self._collect(sequences, after_last_token, torch.zeros(len(sequences), dtype=torch.int64))

    def _collect(
        self,
        sequences: SequenceBatch,
        consume: Callable[[torch.Tensor, SequenceBatch], torch.Tensor],
        result: torch.Tensor,
    ) -> torch.Tensor:
        """Forward only; `consume` turns a micro-batch's (b, S, V/tp) logits into b rows. All rows go to all ranks.

        `result` is the zeros to put them in, on the CPU, B rows.
        """
        self.model.eval()

        def forward_step(data: Iterator[Any], model: torch.nn.Module) -> tuple[torch.Tensor, Any]:
            micro = next(data).to(self.runtime.device)

            def collect(logits: torch.Tensor, non_loss_data: bool) -> torch.Tensor:
                return consume(logits, micro)

            return self._forward(model, micro), collect

        parts = self._run_schedule(forward_step, self._micro_batches(sequences), sequences, forward_only=True)
        if self.runtime.reports_results:
            result[self.own_rows(len(sequences))] = torch.cat(parts).to(device="cpu", dtype=result.dtype)
        dist.all_reduce(result)  # every row is non-zero on one rank only, so the sum is exact
        return result

    # ---- shared pieces ------------------------------------------------------------------------------------------

    def own_rows(self, total: int) -> slice:
        """This data-parallel rank's contiguous share of the rows."""
        data = self.runtime.topology.data
        assert total % (data * self.micro_batch_size) == 0, (total, data, self.micro_batch_size)
        share = total // data
        return slice(self.runtime.coordinates.data * share, (self.runtime.coordinates.data + 1) * share)

    def _micro_batches(self, rows: Any) -> list[Any]:
        own = rows.rows(self.own_rows(len(rows)))
        return [
            own.rows(slice(start, start + self.micro_batch_size)) for start in range(0, len(own), self.micro_batch_size)
        ]

    def _run_schedule(
        self, forward_step: Any, micro_batches: list[Any], sequences: SequenceBatch, forward_only: bool
    ) -> list[Any]:
        """megatron-core's pipeline schedule; what the last stage collected, empty on the other stages."""
        length = sequences.tokens.shape[1]
        return get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iter(micro_batches),
            model=self.model,
            num_microbatches=len(micro_batches),
            seq_length=length,
            decoder_seq_length=length,
            micro_batch_size=self.micro_batch_size,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )

    def _forward(self, model: torch.nn.Module, sequences: SequenceBatch) -> torch.Tensor:
        """(b, S, V/tp) logits on the last stage, hidden states on the others."""
        batch, length = sequences.tokens.shape
        positions = torch.arange(length, device=sequences.tokens.device).expand(batch, length)
        return model(sequences.tokens, positions, causal_mask(length, sequences.tokens.device))

    def _token_logprobs(self, logits: torch.Tensor, sequences: SequenceBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """(b, T) log-probs and entropies from (b, S, V/tp) logits; only rows that predict completions are computed."""
        row, position, target = sequences.predicting_positions()
        logprobs, entropy = vocab_parallel_logprobs_entropy(
            logits[row, position],
            target,
            self.runtime.tensor_group,
            self.architecture.vocab_size,
            self.temperature,
        )
        return sequences.scatter(logprobs), sequences.scatter(entropy)
