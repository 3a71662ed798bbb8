"""bf16 copies, fp32 masters; where FP8 is rejected."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from artifacts.errors import UsageError
from model.training.precision import Rounded, require_fp8


def test_the_module_computes_in_bf16_and_its_parameters_stay_fp32() -> None:
    torch.manual_seed(0)
    module = nn.Linear(8, 3)
    exact = nn.Linear(8, 3).bfloat16()
    exact.load_state_dict({k: v.bfloat16() for k, v in module.state_dict().items()})
    x = torch.randn(5, 8).bfloat16()
    found, expected = Rounded(module)(x), exact(x)
    assert found.dtype == torch.bfloat16
    assert found.equal(expected)
    found.float().sum().backward()
    expected.float().sum().backward()
    assert module.weight.grad.dtype == torch.float32
    assert module.weight.grad.equal(exact.weight.grad.float())


def test_gradients_add_up_in_fp32() -> None:
    module = nn.Linear(1, 1, bias=False)
    rounded = Rounded(module)
    for _ in range(300):  # in bf16 the sum would stop at 256
        rounded(torch.ones(1, 1).bfloat16()).float().sum().backward()
    assert float(module.weight.grad) == 300.0


def test_parameters_keep_their_names_inside() -> None:
    rounded = Rounded(nn.Linear(2, 2))
    assert [name for name, _ in rounded.named_parameters()] == ["module.weight", "module.bias"]


def test_fp8_is_refused_where_the_device_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r'"fp8" on cpu: .* 8\.9 or higher; use "bf16"'):
        require_fp8(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    for capability, refused in (((8, 0), True), ((8, 9), False), ((9, 0), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        with pytest.raises(UsageError, match=r"A100 of 8\.0") if refused else nullcontext():
            require_fp8(torch.device("cuda"))
