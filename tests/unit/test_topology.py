"""The grid of ranks."""

from __future__ import annotations

import pytest

from grpo_mega.errors import UserError
from grpo_mega.runtime.topology import Topology


@pytest.mark.parametrize(("tp", "pp", "dp"), [(1, 1, 1), (2, 2, 2), (4, 2, 3), (8, 4, 4)])
def test_coordinates_are_megatron_cores(tp: int, pp: int, dp: int) -> None:
    """Against megatron-core's own rank generator, the order `tp-cp-ep-dp-pp`."""
    from megatron.core.parallel_state import RankGenerator

    generator = RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=1, order="tp-cp-ep-dp-pp")
    topology = Topology(tensor=tp, pipeline=pp, data=dp)
    for name, attribute in (("tp", "tensor"), ("pp", "pipeline"), ("dp", "data")):
        for group in generator.get_ranks(name):
            places = [topology.coordinates(rank) for rank in group]
            assert [getattr(place, attribute) for place in places] == list(range(len(group)))
    for rank in range(topology.world_size):
        place = topology.coordinates(rank)
        assert topology.rank(place.tensor, place.data, place.pipeline) == rank


def test_the_mismatch_prints_the_product() -> None:
    with pytest.raises(UserError, match=r"= 2 × 3 = 6 does not divide the number of ranks, 8"):
        Topology.from_world(8, tensor=2, pipeline=3)


def test_layers_are_split_evenly_in_order() -> None:
    topology = Topology(tensor=1, pipeline=4, data=1)
    assert [layer for stage in range(4) for layer in topology.layers_of_stage(12, stage)] == list(range(12))
