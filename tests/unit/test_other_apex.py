"""The index's `apex` is not NVIDIA's."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest

from grpo_mega.errors import UserError
from grpo_mega.runtime.distributed import refuse_the_other_apex


@pytest.mark.parametrize(
    ("summary", "refused"),
    [
        ("Pyramid toolkit to add Velruse, Flash Messages,CSRF, ReCaptcha and Sessions", True),
        ("PyTorch Extensions written by NVIDIA", False),
        (None, False),
    ],
)
def test_the_other_apex_is_refused(summary: str | None, refused: bool, monkeypatch: Any) -> None:
    def metadata(name: str) -> dict[str, str]:
        assert name == "apex"
        if summary is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return {"Summary": summary}

    monkeypatch.setattr(importlib.metadata, "metadata", metadata)
    if refused:
        with pytest.raises(UserError, match="is not NVIDIA's"):
            refuse_the_other_apex()
    else:
        refuse_the_other_apex()
