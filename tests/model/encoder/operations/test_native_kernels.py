"""Compiled kernels: the same numbers as plain torch, including NaNs; and no compiler at all."""

import math
import os
import platform
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from cloze.artifacts import rng
from cloze.model.data.batch import pack_sequences
from cloze.model.encoder.losses import native_softmax_gradient
from cloze.model.encoder.modern import norm_product
from cloze.model.encoder.operations import native_kernels as native
from cloze.model.encoder.operations import products
from cloze.model.encoder.operations.activation import activate_, activation_gradients, gated_gelu
from cloze.model.encoder.operations.attention import layer_attention
from cloze.model.encoder.operations.dropout import Noise, dropout_draws, dropped
from cloze.model.encoder.operations.grouped_attention import GroupedAttention
from cloze.model.encoder.operations.native_kernels import choose_kernels, kernels, kernels_in_use
from cloze.model.encoder.operations.products import (
    affine,
    bias_gradient,
    product,
    transposed,
    transposed_product,
    transposed_products,
)
from cloze.model.encoder.operations.residual import residual_norm, residual_norm_gradients
from tests.model.encoder.encoder_builders import (
    MIXED_LENGTHS,
    random_examples,
    random_model,
    small_config,
)

needs_compiler = pytest.mark.skipif(kernels() is None, reason="no gcc here")
both_types = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
TOKENS, WIDTH = 77, 48
ROUNDING = {torch.bfloat16: 2.0**-7, torch.float32: 2e-6}
"""Two roundings, relative; for float32, also the order of summation."""


@pytest.fixture(autouse=True)
def choose_freely_afterwards() -> Iterator[None]:
    yield
    choose_kernels("auto")


