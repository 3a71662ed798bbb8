"""Setup and teardown shared by all model tests."""

import pytest
from torch.nn import functional


@pytest.fixture(autouse=True)
def restored_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's ZeRO 3 replaces torch's `linear` for the rest of the process."""
    monkeypatch.setattr(functional, "linear", functional.linear)
