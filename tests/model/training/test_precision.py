"""bf16 copies, fp32 masters."""

import torch
from torch import nn

from model.training.precision import Rounded


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
