"""Pieces: which box of a canonical tensor lives where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from grpo_mega.layout.box import Box


@dataclass(frozen=True)
class Piece:
    """Canonical `tensor[box]` lives in `param[local_box]` on `holder`.

    `tensor` is a Hugging Face name, `param` the holder's own parameter name, `holder` a global rank. Both boxes
    have one shape. What a holder has beyond its pieces (rows that pad the vocabulary) has no canonical
    coordinate: it is zero and is never sent.
    """

    tensor: str
    box: Box
    holder: int
    param: str
    local_box: Box

    def __post_init__(self) -> None:
        assert self.box.shape == self.local_box.shape, (self.box, self.local_box)


def check_exact_cover(tensor: str, shape: tuple[int, ...], boxes: Iterable[Box]) -> None:
    """Assert that `boxes` cover every element of a tensor exactly once.

    Raises:
        AssertionError: two boxes overlap, or the volumes do not add up; the message names the tensor.
    """
    boxes = list(boxes)
    for a, b in combinations(boxes, 2):
        assert a.intersect(b) is None, f"{tensor}: {a} and {b} overlap"
    covered, whole = sum(box.numel for box in boxes), Box.whole(shape).numel
    assert covered == whole, f"{tensor}: pieces cover {covered} of {whole} elements"
