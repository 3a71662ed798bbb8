"""Every kernel against its plain torch form, on each kind of processor that this one can act as.

    python benchmarks/training/kernels.py [--rounds 15] [--only attention gelu …]

In:  nothing: tensors of the demo's sizes and of base's, drawn from a seed.
Out: benchmarks/results/kernels.json: for each kernel, size and kind of processor the ratio of the
     medians of both sides, which take turns, in processor time of a single thread; and a table on
     standard output, whose last column is the best ratio of each kernel.

A processor acts as an older one through limits for our compiler, oneDNN, MKL and torch. It is
still as fast as it is: ratios say what a kernel gains, not how fast an older machine would be. A
precision is that of training there, besides float32 everywhere.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor, nn

from benchmarks.measuring import Arguments, machine, markdown, output_of, write_result
from benchmarks.training.workload import VOCABULARY, Workload, encoder_config
from cloze.model.config import OptimizerConfig
from cloze.model.data.batch import pack_sequences
from cloze.model.encoder.losses import native_softmax_gradient, softmax_gradient
from cloze.model.encoder.models import Encoder
from cloze.model.encoder.operations.activation import activate_, activation_gradients, gated_gelu
from cloze.model.encoder.operations.dropout import Noise, dropout_draws, dropped
from cloze.model.encoder.operations.grouped_attention import GroupedAttention
from cloze.model.encoder.operations.native_kernels import Choice, choose_kernels, kernels
from cloze.model.encoder.operations.products import bias_gradient, product, transposed
from cloze.model.encoder.operations.residual import (
    norm,
    norm_gradients,
    residual_norm,
    residual_norm_gradients,
)
from cloze.model.encoder.precision import computed_in
from cloze.model.hardware import machine_precision
from cloze.model.training.optimizer import AdamW, build_optimizer

PROCESSORS = {
    "AVX-512 bf16": {},
    "AVX-512": {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "CLOZE_KERNEL_FLAGS": "-march=cascadelake",
    },
    "AVX2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "CLOZE_KERNEL_FLAGS": "-march=haswell",
    },
}
"""The environment in which a processor acts as one of a kind."""

SIDES: tuple[Choice, Choice] = ("torch", "native")

SIZES = {"mini": (18, 8192), "base": (32, VOCABULARY)}
"""The demo's encoder and the paper's: sequences of at most 128 tokens, and words."""

MASKED_SHARE = 0.15

NOISE = Noise((1,))

Case = Callable[[], Callable[[], object]]
"""Prepares one run, with the kernels as they are chosen, and returns what is timed."""


class Sizes:
    """What the tensors of a case are like."""

    def __init__(self, size: str, dtype: torch.dtype) -> None:
        sequences, self.words = SIZES[size]
        self.size, self.dtype, self.config = size, dtype, encoder_config(size)
        self.batch = pack_sequences(Workload(size, 128, sequences).batches[0])
        self.tokens, self.width = self.batch.tokens, self.config.hidden_size
        self.inner = self.config.intermediate_size

    def random(self, *shape: int) -> Tensor:
        """Normal values."""
        return torch.randn(shape).to(self.dtype)


def attention(of: Sizes) -> Iterator[tuple[str, Case]]:
    """Attention of one layer, with dropout."""
    heads, grouped = of.config.num_attention_heads, GroupedAttention(of.batch, of.config)
    parts = of.random(of.tokens, 3, heads, of.width // heads)
    draws = grouped.draw(NOISE)

    def backward() -> Callable[[], object]:
        context, kept = grouped.forward(parts, draws)
        return partial(grouped.backward, torch.ones_like(context), kept, draws)

    yield "attention_forward", lambda: partial(grouped.forward, parts, draws)
    yield "attention_backward", backward


def activations(of: Sizes) -> Iterator[tuple[str, Case]]:
    """GELU and gated GELU."""
    name, x_TI, dx_TI = of.config.hidden_act, *of.random(2, of.tokens, of.inner)

    def gelu_backward() -> Callable[[], object]:
        kept = activate_(x_TI.clone(), name)[1]
        return partial(activation_gradients, dx_TI.clone(), kept, name)

    def gated() -> tuple[Tensor, Tensor]:
        inside = of.random(of.tokens, 2 * of.inner).requires_grad_()
        return inside, gated_gelu(inside, name)

    yield "gelu_forward", lambda: partial(activate_, x_TI.clone(), name)
    yield "gelu_backward", gelu_backward
    yield "geglu_forward", lambda: partial(gated_gelu, gated()[0].detach().requires_grad_(), name)
    yield "geglu_backward", lambda: partial(gated()[1].backward, dx_TI)
    yield "column_sums", lambda: partial(bias_gradient, x_TI)
    if of.dtype == torch.bfloat16:
        yield "transpose", lambda: lambda: transposed(x_TI).contiguous()


def norms(of: Sizes) -> Iterator[tuple[str, Case]]:
    """Dropout, layer norm, and both with a residual."""
    x_TH, dx_TH = of.random(2, of.tokens, of.width)
    parameters = torch.ones(of.width), torch.zeros(of.width), 1e-12
    draws = dropout_draws(NOISE, x_TH.numel(), probability=0.1)
    assert draws is not None

    def backward() -> Callable[[], object]:
        return partial(norm_gradients, dx_TH, norm(x_TH, *parameters)[1], parameters[0])

    def residual_backward() -> Callable[[], object]:
        kept = residual_norm(x_TH.clone(), dx_TH, parameters, draws)[1]
        return partial(residual_norm_gradients, dx_TH, kept, parameters[0], draws)

    yield "random_words", lambda: lambda: draws.bits
    yield "drop", lambda: partial(dropped, x_TH, draws)
    yield "norm_forward", lambda: partial(norm, x_TH, *parameters)
    yield "norm_backward", backward
    yield (
        "residual_norm_forward",
        lambda: partial(residual_norm, x_TH.clone(), dx_TH, parameters, draws),
    )
    yield "residual_norm_backward", residual_backward


def losses(of: Sizes) -> Iterator[tuple[str, Case]]:
    """The masked-LM loss with its gradient; products where our own may be faster."""
    masked = int(MASKED_SHARE * of.tokens)
    labels = torch.randint(of.words, (masked,))

    def loss() -> Callable[[], object]:
        if kernels(of.dtype) is None:
            return partial(softmax_gradient, of.random(masked, of.words), labels)
        logits = of.random(of.words, masked)
        return partial(native_softmax_gradient, logits, of.random(of.words), labels)

    yield "cross_entropy", loss
    if of.dtype == torch.float32:  # in bfloat16 only with tile units
        left, right = of.random(of.tokens, of.width), of.random(of.width, of.inner)
        yield "product", lambda: partial(product, left, right)


def inference(of: Sizes) -> Iterator[tuple[str, Case]]:
    """A single sentence through packed layers; without kernels, through those of training."""
    sentence = pack_sequences(Workload(of.size, 128, 1).batches[0])
    for name, int8 in (("encode", False), ("encode, int8", True)):
        encoder = Encoder(of.config, VOCABULARY).to(of.dtype).eval()
        choose_kernels("native")
        # Packed once for both sides: packed layers leave the work to the modules while kernels are
        # disabled.
        encoder.pack(int8=int8)
        run = torch.inference_mode()(encoder)
        yield name, lambda run=run: partial(run, sentence)


def updates(of: Sizes) -> Iterator[tuple[str, Case]]:
    """An update of all parameters and the copies that are computed with; Muon's with products."""
    precision = "fp32" if of.dtype == torch.float32 else "bf16"
    for name, wanted in (
        ("squared_gradients, adamw", "adamw"),
        ("muon_momentum, muon_move", "muon"),
    ):
        sides = {}
        for side in SIDES:
            choose_kernels(side)
            module = Stack(of)
            optimizer = build_optimizer(
                module.named_parameters(),
                config=OptimizerConfig.model_validate({"name": wanted}),
                precision=precision,
            )
            computed = computed_in(precision, module)
            optimizer.compute_with(computed)
            # By which kernels are in use: optimizer and copies are made for one side and cannot
            # change it.
            sides[kernels() is None] = partial(update, computed, optimizer)
        yield name, lambda sides=sides: sides[kernels() is None]


