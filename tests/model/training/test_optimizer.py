"""The optimizers match their papers and the reference, number by number."""

import copy
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cloze.model.config import OptimizerConfig
from cloze.model.encoder.operations import products
from cloze.model.encoder.operations.native_kernels import kernels
from cloze.model.encoder.precision import Rounded
from cloze.model.training.optimizer import (
    AdamW,
    Lamb,
    Schedule,
    StableAdamW,
    build_optimizer,
    clip,
    orthogonal,
    parameter_groups,
)

STEPS = 12


def _problem(seed: int = 0) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(6, 4)), [rng.normal(size=(6, 4)) * 0.1 for _ in range(STEPS)]


def _reference_adamw(
    weights: np.ndarray, gradients: list[np.ndarray], config: OptimizerConfig
) -> np.ndarray:
    """google-research/bert, optimization.py:130-151, optionally with bias correction."""
    m, v, w = np.zeros_like(weights), np.zeros_like(weights), weights.copy()
    for t, g in enumerate(gradients, start=1):
        m = config.beta1 * m + (1 - config.beta1) * g
        v = config.beta2 * v + (1 - config.beta2) * g**2
        c1, c2 = (1 - config.beta1**t, 1 - config.beta2**t) if config.bias_correction else (1, 1)
        update = (m / c1) / (np.sqrt(v / c2) + config.eps) + config.weight_decay * w
        w = w - config.learning_rate * update
    return w


def _run(optimizer: torch.optim.Optimizer, p: torch.nn.Parameter, gs: list[np.ndarray]) -> None:
    for g in gs:
        optimizer.param_groups[0]["lr"] = 1e-2
        p.grad = torch.tensor(g)
        optimizer.step()


@pytest.mark.parametrize("bias_correction", [False, True])
def test_adamw_equals_the_reference(bias_correction: bool) -> None:
    config = OptimizerConfig(learning_rate=1e-2, bias_correction=bias_correction)
    weights, gradients = _problem()
    parameter = torch.nn.Parameter(torch.tensor(weights))
    optimizer = AdamW(parameter_groups([("w", parameter)], weight_decay=0.01), config=config)
    _run(optimizer, parameter, gradients)
    expected = _reference_adamw(weights, gradients, config)
    np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_uncorrected_first_updates_are_larger_than_corrected_ones() -> None:
    weights, gradients = _problem()
    moved = {}
    for corrected in (False, True):
        config = OptimizerConfig(learning_rate=1e-2, bias_correction=corrected)
        moved[corrected] = np.abs(_reference_adamw(weights, gradients[:10], config) - weights).sum()
    assert moved[False] > 3 * moved[True]


def test_a_rate_of_zero_changes_nothing() -> None:
    parameter = torch.nn.Parameter(torch.randn(5, 5))
    before = parameter.detach().clone()
    optimizer = AdamW(
        parameter_groups([("w", parameter)], weight_decay=0.01), config=OptimizerConfig()
    )
    parameter.grad = torch.randn(5, 5)
    optimizer.step()
    assert torch.equal(parameter, before)


def test_gradients_are_clipped_by_their_global_norm() -> None:
    for scale, expected in ((2.0, 0.5), (0.1, 0.1)):
        gradients = [torch.full((2,), scale) for _ in range(2)]
        assert clip(gradients, 1.0) == pytest.approx(2 * scale)
        for gradient in gradients:
            torch.testing.assert_close(gradient, torch.full((2,), expected), rtol=1e-5, atol=0)


