from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ranks import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Four gloo ranks shared by all tests of the session."""
    pool = RankPool(4)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`checkpoint("qwen2")` is the directory of a tiny random checkpoint of that family."""
    from tests.models import make_checkpoint

    root, made = tmp_path_factory.mktemp("checkpoints"), {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = make_checkpoint(root, family)
        return made[family]

    return get
