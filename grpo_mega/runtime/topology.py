"""The grid of ranks. Pure: no torch, no communication."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_mega.errors import UserError


@dataclass(frozen=True)
class Coordinates:
    """A rank's place in the grid."""

    tensor: int
    data: int
    pipeline: int


@dataclass(frozen=True)
class Topology:
    """Sizes of the parallel dimensions; ranks are numbered as megatron-core does: tensor fastest, pipeline slowest."""

    tensor: int
    pipeline: int
    data: int

    @classmethod
    def from_world(cls, world_size: int, tensor: int, pipeline: int) -> Topology:
        """Give the ranks that TP × PP leaves to data parallelism.

        Raises:
            UserError: TP × PP does not divide the number of ranks; the message prints the product.
        """
        if world_size % (tensor * pipeline):
            raise UserError(
                f"parallel.tensor_parallel_size × parallel.pipeline_parallel_size = {tensor} × {pipeline} = "
                f"{tensor * pipeline} does not divide the number of ranks, {world_size}"
            )
        return cls(tensor=tensor, pipeline=pipeline, data=world_size // (tensor * pipeline))

    @property
    def world_size(self) -> int:
        return self.tensor * self.pipeline * self.data

    def coordinates(self, rank: int) -> Coordinates:
        rest, tensor = divmod(rank, self.tensor)
        pipeline, data = divmod(rest, self.data)
        assert pipeline < self.pipeline, f"rank {rank} of {self.world_size}"
        return Coordinates(tensor=tensor, data=data, pipeline=pipeline)

    def rank(self, tensor: int, data: int, pipeline: int) -> int:
        return tensor + self.tensor * (data + self.data * pipeline)

    def layers_of_stage(self, num_layers: int, stage: int) -> range:
        """Global numbers of the layers on a pipeline stage: an even split."""
        per_stage = num_layers // self.pipeline
        return range(stage * per_stage, (stage + 1) * per_stage)

    def describe(self) -> str:
        """The grid as a table, one line a (data, pipeline) pair."""
        lines = [f"{self.world_size} ranks = TP {self.tensor} × PP {self.pipeline} × DP {self.data}"]
        for data in range(self.data):
            for stage in range(self.pipeline):
                ranks = [self.rank(tensor, data, stage) for tensor in range(self.tensor)]
                lines.append(f"  data {data}, stage {stage}: ranks {', '.join(map(str, ranks))}")
        return "\n".join(lines)
