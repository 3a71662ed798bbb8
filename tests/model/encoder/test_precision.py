"""bf16 copies, fp32 masters; where FP8 is rejected."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from cloze.artifacts.errors import UsageError
from cloze.model.encoder.embeddings import embedding_sum
from cloze.model.encoder.precision import Rounded, require_fp8


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


class TwoTables(nn.Module):
    """A table that only look-ups use, and one that a product uses as well, like tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 4)
        self.tied = nn.Embedding(20, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        vectors = embedding_sum((self.words.weight, ids), (self.tied.weight, ids))
        return vectors @ self.tied.weight.mT


@pytest.mark.parametrize("is_kept", [True, False])
def test_gradients_of_tables_are_those_of_every_row_at_each_step(is_kept: bool) -> None:
    torch.manual_seed(0)
    module = TwoTables()
    exact = copy.deepcopy(module).bfloat16()
    rounded = Rounded(module)
    kept = rounded.keep() if is_kept else None
    for ids in ([3, 7, 7, 19], [0, 7], [5], []):  # a row of an earlier step must not remain
        places = torch.tensor(ids, dtype=torch.int64)
        for model in (rounded, exact):
            model(places).float().square().sum().backward()
        parameters = (module.words.weight, module.tied.weight)
        expected = (exact.words.weight.grad, exact.tied.weight.grad)
        for parameter, gradient in zip(parameters, expected, strict=True):
            found = kept.gradients[parameter] if kept else parameter.grad
            torch.testing.assert_close(found.float(), gradient.float(), atol=0.02, rtol=0.02)
        for parameter in (*parameters, *exact.parameters()):
            parameter.grad = None
        if kept:
            kept.gradients.clear()


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
