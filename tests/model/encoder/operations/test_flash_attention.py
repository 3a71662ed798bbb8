"""The GPU code path, as far as possible without a GPU: values on the CPU, shapes on fake CUDA.

Tests marked `gpu` cover the rest.
"""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from cloze.model.config import EncoderConfig
from cloze.model.data.batch import Example, PackedBatch, pack_sequences
from cloze.model.encoder import bert, embeddings, modern
from cloze.model.encoder import models as encoder_module
from cloze.model.encoder.bert import FeedForward, Layer
from cloze.model.encoder.models import Encoder, PretrainingModel
from cloze.model.encoder.operations import attention as attention_module
from cloze.model.encoder.operations import products
from cloze.model.encoder.operations.attention import BACKENDS, FlashAttention
from cloze.model.encoder.operations.dropout import DeviceNoise
from cloze.model.encoder.operations.native_kernels import choose_kernels
from cloze.model.encoder.precision import Rounded
from tests.model.encoder.encoder_builders import (
    DROPPING,
    MIXED_LENGTHS,
    VOCABULARY,
    random_examples,
    random_model,
    small_config,
)


def composed_layer(
    layer: Layer, hidden: Tensor, batch: PackedBatch, config: EncoderConfig
) -> Tensor:
    attend = BACKENDS["grouped"](batch, config)
    attended = layer.attention.composed(hidden, attend, None, None)
    return layer.feed_forward.composed(attended, None)


def test_composed_layers_are_the_fused_ones() -> None:
    config = small_config()
    layer = random_model(config).encoder.layers[0]
    batch = pack_sequences(random_examples(MIXED_LENGTHS))
    results = []
    for composed in (False, True):
        torch.manual_seed(0)
        hidden = torch.randn(batch.tokens, 64, requires_grad=True)
        layer.zero_grad()
        if composed:
            output = composed_layer(layer, hidden, batch, config)
        else:
            output = layer(hidden, BACKENDS["grouped"](batch, config), None)
        output.square().sum().backward()
        results.append([output.detach(), hidden.grad, *(p.grad for p in layer.parameters())])
    for fused, composed in zip(*results, strict=True):
        torch.testing.assert_close(fused, composed, rtol=1e-4, atol=1e-4)


def test_the_feed_forward_part_compiles_whole_and_once() -> None:
    layers = random_model(small_config(**DROPPING)).encoder.layers
    compiled = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        compiled.append(graph)
        return graph

    torch._dynamo.reset()
    for layer in layers:
        layer.feed_forward.forward = layer.feed_forward.composed
        layer.feed_forward.compile(dynamic=True, fullgraph=True, backend=count)
    for tokens in (50, 70):
        for layer in layers:
            layer.feed_forward(torch.randn(tokens, 64), None)
    torch._dynamo.reset()
    assert len(compiled) == 1


def flash_by_products(
    query: Tensor, key: Tensor, value: Tensor, *rest: Any, scale: float, **windows: int | None
) -> tuple[Tensor, ...]:
    """The result of the kernel without dropout; windows are ignored."""
    assert set(windows) == {"window_size_left", "window_size_right"}
    starts, is_causal = rest[0].tolist(), rest[5]
    parts = [
        functional.scaled_dot_product_attention(
            *(t[start:stop].transpose(0, 1) for t in (query, key, value)),
            is_causal=is_causal,
            scale=scale,
        ).transpose(0, 1)
        for start, stop in itertools.pairwise(starts)
    ]
    return (torch.cat(parts),)