@pytest.mark.parametrize("bias_correction", [False, True])
def test_lamb_equals_its_paper(bias_correction: bool) -> None:
    config = OptimizerConfig(name="lamb", learning_rate=1e-2, bias_correction=bias_correction)
    weights, gradients = _problem(1)
    parameter = torch.nn.Parameter(torch.tensor(weights))
    optimizer = Lamb(parameter_groups([("w", parameter)], weight_decay=0.01), config=config)
    _run(optimizer, parameter, gradients)
    m, v, w = np.zeros_like(weights), np.zeros_like(weights), weights.copy()
    for t, g in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        c1, c2 = (1 - 0.9**t, 1 - 0.999**t) if bias_correction else (1, 1)
        r = (m / c1) / (np.sqrt(v / c2) + 1e-6) + 0.01 * w
        w = w - 1e-2 * np.linalg.norm(w) / np.linalg.norm(r) * r
    np.testing.assert_allclose(parameter.detach().numpy(), w, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("bias_correction", [False, True])
def test_stable_adamw_equals_its_paper_and_shortens_steps_after_a_jump(
    bias_correction: bool,
) -> None:
    config = OptimizerConfig(name="stable_adamw", bias_correction=bias_correction)
    weights, gradients = _problem(2)
    gradients[STEPS - 2] *= 1000
    parameter = torch.nn.Parameter(torch.tensor(weights))
    optimizer = StableAdamW(parameter_groups([("w", parameter)], weight_decay=0.01), config=config)
    _run(optimizer, parameter, gradients)
    m, v, w = np.zeros_like(weights), np.zeros_like(weights), weights.copy()
    for t, g in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        c1, c2 = (1 - 0.9**t, 1 - 0.999**t) if bias_correction else (1, 1)
        excess = np.sqrt(np.mean(g**2 / np.maximum(v / c2, 1e-6**2)))
        assert t != STEPS - 1 or excess > 3
        rate = 1e-2 / max(1, excess)
        w = w - rate * ((m / c1) / (np.sqrt(v / c2) + 1e-6) + 0.01 * w)
    np.testing.assert_allclose(parameter.detach().numpy(), w, rtol=1e-10, atol=1e-10)


def _muon(
    shapes: dict[str, tuple[int, ...]], *, precision: str = "fp32"
) -> tuple[torch.optim.Optimizer, dict[str, torch.nn.Parameter]]:
    torch.manual_seed(3)
    parameters = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    config = OptimizerConfig(name="muon", weight_decay=0.1, bias_correction=True)
    optimizer = build_optimizer(parameters.items(), config=config, precision=precision)
    return optimizer, parameters


def _train(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]) -> None:
    draws = torch.Generator().manual_seed(4)
    for _ in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=draws)
        optimizer.step()


@pytest.mark.parametrize("shape", [(6, 6), (4, 16), (16, 4), (40, 70)])
def test_muon_equals_its_definition(shape: tuple[int, int]) -> None:
    optimizer, parameters = _muon({"layers.0.weight": shape})
    (parameter,) = parameters.values()
    w = parameter.detach().numpy().astype(np.float64)
    _train(optimizer, [parameter])
    draws, m = torch.Generator().manual_seed(4), np.zeros(shape)
    for _ in range(STEPS):
        g = torch.randn(shape, generator=draws).numpy().astype(np.float64)
        m = 0.95 * m + 0.05 * g
        x = 0.05 * g + 0.95 * m
        x = x / np.linalg.norm(x)
        x = x.T if shape[0] > shape[1] else x
        for _ in range(5):
            s = x @ x.T
            x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
        x = x.T if shape[0] > shape[1] else x
        w = w * (1 - 1e-2 * 0.1) - 1e-2 * 0.2 * np.sqrt(max(shape)) * x
    np.testing.assert_allclose(parameter.detach().numpy(), w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(48, 48), (32, 120), (120, 32)])
def test_muon_in_fp32_survives_small_singular_values(shape: tuple[int, int]) -> None:
    draws = torch.Generator().manual_seed(5)
    size = min(shape)
    left, right = (
        torch.linalg.qr(torch.randn(n, size, generator=draws, dtype=torch.float64))[0]
        for n in shape
    )
    values = torch.logspace(0, -6, size, dtype=torch.float64)
    found = orthogonal((left * values @ right.mT)[None].float())[0].double()
    values /= values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    torch.testing.assert_close(found, left * values @ right.mT, rtol=0, atol=1e-3)


def by_numbers_of_threads(given: Tensor) -> list[Tensor]:
    """The orthogonal matrices as 1, 2 and 3 threads compute them."""
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(orthogonal(given))
    torch.set_num_threads(before)
    return found


