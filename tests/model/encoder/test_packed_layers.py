"""Packed layers: the vectors of the layers that they were packed from, in one call."""

import copy
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cloze.model.config import EncoderConfig
from cloze.model.data.batch import PackedBatch, pack_sequences
from cloze.model.encoder.models import Encoder
from cloze.model.encoder.operations import native_kernels as native
from cloze.model.encoder.operations.native_kernels import choose_kernels, kernels
from tests.model.encoder.encoder_builders import random_examples, random_model, small_config

pytestmark = pytest.mark.skipif(kernels() is None, reason="no gcc here")

LENGTHS = (1, 2, 3, 5, 7, 11, 13, 29, 97, 130)
"""298 tokens: no multiple of the rows that a product takes at a time, and more than a band."""

SIZES = {"hidden_size": 96, "num_attention_heads": 3, "intermediate_size": 224}
FLAGS = ["", "-mno-amx-bf16 -mno-avx512bf16", "-march=haswell"]
WITHOUT_VNNI = "-mno-amx-bf16 -mno-avx512bf16 -mno-avx512vnni -mno-avxvnni"
"""Compiler flags for lesser processors; those of x86-64."""

ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def choose_freely_afterwards() -> Iterator[None]:
    yield
    choose_kernels("auto")
    native._compiled.cache_clear()


def encoder_and_batch(
    *, dtype: torch.dtype = torch.float32, **changes: object
) -> tuple[Encoder, PackedBatch]:
    config: EncoderConfig = small_config(**SIZES, **changes)
    encoder = random_model(config).encoder.to(dtype).eval()
    return encoder, pack_sequences(random_examples(LENGTHS))


@torch.no_grad()
def states_of(encoder: Encoder, batch: PackedBatch) -> Tensor:
    return torch.stack(encoder.hidden_states(batch))


def exact_states(encoder: Encoder, batch: PackedBatch) -> Tensor:
    """In float64, which no kernel computes."""
    return states_of(copy.deepcopy(encoder).double(), batch)


@pytest.mark.parametrize("flags", FLAGS if platform.machine() == "x86_64" else [""])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_every_layer_is_near_float64_at_odd_sizes_for_every_instruction_set(
    flags: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZE_KERNEL_FLAGS", flags)
    native._compiled.cache_clear()
    encoder, batch = encoder_and_batch(dtype=dtype)
    if not encoder.pack():
        pytest.skip("bfloat16 products are the library's where there are tile units")
    found, exact = states_of(encoder, batch), exact_states(encoder, batch)
    assert found.shape == exact.shape == (3, sum(LENGTHS), 96)
    assert (found - exact).norm() < ROUNDING[dtype] * exact.norm()
    assert (found - exact).abs().max() < 20 * ROUNDING[dtype]
    # The last state alone, which is computed in place
    with torch.no_grad():
        assert torch.equal(encoder(batch), found[-1])


@pytest.mark.parametrize(
    "flags", [*FLAGS, WITHOUT_VNNI] if platform.machine() == "x86_64" else [""]
)
def test_int8_is_near_float64_for_every_instruction_set(
    flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZE_KERNEL_FLAGS", flags)
    native._compiled.cache_clear()
    encoder, batch = encoder_and_batch()
    assert encoder.pack(int8=True)
    found, exact = states_of(encoder, batch)[-1], exact_states(encoder, batch)[-1]
    assert functional.cosine_similarity(found.double(), exact, dim=-1).min() > 0.999
    # The same quantised values, whatever instructions multiply them: half a step of a byte each
    assert (found - exact).norm() < 0.02 * exact.norm()
    assert not torch.equal(found.double(), exact)


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("direction", ["left_to_right", "right_to_left"])
def test_both_forms_of_gelu_and_one_sided_attention_are_those_of_the_layers(
    hidden_act: str, direction: str
) -> None:
    encoder, batch = encoder_and_batch(hidden_act=hidden_act, attention_direction=direction)
    expected = states_of(encoder, batch)
    assert encoder.pack()
    torch.testing.assert_close(states_of(encoder, batch), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("flags", ["", "-mno-amx-bf16 -mno-avx512bf16"])
@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86-64")
def test_int8_keeps_bfloat16_between_products_where_the_processor_multiplies_it(
    flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And returns what the encoder's other parts compute in."""
    monkeypatch.setenv("CLOZE_KERNEL_FLAGS", flags)
    native._compiled.cache_clear()
    encoder, batch = encoder_and_batch()
    assert encoder.pack(int8=True)
    assert encoder._packed is not None
    multiplies = not flags and "avx512_bf16" in Path("/proc/cpuinfo").read_text()
    assert (encoder._packed.state_dtype == torch.bfloat16) == multiplies
    assert states_of(encoder, batch).dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(encoder(batch), states_of(encoder, batch)[-1])


def test_int8_quantises_each_token_by_itself() -> None:
    """The vectors of a text do not depend on its neighbours in the batch."""
    encoder, batch = encoder_and_batch()
    assert encoder.pack(int8=True)
    alone = pack_sequences(random_examples(LENGTHS)[-1:])
    found = states_of(encoder, batch)[-1]
    torch.testing.assert_close(found[-LENGTHS[-1] :], states_of(encoder, alone)[-1])


@pytest.mark.parametrize("int8", [False, True])
def test_a_nan_stays_visible(int8: bool) -> None:
    encoder, batch = encoder_and_batch()
    assert encoder.pack(int8=int8)
    word = int(batch.input_ids[-1])
    encoder.embeddings.word_embeddings.weight.data[word, 5] = torch.nan
    assert states_of(encoder, batch)[-1, -1].isnan().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("row", [0, 5, -1])
def test_a_weight_that_is_no_number_stays_visible_in_int8(row: int, value: float) -> None:
    encoder, batch = encoder_and_batch()
    (first, *_) = (part for name, part in encoder.named_parameters() if "intermediate_w" in name)
    first.data[row, 3] = value
    assert encoder.pack(int8=True)
    assert not states_of(encoder, batch)[-1].isfinite().any()


def test_layers_are_unpacked_when_they_are_trained_moved_or_need_gradients() -> None:
    encoder, batch = encoder_and_batch()
    assert encoder.pack()
    encoder.layers[0].attention.output_weight.data *= 3  # not seen while packed
    packed, changed = states_of(encoder, batch), torch.stack(encoder.hidden_states(batch))
    assert changed.requires_grad
    assert (packed - changed).abs().max() > 0.1
    torch.testing.assert_close(states_of(encoder.train().eval(), batch), changed)
    assert encoder.pack()
    assert states_of(encoder.double(), batch).dtype == torch.float64


def test_a_copy_of_packed_layers_outlives_the_original() -> None:
    encoder, batch = encoder_and_batch()
    assert encoder.pack()
    expected, twin = states_of(encoder, batch), copy.deepcopy(encoder)
    del encoder
    assert torch.equal(states_of(twin, batch), expected)


def test_what_the_kernels_do_not_compute_is_not_packed() -> None:
    assert not random_model(small_config(hidden_size=48)).encoder.pack()
    assert not random_model(small_config(family="modern")).encoder.pack()
    choose_kernels("torch")
    encoder, batch = encoder_and_batch()
    assert not encoder.pack()
    expected = states_of(encoder, batch)
    choose_kernels("auto")
    assert encoder.pack()
    choose_kernels("torch")  # afterwards, too
    assert torch.equal(states_of(encoder, batch), expected)