class Stack(nn.Module):
    """The matrices of an encoder's layers, without what computes with them."""

    def __init__(self, of: Sizes) -> None:
        super().__init__()
        width, inner = of.width, of.inner
        shapes = [(width, 4 * width), (width, inner), (inner, width)]
        self.layers = nn.ParameterList(
            nn.Parameter(0.02 * torch.randn(shape))
            for shape in shapes * of.config.num_hidden_layers
        )

    def forward(self) -> Tensor:
        """A scalar that depends on all of them."""
        return torch.stack([matrix.sum() for matrix in self.layers]).sum()


def update(computed: nn.Module, optimizer: AdamW) -> None:
    """One step, with the least computation that gives every parameter a gradient."""
    computed().backward()
    optimizer.shorten(1.0)
    optimizer.step()
    optimizer.zero_grad()


def cases(of: Sizes) -> Iterator[tuple[str, Case]]:
    """All kernels by name."""
    for kind in (attention, activations, norms, losses, inference, updates):
        yield from kind(of)


def measured(size: str, dtype: torch.dtype, *, rounds: int, only: list[str]) -> dict[str, float]:
    """By kernel: the time of torch's form, as a multiple of the kernel's."""
    torch.manual_seed(0)
    spent: dict[str, tuple[float, float]] = {}
    for name, prepare in cases(Sizes(size, dtype)):
        if only and not any(one in name for one in only):
            continue
        seconds: dict[Choice, list[float]] = {side: [] for side in SIDES}
        for turn in range(rounds + 1):
            # The sides swap places in every turn: the one that comes second finds warmer caches.
            for side in SIDES if turn % 2 else SIDES[::-1]:
                choose_kernels(side)
                timed = prepare()
                began = time.thread_time()
                timed()
                seconds[side].append(time.thread_time() - began)
        # Without the first turn, in which libraries generate code and memory is faulted in.
        torchs, ours = (statistics.median(seconds[side][1:]) for side in SIDES)
        spent[name] = torchs, ours
    # A forward kernel may do work for the backward one: what counts is the pair.
    for name in [name.removesuffix("_forward") for name in spent if name.endswith("_forward")]:
        if (backward := f"{name}_backward") in spent:
            both = zip(spent[f"{name}_forward"], spent[backward], strict=True)
            torchs, ours = map(sum, both)
            spent[name] = torchs, ours
    return {name: round(torchs / ours, 3) for name, (torchs, ours) in spent.items()}


