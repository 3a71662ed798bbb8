"""What every test of the model begins and ends with."""

import pytest
from torch.nn import functional


@pytest.fixture(autouse=True)
def restored_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's ZeRO 3 puts its own `linear` in torch's place, for the rest of the process."""
    monkeypatch.setattr(functional, "linear", functional.linear)