@pytest.mark.parametrize("shape", [(64, 96), (96, 64), (37, 37), (7, 300)])
def test_matrices_in_fp32_are_orthogonalised_as_in_float64_by_any_number_of_threads(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "has_fast_fp32_library", lambda: False)
    torch.manual_seed(6)
    given = torch.randn(4, *shape)
    given[2] = 0.0
    expected = orthogonal(given.double())
    found = by_numbers_of_threads(given)
    for each in found:
        assert not each[2].any()
        torch.testing.assert_close(each.double(), expected, rtol=0, atol=2e-4)
        assert torch.equal(each, found[0])
    given[1, 2, 3] = torch.nan
    assert orthogonal(given)[1].isnan().all()


@pytest.mark.parametrize("shape", [(64, 96), (96, 64), (32, 32), (256, 1024), (40, 64)])
def test_matrices_in_bf16_are_orthogonalised_as_in_float64_by_any_number_of_threads(
    shape: tuple[int, int],
) -> None:
    torch.manual_seed(6)
    given = torch.randn(4, *shape).bfloat16()
    given[2] = 0.0
    expected = orthogonal(given.double())
    found = by_numbers_of_threads(given)
    for each in found:
        assert not each[2].any()
        error = (each.double() - expected).norm() / expected.norm()
        assert error < 0.02
        native = kernels(given.dtype)
        if native is not None and native.has_tiles and shape != (40, 64):
            assert torch.equal(each, found[0])