@pytest.mark.parametrize(
    ("family", "fp8", "kinds"), [("bert", False, 1), ("bert", True, 1), ("modern", False, 3)]
)
def test_a_whole_layer_is_one_graph_for_all_layers_lengths_and_steps(
    family: str, fp8: bool, kinds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []

    def by_products(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        for node in graph.graph.nodes:
            if "_flash_attention_forward" in str(node.target):
                node.target = flash_by_products
        graph.recompile()
        compiled.append(graph)
        return graph

    original = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module,
        "compile",
        lambda module, **options: original(
            module, **{**options, "fullgraph": True, "backend": by_products, "options": None}
        ),
    )
    # The GPU code path on a CPU: its attention, noise, dropout and layers.
    monkeypatch.setitem(BACKENDS, "grouped", FlashAttention)
    monkeypatch.setattr(encoder_module, "noise_from", lambda seed, device: DeviceNoise())
    monkeypatch.setattr(attention_module, "BlockAttention", FlashAttention)
    monkeypatch.setattr(products, "_has_bf16_products", lambda: False)
    for module in (bert, modern):
        monkeypatch.setattr(module, "dropout", lambda x, p, noise: functional.dropout(x, p))
    monkeypatch.setattr(FeedForward, "forward", FeedForward.composed)
    monkeypatch.setattr(embeddings, "dropout", lambda x, p, noise: x)
    choose_kernels("torch")
    torch._dynamo.reset()
    config = small_config(**DROPPING)
    if family == "modern":  # the first layer has no norm, every third one is global
        config = small_config(
            family="modern", hidden_act="gelu", num_hidden_layers=4, hidden_dropout_prob=0.1
        )
    model = PretrainingModel(Encoder(config, VOCABULARY, fp8=fp8))
    model.encoder.compile_layers()
    rounded = Rounded(model)
    shapes = set()
    for step, lengths in enumerate(((128, 100, 37, 70), (128, 120, 61, 90, 77), (128,) * 9)):
        batch = pack_sequences(random_examples(lengths)).bucketed()
        shapes.add(batch.shape)
        loss = rounded(batch, step).masked_lm_loss
        loss.backward()
        assert loss.isfinite()
        assert all(p.grad is not None for p in model.encoder.parameters())
        with torch.no_grad():
            rounded.eval()(batch, None)
        rounded.train()
    torch._dynamo.reset()
    choose_kernels("auto")
    assert len(shapes) == 3
    assert len(compiled) == 2 * kinds, "of each kind of layer one to train and one to evaluate"


def test_a_gpus_noise_does_not_change_from_layer_to_layer() -> None:
    noise = DeviceNoise()
    assert noise
    assert noise.at(3).at(1, 2) is noise


@pytest.mark.parametrize("direction", ["bidirectional", "left_to_right"])
def test_on_cuda_the_flash_kernel_is_chosen_and_shapes_fit(
    direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: None)
    config = small_config(attention_direction=direction, hidden_act="gelu_tanh", **DROPPING)
    with torch.device("meta"):
        encoder = Encoder(config, VOCABULARY).bfloat16()
    batch = pack_sequences([Example([2, 7, 8, 3], 2), Example([2, 9, 3])])
    assert batch.lengths.tolist() == [4, 3]  # read on the host, where a fake tensor has no data
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        encoder = encoder.to_empty(device="cuda")
        there = batch.mapped(lambda t: torch.empty(t.shape, dtype=t.dtype, device="cuda"))
        hidden = encoder(there, 3)
        assert encoder.attention_backend == "flash"
        assert (hidden.shape, hidden.device.type) == ((7, 64), "cuda")


def test_reversal_turns_every_sequence_round() -> None:
    batch = pack_sequences([Example([2, 7, 8, 3]), Example([4]), Example([5, 6])])
    there = batch.reversal()
    assert batch.input_ids[there].tolist() == [3, 8, 7, 2, 4, 6, 5]
    assert torch.equal(there[there], torch.arange(7))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("direction", ["bidirectional", "left_to_right", "right_to_left"])
@pytest.mark.parametrize("backend", ["flash", "varlen"])
def test_cuda_kernels_agree_with_plain_products(backend: str, direction: str) -> None:
    model = random_model(small_config(attention_direction=direction)).cuda().bfloat16()
    batch = pack_sequences(random_examples(MIXED_LENGTHS)).to("cuda")
    gradients = []
    for attention in ("grouped", backend):
        model.zero_grad()
        model.encoder.attention = attention
        model(batch).masked_lm_loss.backward()
        gradients.append(torch.cat([p.grad.flatten().float() for p in model.parameters()]))
    assert torch.cosine_similarity(*gradients, dim=0) > 0.999


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_compiled_layers_learn_on_cuda() -> None:
    model = random_model(small_config(**DROPPING)).cuda().bfloat16()
    model.encoder.compile_layers()
    batch = pack_sequences(random_examples(MIXED_LENGTHS)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(20):
        loss = model(batch, step).masked_lm_loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert model(batch, 5).masked_lm_loss == model(batch, 5).masked_lm_loss