def random_values(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    error = ROUNDING[found.dtype]
    torch.testing.assert_close(found.double(), expected.double(), rtol=error, atol=error)


def assert_rounded(
    both_ways: Callable[[native.Choice, torch.dtype], tuple[torch.Tensor, ...]],
) -> None:
    """The kernels agree with torch in float32, up to the rounding of each dtype."""
    expected = both_ways("torch", torch.float32)
    for dtype, rounding in ROUNDING.items():
        for ours, exact in zip(both_ways("native", dtype), expected, strict=True):
            error = ours.float() - exact
            assert error.norm() < rounding * exact.norm()
            assert error.abs().max() < 2 * rounding * exact.abs().max()


@needs_compiler
@both_types
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_a_modern_layers_parts_equal_torchs_forward_and_backward(
    name: str, dtype: torch.dtype
) -> None:
    hidden = random_values(TOKENS, WIDTH, dtype=dtype)
    weight = random_values(2 * WIDTH, WIDTH, seed=1, dtype=dtype)
    norm = 1 + 0.1 * random_values(WIDTH, seed=2, dtype=dtype)

    def computed(choice: native.Choice) -> list[torch.Tensor]:
        choose_kernels(choice)
        given = [x.clone().requires_grad_() for x in (hidden, norm, weight)]
        inner, residual = norm_product(*given, 1e-5)
        gated = gated_gelu(inner, name)
        with torch.no_grad():
            again = gated_gelu(norm_product(*given, 1e-5)[0], name)
            assert_near(again, gated)  # float32: compiled twice, the last bit may differ
            assert dtype == torch.float32 or torch.equal(again, gated)
        total = (gated * 0.1).sum() + (residual * 0.3).sum()
        return [gated, residual, *torch.autograd.grad(total, given)]

    for found, expected in zip(computed("native"), computed("torch"), strict=True):
        assert (found - expected).abs().max() < 4 * ROUNDING[dtype] * expected.abs().max()


@needs_compiler
@both_types
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
@torch.no_grad()
def test_gelu_is_rounded_from_the_exact_value(name: str, dtype: torch.dtype) -> None:
    values = torch.linspace(-9, 9, 4001).to(dtype).view(1, -1)
    rounding = ROUNDING[dtype] / 2
    approximate = "tanh" if name == "gelu_tanh" else "none"
    expected = torch.nn.functional.gelu(values.double(), approximate=approximate)
    active, kept = activate_(values.clone(), name)
    torch.testing.assert_close(active.double(), expected, rtol=rounding, atol=1e-6)
    gradient = torch.ones_like(values)
    found, sums = activation_gradients(gradient.clone(), kept, name)
    slope = torch.ops.aten.gelu_backward(
        gradient.double(), values.double(), approximate=approximate
    )
    torch.testing.assert_close(found.double(), slope, rtol=rounding, atol=1e-6)
    assert_near(sums, found[0])


@needs_compiler
@both_types
@pytest.mark.parametrize(("probability", "width"), [(0.0, WIDTH), (0.1, WIDTH), (0.1, 1030)])
def test_the_end_of_a_sub_layer_is_that_of_torch(
    probability: float, width: int, dtype: torch.dtype
) -> None:
    residual, dense, gradient = (
        random_values(TOKENS, width, seed=seed, dtype=dtype) for seed in (0, 1, 4)
    )
    weight, bias = (random_values(width, seed=seed, dtype=dtype) for seed in (2, 3))
    norm = (weight, bias, 1e-12)
    draws = dropout_draws(Noise((1,)), TOKENS * width, probability=probability)
    names = ("output", "sum", "residual", "dense", "dense_bias", "norm_weight", "norm_bias")
    results = {}
    for choice in ("native", "torch"):
        choose_kernels(choice)
        output, kept = residual_norm(dense.clone(), residual, norm, draws)
        gradients = residual_norm_gradients(gradient, kept, norm[0], draws)
        results[choice] = dict(zip(names, (output, kept[0], *gradients), strict=True))
    for name, expected in results["torch"].items():
        distance = (results["native"][name].float() - expected.float()).norm()
        assert distance < ROUNDING[dtype] * expected.float().norm(), name


@needs_compiler
@both_types
def test_the_loss_is_exact_and_its_gradient_rounded_once(dtype: torch.dtype) -> None:
    logits, bias = random_values(1003, 9, dtype=dtype) * 3, random_values(1003, seed=1, dtype=dtype)
    labels = torch.arange(9) * 100
    logits[[300, 400, 500], 4] = 50.0
    bias[[300, 400, 500]] = torch.tensor([-1.0, 0.0, 0.0]).to(dtype)
    logits[700, 7] = 50.0
    labels[8] = -1  # nothing is predicted
    whole = (logits.double() + bias.double()[:, None]).mT
    expected = torch.nn.functional.cross_entropy(whole, labels, reduction="sum", ignore_index=-1)
    gradient = whole.softmax(-1)
    gradient[torch.arange(8), labels[:8]] -= 1
    gradient[8] = 0
    hits = (whole.argmax(-1) == labels).sum()
    found = logits.clone()
    factors, loss, correct = native_softmax_gradient(found, bias, labels)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    scaled = found.double() * factors
    torch.testing.assert_close(scaled.mT, gradient, rtol=ROUNDING[dtype] / 2, atol=1e-7)
    assert correct == hits and hits >= 2


@needs_compiler
@both_types
@pytest.mark.parametrize("shape", [(50, 30), (3, 1027), (2, 70_001)])
def test_kernels_and_torch_drop_the_same_values(shape: tuple[int, int], dtype: torch.dtype) -> None:
    values = random_values(*shape, dtype=dtype)
    draws = dropout_draws(Noise((3, 4)), values.numel(), probability=0.3)
    assert draws is not None
    found, bits = dropped(values, draws), draws.bits
    choose_kernels("torch")
    assert_near(found, dropped(values, draws))
    assert torch.equal(found == 0, dropped(values, draws) == 0)
    assert torch.equal(bits, draws.bits)
    words = rng.draw(np.uint64(draws.stream), np.arange(-(-values.numel() // 4)))
    assert np.array_equal(bits.numpy(), words.view(np.int16)[: values.numel()])


@needs_compiler
@pytest.mark.parametrize("shape", [(3307, 256), (32, 48), (31, 64), (1, 8), (100, 7)])
def test_a_compiled_transpose_is_the_transpose(shape: tuple[int, int]) -> None:
    values = random_values(*shape)
    assert torch.equal(transposed(values), values.mT)


def has_tiles(dtype: torch.dtype) -> bool:
    native = kernels(dtype)
    return native is not None and native.has_tiles


@needs_compiler
@both_types
@pytest.mark.parametrize("rows_and_columns", [(64, 96), (96, 64), (32, 32), (288, 544), (7, 40)])
@pytest.mark.parametrize("tokens", [1, 33, 300, 1024])
def test_a_transposed_product_is_rounded_once_for_any_number_of_tokens_and_threads(
    tokens: int,
    rows_and_columns: tuple[int, int],
    dtype: torch.dtype,
    torch_threads: Callable[[int], None],
) -> None:
    rows, columns = rows_and_columns
    left = random_values(tokens, rows, dtype=dtype)
    right = random_values(tokens, columns, seed=1, dtype=dtype)
    exact = left.double().mT @ right.double()
    found = []
    for threads in (1, 2, 3):
        torch_threads(threads)
        found.append(transposed_product(left, right))
        torch.testing.assert_close(found[-1].double(), exact, rtol=ROUNDING[dtype] / 2, atol=1e-4)
    if has_tiles(dtype):  # otherwise the library's, which may sum in another order
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@both_types
@pytest.mark.parametrize("shape", [(0, 32, 64), (40, 0, 64), (40, 64, 0)])
def test_a_transposed_product_of_nothing_is_zero_or_empty(
    shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    tokens, rows, columns = shape
    left, right = torch.ones(tokens, rows, dtype=dtype), torch.ones(tokens, columns, dtype=dtype)
    assert torch.equal(transposed_product(left, right), torch.zeros(rows, columns, dtype=dtype))
    assert torch.equal(product(left.mT, right), torch.zeros(rows, columns, dtype=dtype))


@both_types
@pytest.mark.parametrize("shape", [(0, 96, 32), (32, 96, 0), (0, 96, 0)])
def test_a_product_without_rows_or_columns_is_empty(
    shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    rows, depth, columns = shape
    left, weight = torch.ones(rows, depth, dtype=dtype), torch.ones(columns, depth, dtype=dtype)
    assert product(left, weight.mT).shape == (rows, columns)


@both_types
@pytest.mark.parametrize(("rows", "columns"), [(64, 96), (384, 1152), (96, 96), (7, 45)])
def test_transposed_products_are_those_with_each_block_of_columns(
    rows: int, columns: int, dtype: torch.dtype
) -> None:
    left = random_values(300, rows, dtype=dtype)
    right = random_values(300, columns, seed=1, dtype=dtype)
    found = transposed_products(left, right, count=3)
    wanted = [transposed_product(left, block.contiguous()) for block in right.chunk(3, dim=1)]
    tolerance = 0 if has_tiles(dtype) and rows % 32 == 0 else ROUNDING[dtype]
    torch.testing.assert_close(found, torch.stack(wanted), rtol=tolerance, atol=100 * tolerance)


@needs_compiler
@both_types
def test_a_transposed_product_shows_a_value_that_is_not_finite(dtype: torch.dtype) -> None:
    left, right = torch.ones(300, 64, dtype=dtype), torch.ones(300, 96, dtype=dtype)
    left[200, 5] = torch.nan
    found = transposed_product(left, right)
    assert found[5].isnan().all() and found.isnan().sum() == 96


@pytest.fixture
def own_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our kernel multiplies float32 matrices, on every processor."""
    monkeypatch.setattr(products, "has_fast_fp32_library", lambda: False)


@pytest.fixture
def torch_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@needs_compiler
@pytest.mark.usefixtures("own_products")
@pytest.mark.parametrize("is_right_turned", [False, True])
@pytest.mark.parametrize("is_left_turned", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 3), (12, 256, 32), (65, 700, 129)])
def test_our_product_equals_torchs_for_any_shape_and_layout(
    shape: tuple[int, int, int],
    is_left_turned: bool,
    is_right_turned: bool,
    torch_threads: Callable[[int], None],
) -> None:
    rows, depth, columns = shape
    left = random_values(rows, depth, dtype=torch.float32)
    right = random_values(depth, columns, seed=1, dtype=torch.float32)
    left = left.mT.contiguous().mT if is_left_turned else left
    right = right.mT.contiguous().mT if is_right_turned else right
    bias = random_values(columns, seed=2, dtype=torch.float32)
    start = random_values(rows, columns, seed=3, dtype=torch.float32)
    exact = left.double() @ right.double()
    found = []
    for threads in (1, 2, 3):
        torch_threads(threads)
        plain, biased = product(left, right), product(left, right, bias_N=bias)
        total = start.clone()
        assert product(left, right, added_to_MN=total) is total
        for one, expected in zip(
            (plain, biased, total), (exact, exact + bias, exact + start), strict=True
        ):
            torch.testing.assert_close(one.double(), expected, rtol=1e-5, atol=1e-4)
        found.append(plain)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@needs_compiler
@pytest.mark.parametrize("input_first", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        *((32, 96, 32), (416, 1536, 384), (896, 3072, 64), (416, 1000, 32)),
        *((32, 32, 32), (448, 384, 1152), (512, 512, 96), (512, 544, 96)),
    ],
)
def test_a_product_of_few_rows_is_rounded_once(
    shape: tuple[int, int, int], input_first: bool, torch_threads: Callable[[int], None]
) -> None:
    rows, depth, columns = shape
    left, weight = random_values(rows, depth), random_values(columns, depth, seed=1)
    weight = weight.mT.contiguous().mT if input_first else weight
    bias, start = random_values(columns, seed=2), random_values(rows, columns, seed=3)
    exact = left.double() @ weight.double().mT
    found = []
    for threads in (1, 2, 3):
        torch_threads(threads)
        plain = product(left, weight.mT)
        found.append(plain)
        with torch.no_grad():
            biased = affine(left, weight, bias)
        total = start.clone()
        assert product(left, weight.mT, added_to_MN=total) is total
        for one, expected in zip(
            (plain, biased, total), (exact, exact + bias, exact + start), strict=True
        ):
            torch.testing.assert_close(one.double(), expected, rtol=2.0**-8, atol=1e-3)
    if has_tiles(torch.bfloat16) and depth % 32 == 0:
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@needs_compiler
@pytest.mark.usefixtures("own_products")
@pytest.mark.parametrize("size", [1, 5, 8, 30, 64, 137])
def test_half_of_a_symmetric_product_is_computed_and_mirrored(size: int) -> None:
    lines = random_values(size, 300, dtype=torch.float32)
    found = product(lines, lines.mT, is_symmetric=True)
    assert torch.equal(found, found.mT)
    exact = lines.double() @ lines.mT.double()
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)


@needs_compiler
@pytest.mark.usefixtures("own_products")
def test_our_product_shows_a_value_that_is_not_finite() -> None:
    left, right = torch.ones(20, 30), torch.ones(30, 40)
    left[3, 5] = torch.nan
    found = product(left, right)
    assert found[3].isnan().all() and found.isnan().sum() == 40


@needs_compiler
@both_types
@pytest.mark.parametrize("shape", [(3307, 256), (1, 7), (5, 1000)])
def test_a_biass_gradient_is_summed_in_float32(shape: tuple[int, int], dtype: torch.dtype) -> None:
    values = random_values(*shape, dtype=dtype)
    expected = values.double().sum(0)
    torch.testing.assert_close(bias_gradient(values).double(), expected, rtol=2.0**-8, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("direction", ["bidirectional", "left_to_right", "right_to_left"])
@pytest.mark.parametrize("dropout_prob", [0.0, 0.1])
def test_a_whole_model_is_as_near_to_float32_as_with_torch(
    direction: str, dropout_prob: float
) -> None:
    config = small_config(
        attention_direction=direction,
        hidden_dropout_prob=dropout_prob,
        attention_probs_dropout_prob=dropout_prob,
    )
    batch = pack_sequences(random_examples(MIXED_LENGTHS))

    def gradient(choice: native.Choice, dtype: torch.dtype) -> torch.Tensor:
        choose_kernels(choice)
        model = random_model(config).to(dtype)
        sums = model(batch, 5)
        (sums.masked_lm_loss + sums.next_sentence_loss).backward()
        return torch.cat([p.grad.flatten().float() for p in model.parameters()])

    exact = gradient("torch", torch.float32)
    assert (gradient("native", torch.float32) - exact).norm() < 1e-5 * exact.norm()
    error_of_torch = (gradient("torch", torch.bfloat16) - exact).norm()
    error = (gradient("native", torch.bfloat16) - exact).norm()
    assert error < 0.05 * exact.norm()
    assert error < 1.1 * error_of_torch


@needs_compiler
@pytest.mark.parametrize("direction", ["bidirectional", "left_to_right", "right_to_left"])
@pytest.mark.parametrize("width", [16, 32, 64, 40, 80])
@pytest.mark.parametrize("longest", [64, 128, 150, 700])
def test_the_kernel_for_attention_equals_products_over_groups(
    direction: str, width: int, longest: int
) -> None:
    assert_attention_equals_torchs(direction, width=width, longest=longest)


@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86-64")
@pytest.mark.parametrize(
    "flags", ["-mno-amx-bf16", "-mno-amx-bf16 -mno-avx512bf16", "-march=haswell"]
)
def test_the_kernel_for_attention_needs_no_instructions_for_bfloat16(
    flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZE_KERNEL_FLAGS", flags)
    monkeypatch.setattr(native, "_compiled", cache(native._compiled.__wrapped__))
    assert_attention_equals_torchs("bidirectional", width=40, longest=150)


@needs_compiler
@pytest.mark.parametrize("longest", [128, 150, 700])
@pytest.mark.parametrize("reach", [0, 1, 20, 64, 200])
def test_tokens_see_as_far_as_their_window(reach: int, longest: int) -> None:
    assert_attention_equals_torchs("bidirectional", width=32, longest=longest, reach=reach)


def assert_attention_equals_torchs(
    direction: str, *, width: int, longest: int, reach: int | None = None
) -> None:
    heads = 2
    config = small_config(
        hidden_size=heads * width, num_attention_heads=heads, attention_direction=direction,
        attention_probs_dropout_prob=0.3,
    )  # fmt: skip
    batch = pack_sequences(random_examples((1, 17, 64, 2, 3, 31, 33, 48, longest, 15, 16, 96)))
    attention = GroupedAttention(batch, config, reach=reach)
    draws = attention.draw(Noise((5,)))
    tokens = len(batch.input_ids)
    parts = random_values(tokens, 3, heads, width)
    gradient = random_values(tokens, heads, width, seed=1)

    def both_ways(choice: native.Choice, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        choose_kernels(choice)
        context, kept = attention.forward(parts.to(dtype), draws)
        return context, attention.backward(gradient.to(dtype), kept, draws)

    assert_rounded(both_ways)


@needs_compiler
@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("longest", [100, 1100])
def test_the_kernel_turns_queries_and_keys_by_their_places(longest: int, is_local: bool) -> None:
    config = small_config(
        family="modern", hidden_act="gelu",
        hidden_size=48, num_attention_heads=2, local_attention=32,
    )  # fmt: skip
    batch = pack_sequences(random_examples((longest, 1, 40)))
    parts = random_values(batch.tokens, 3, 2, 24)
    upstream = random_values(batch.tokens, 2, 24, seed=1)

    def both_ways(choice: native.Choice, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        choose_kernels(choice)
        given = parts.to(dtype).requires_grad_()
        context = layer_attention(batch, config, backend="grouped")[is_local](given, None)
        return context, torch.autograd.grad(context, given, upstream.to(dtype))[0]

    assert_rounded(both_ways)


@needs_compiler
@both_types
@pytest.mark.parametrize("flags", ["", "-mno-amx-bf16", "-march=haswell"])
@pytest.mark.parametrize("rise", [-900.0, 30.0, 900.0])
def test_scores_may_rise_or_fall_by_hundreds_along_the_keys(
    rise: float, flags: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZE_KERNEL_FLAGS", flags if platform.machine() == "x86_64" else "")
    monkeypatch.setattr(native, "_compiled", cache(native._compiled.__wrapped__))
    tokens, width = 300, 16
    attention = GroupedAttention(
        pack_sequences(random_examples((tokens,))),
        small_config(hidden_size=width, num_attention_heads=1),
    )
    parts = random_values(tokens, 3, 1, width, dtype=dtype)
    parts[:, 0, 0, 0] = math.sqrt(width)  # so that the first value of a key is added to its scores
    parts[:, 1, 0, 0] = torch.linspace(0.0, rise, tokens)
    query_TK, key_TK, value_TK = parts.double()[:, :, 0].unbind(1)
    probabilities_TT = (query_TK @ key_TK.mT / math.sqrt(width)).softmax(-1)
    context_TAK, _ = attention.forward(parts, None)
    tolerance = 2**-7 if dtype == torch.bfloat16 else 1e-3  # scores of 900 have six digits
    torch.testing.assert_close(
        context_TAK[:, 0].double(), probabilities_TT @ value_TK, atol=tolerance, rtol=tolerance
    )


@needs_compiler
@pytest.mark.parametrize("poison", [float("nan"), -float("nan"), float("inf")])
def test_diverged_scores_are_seen(poison: float) -> None:
    attention = GroupedAttention(pack_sequences(random_examples((20, 33))), small_config())
    parts = random_values(53, 3, attention.heads, attention.width)
    parts[3, 0, 0] = poison  # a query; keys and values stay finite
    context, _ = attention.forward(parts, None)
    assert not context[3, 0].isfinite().any()
    assert context[:3].isfinite().all() and context[4:].isfinite().all()


@needs_compiler
def test_a_diverged_loss_is_seen() -> None:
    for poison in (float("nan"), float("inf")):
        model = random_model(small_config()).bfloat16()
        with torch.no_grad():
            model.encoder.layers[0].attention.output_bias[0] = poison
        sums = model(pack_sequences(random_examples((20, 30))), 5)
        sums.masked_lm_loss.backward()
        assert not sums.masked_lm_loss.isfinite()
        assert not model.encoder.layers[1].feed_forward.output_weight.grad.isfinite().all()


@needs_compiler
def test_the_same_step_gives_the_same_bits() -> None:
    batch = pack_sequences(random_examples(MIXED_LENGTHS))
    gradients = []
    for _ in range(2):
        model = random_model(small_config(hidden_dropout_prob=0.1)).bfloat16()
        model(batch, 5).masked_lm_loss.backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_the_kernels_in_use_are_named_and_can_be_refused() -> None:
    choose_kernels("torch")
    assert kernels_in_use() == "torch"


def kernels_of_a_new_process(path: Path, cache_home: Path) -> tuple[str, str]:
    """The kernels that a program uses whose compiler is looked for in `path`, and what it says."""
    program = (
        "from cloze.model.encoder.operations.native_kernels import choose_kernels, kernels_in_use\n"
        "print(kernels_in_use())\n"
        "choose_kernels('native')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PATH": str(path), "XDG_CACHE_HOME": str(cache_home)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip(), done.stderr


def test_without_a_compiler_torch_does_the_work_and_says_so(tmp_path: Path) -> None:
    used, said = kernels_of_a_new_process(tmp_path, tmp_path / "cache")
    assert used == "torch"
    assert "no gcc" in said
    assert "UsageError" in said and "install gcc" in said  # where they are asked for


def test_a_broken_compiler_is_no_end(tmp_path: Path) -> None:
    (tmp_path / "gcc").write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    (tmp_path / "gcc").chmod(0o755)
    used, said = kernels_of_a_new_process(tmp_path, tmp_path / "cache")
    assert used == "torch"
    assert "broken" in said


@needs_compiler
def test_without_memory_a_kernel_ends_the_process_and_says_so() -> None:
    program = (
        "from cloze.model.encoder.operations.native_kernels import kernels\n"
        "kernels()('column_sums', 0, 1 << 50, None, None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == -signal.SIGABRT
    assert "the compiled kernels found no memory for " in done.stderr


@needs_compiler
def test_the_flags_are_those_that_a_compiler_for_arm_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    for_arm = runpy.run_path(native.__file__)["FLAGS"]
    assert [flag for flag in for_arm if flag.startswith("-m")] == ["-march=native"]


@needs_compiler
def test_the_library_brings_no_second_pool_of_threads() -> None:
    """There is one OpenMP runtime in the process: torch's."""
    program = (
        "from cloze.model.encoder.operations.native_kernels import kernels; kernels()\n"
        "print({line.split()[-1] for line in open('/proc/self/maps') if 'libgomp' in line})"
    )
    project = Path(native.__file__).parents[3]
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=project
    )
    assert found.stdout.count("libgomp") <= 1, found.stdout