def main() -> None:
    """Run once for each kind of processor, each in a process with its environment."""
    parser = Arguments(__doc__, output="kernels.json", rounds=15, here="")
    parser.add_options(sizes=list(SIZES))
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    if arguments.here:
        torch.set_num_threads(1)
        own = {"bf16": torch.bfloat16, "fp32": torch.float32}
        # The better precision of this processor, and fp32; once, where these are the same.
        names = dict.fromkeys((machine_precision()[0], "fp32"))
        print(
            json.dumps(
                {
                    f"{size}, {name}": measured(
                        size, own[name], rounds=arguments.rounds, only=arguments.only
                    )
                    for size in arguments.sizes
                    for name in names
                }
            )
        )
        return
    facts, ratios = machine(), {}
    for name, environment in PROCESSORS.items():
        # Flags of the compiler and of libraries are read once, at the start of a process.
        said = output_of(
            [sys.executable, *sys.argv, "--here", name], env={**os.environ, **environment}
        )
        ratios[name] = json.loads(said.splitlines()[-1])
    columns = [(name, case) for name, of_kind in ratios.items() for case in of_kind]
    every = {kernel: None for name, case in columns for kernel in ratios[name][case]}
    rows = []
    for kernel in every:
        own_ratios = [ratios[name][case].get(kernel) for name, case in columns]
        best = max(ratio for ratio in own_ratios if ratio is not None)
        rows.append((kernel, *(ratio or "" for ratio in own_ratios), best))
    print(markdown(("kernel", *(f"{a}: {b}" for a, b in columns), "best"), rows))
    write_result(arguments.output, {**facts, "torch_over_kernel": ratios})


if __name__ == "__main__":
    main()