def test_muon_in_bf16_equals_torchs_own() -> None:
    shapes = {"layers.0.in": (32, 8), "layers.0.out": (8, 32), "layers.1.in": (32, 8)}
    optimizer, parameters = _muon(shapes, precision="bf16")
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in parameters.values()]
    reference = torch.optim.Muon(theirs, lr=0.0, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    _train(optimizer, list(parameters.values()))
    _train(reference, theirs)
    for one, other in zip(parameters.values(), theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-3)  # 12 steps of about 2e-3 each


def test_muon_leaves_all_but_the_layers_matrices_to_adamw() -> None:
    names = ("embeddings.word_embeddings.weight", "layers.0.bias", "pooler.weight")
    shapes: dict[str, tuple[int, ...]] = dict(zip(names, [(9, 4), (4,), (4, 4)], strict=True))
    muon, ours = _muon(shapes | {"layers.0.weight": (4, 4)})
    rest = {name: torch.nn.Parameter(ours[name].detach().clone()) for name in names}
    config = OptimizerConfig(weight_decay=0.1, bias_correction=True)
    adamw = build_optimizer(rest.items(), config=config)
    _train(muon, [ours[name] for name in names])
    _train(adamw, list(rest.values()))
    for name in names:
        assert torch.equal(ours[name], rest[name])


def test_biases_and_layer_norms_are_not_decayed_and_embeddings_are() -> None:
    names = [
        "encoder.embeddings.word_embeddings.weight",
        "encoder.embeddings.layer_norm.weight",
        "encoder.layers.0.attention.output.weight",
        "encoder.layers.0.attention.output.layer_norm_weight",
        "encoder.layers.0.attention.projection.query_bias",
        "masked_lm.output_bias",
    ]
    parameters = {name: torch.nn.Parameter(torch.zeros(1)) for name in names}
    decayed, undecayed = parameter_groups(parameters.items(), weight_decay=0.01)
    assert [decayed["weight_decay"], undecayed["weight_decay"]] == [0.01, 0.0]
    assert [next(n for n in names if parameters[n] is p) for p in decayed["params"]] == [
        names[0],
        names[2],
    ]


RECIPE = OptimizerConfig(learning_rate=1e-4, warmup_steps=10)


def _rate(step: int) -> float:
    return Schedule(RECIPE, 100)(step)


def test_it_begins_at_zero_and_rises_linearly() -> None:
    assert _rate(0) == 0.0
    assert _rate(5) == pytest.approx(0.5e-4)
    assert _rate(9) == pytest.approx(0.9e-4)


def test_it_drops_to_the_decay_line_that_began_at_step_0() -> None:
    assert _rate(10) == pytest.approx(1e-4 * (1 - 10 / 100))


def test_it_ends_at_zero() -> None:
    assert _rate(99) == pytest.approx(1e-6)
    assert _rate(100) == 0.0


def test_no_warmup_begins_at_the_peak() -> None:
    assert Schedule(OptimizerConfig(warmup_steps=0), 10)(0) == 1e-4


def test_wsd_warms_up_stays_and_falls_by_one_minus_the_root_to_zero() -> None:
    recipe = RECIPE.model_copy(update={"schedule": "wsd", "decay_share": 0.2})
    rates = [Schedule(recipe, 100)(step) for step in range(101)]
    assert rates[:10] == pytest.approx([1e-5 * step for step in range(10)])
    assert rates[10:81] == pytest.approx([1e-4] * 71)
    assert rates[80:] == pytest.approx([1e-4 * (1 - (n / 20) ** 0.5) for n in range(21)], abs=1e-12)


def test_further_steps_warm_up_a_second_time_to_the_line_of_the_longer_run() -> None:
    def rate(step: int) -> float:
        return Schedule(RECIPE, 200, steps_before=100)(step)

    assert rate(100) == 0.0
    assert rate(105) == pytest.approx(0.5 * 1e-4 * (1 - 105 / 200))
    assert rate(110) == pytest.approx(1e-4 * (1 - 110 / 200))
    assert rate(200) == 0.0


def test_a_shortened_schedule_keeps_its_form_and_ends_at_zero() -> None:
    shorter = Schedule(RECIPE, 100).ending_at(60, after=40)
    assert shorter.end == 60
    assert [shorter(step) for step in range(41)] == [_rate(step) for step in range(41)]
    # 60 steps as planned are passed through in 20: three at a time
    assert shorter(41) == pytest.approx(1e-4 * (1 - 43 / 100))
    assert shorter(59) == pytest.approx(1e-4 * (1 - 97 / 100))
    assert shorter(60) == 0.0
    again = shorter.ending_at(52, after=50)  # at 70 of 100 as planned; 15 at a time
    assert again.end == 52
    assert [again(50), again(51)] == pytest.approx([1e-4 * 0.3, 1e-4 * 0.15])


def test_a_schedule_may_end_at_once() -> None:
    assert Schedule(RECIPE, 100).ending_at(40, after=40)(39) == _rate(39)


class PartlyUsed(nn.Module):
    """A matrix updated by Muon, an unused head; gradients that do not depend on the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(130, 140))
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


@pytest.mark.skipif(kernels() is None, reason="no gcc here")
@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_kept_copies_and_gradients_train_like_rounding_at_every_step(
    name: Literal["adamw", "muon"],
    bias_correction: bool,
    micro_batches: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = OptimizerConfig(name=name, bias_correction=bias_correction)
    torch.manual_seed(0)
    module, parts = PartlyUsed(), torch.randn(micro_batches, 200, 130).bfloat16()
    weights = torch.randn(200, 140)  # so that gradients have full rank

    def train(module: PartlyUsed, *, keep: bool) -> tuple[AdamW, list[float]]:
        optimizer = build_optimizer(module.named_parameters(), config=config, precision="bf16")
        assert isinstance(optimizer, AdamW)
        rounded, norms = Rounded(module), []
        if keep:
            optimizer.compute_with(rounded)
        for _ in range(4):
            for group in optimizer.param_groups:
                group["lr"] = 1e-3
            for part in parts:
                (rounded(part).float() * weights).sum().backward()
            norms.append(float(optimizer.shorten(1.0)))
            optimizer.step()
            optimizer.zero_grad()
        return optimizer, norms

    twin, before = copy.deepcopy(module), copy.deepcopy(list(module.parameters()))
    optimizer, norms = train(module, keep=True)
    monkeypatch.setattr("cloze.model.training.optimizer.kernels", lambda: None)
    _, expected_norms = train(twin, keep=False)
    assert norms == pytest.approx(expected_norms, rel=1e-5)
    assert optimizer.kept is not None
    for start, found, expected in zip(before, module.parameters(), twin.parameters(), strict=True):
        # Rounding Muon's momentum differently changes the update of the whole matrix.
        nearness = 0.02 if name == "muon" and found.shape == (140, 130) else 1e-5
        assert (found - expected).norm() <= nearness * (found - start).norm()
        assert torch.equal(optimizer.kept.copies[found], found.bfloat16())
    assert not optimizer.kept.gradients


def test_parameters_without_gradients_decay_by_every_steps_rate() -> None:
    config = OptimizerConfig(
        learning_rate=0.1, weight_decay=0.5, warmup_steps=0, schedule="constant"
    )
    assert Schedule(config, 3).missed_decay(2) == pytest.approx(0.95**2)
