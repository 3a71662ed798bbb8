"""Where a training step's processor time goes, beside the processor's matrix rate.

    python benchmarks/training/step_profile.py [--sizes base] [--kinds AVX-512 AVX2]

In:  nothing: batches drawn from a seed; base and L4 H256 (mini) with 128 tokens, the demo's two
     sizes with 64 and Muon.
Out: benchmarks/results/step_profile.json: for each size, on each kind of processor that this one
     can act as: tokens a second of one core, and the rate of the model's products as a share of
     the matrix rate, torch's and ours, measured before and after; the shares of products,
     attention, other kernels, updates, and everything else (torch's operations and Python; with
     bfloat16 also the library's products). Sizes and kinds measured earlier stay in the file.

All in processor time of a single thread, which other programs hardly change. Muon's products are
no part of the model's FLOPs, as in `cloze plan`: they are counted as updates.
"""

import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from torch import Tensor

from benchmarks.measuring import Arguments, machine, markdown, output_of, read_result, write_result
from benchmarks.training import workload
from benchmarks.training.kernels import PROCESSORS
from benchmarks.training.product_steps import engine_of
from cloze.model.config import PretrainStage, TrainingMachine
from cloze.model.data.batch import pack_sequences
from cloze.model.encoder.operations.native_kernels import Kernels
from cloze.model.encoder.operations.products import product
from cloze.model.hardware import machine_precision
from cloze.model.training.distributed import join_world
from cloze.model.training.pretrain import cpu_token_budget
from cloze.model.training.start import training_environment

MATRIX = 1024
WARM_UP = 2


KINDS = {
    **PROCESSORS,
    "no compiler": {**PROCESSORS["AVX-512"], "PATH": "", "XDG_CACHE_HOME": "/nowhere"},
}
"""Those of kernels.py, and one where everything is torch's."""


class Size(NamedTuple):
    """A model, and how it is trained."""

    preset: str
    longest: int
    sequences: int
    optimizer: str
    words: int
    steps: int
    encoder: dict[str, float]


IN_DEMO = {"num_hidden_layers": 2, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
SIZES = {
    "base": Size("base", 128, 8, "adamw", workload.VOCABULARY, 3, {}),
    "L4 H256": Size("mini", 128, 64, "adamw", workload.VOCABULARY, 5, {}),
    "demo, 256 wide": Size("mini", 64, 32, "muon", 8192, 20, IN_DEMO),
    "demo, 128 wide": Size("tiny", 64, 32, "muon", 8192, 40, IN_DEMO),
}

PARTS = {
    "products": ("product", "transposed_product"),
    "attention": ("attention_forward", "attention_backward"),
    "updates": ("adamw", "squared_gradients", "orthogonalise", "muon_momentum", "muon_move"),
}


def rate(multiply: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> float:
    """GFLOP/s of a large square product by one thread, the median of a dozen."""
    left = torch.randn(MATRIX, MATRIX).to(dtype)
    found = []
    for _ in range(12):
        began = time.thread_time()
        multiply(left, left)
        found.append(2e-9 * MATRIX**3 / (time.thread_time() - began))
    return statistics.median(found)


class ProfiledTraining:
    """Training of one size in this process, and the seconds that each kernel has taken."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self.precision = machine_precision()[0]
        if size.longest not in workload.FULL_SHARE:  # of the lengths in the demo
            workload.FULL_SHARE[size.longest] = workload.FULL_SHARE[128]
            workload.SHARE_BY_TENTH[size.longest] = workload.SHARE_BY_TENTH[128]
        self._config = workload.encoder_config(size.preset, **size.encoder)
        self._work = workload.Workload(size.preset, size.longest, size.sequences)
        optimizer = {"name": size.optimizer, "learning_rate": 1e-4, "warmup_steps": 0}
        recipe = {"precision": self.precision, "optimizer": {**optimizer, "schedule": "constant"}}
        table = {"seed": 0, "encoder": self._config, "pretrain": recipe}
        world = join_world(threads=1, timeout=60.0, device="cpu")
        self._engine = engine_of(PretrainStage.model_validate(table), size.words, world=world)
        self.spent: Counter[str] = Counter()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the seconds of each call of a kernel."""
        calls = Kernels.__call__

        def call(kernels: Kernels, name: str, *arguments: Tensor | float | None) -> int:
            began = time.thread_time()
            found = calls(kernels, name, *arguments)
            self.spent[name] += time.thread_time() - began
            return found

        with mock.patch.object(Kernels, "__call__", call):
            yield

    def step(self, number: int) -> None:
        """One update."""
        words = self._size.words
        examples = [
            replace(
                example,
                input_ids=np.asarray(example.input_ids) % words,
                masked_lm_ids=np.asarray(example.masked_lm_ids) % words,
            )
            for example in self._work.batches[number % workload.DISTINCT]
        ]
        masked = sum(len(example.masked_lm_ids) for example in examples)
        for micro, part in enumerate(workload.cut(examples, cpu_token_budget(self._config))):
            sums = self._engine.forward(pack_sequences(part), dropout=number * 1000 + micro)
            self._engine.backward(sums.loss(masked, len(examples)))
        began, inside = time.thread_time(), sum(self.spent.values())
        self._engine.step(number, torch.zeros(0))
        # what of an update is no kernel: torch's operations
        outside = time.thread_time() - began - (sum(self.spent.values()) - inside)
        self.spent["rest of the update"] += outside

    def tokens_and_flops(self, number: int) -> tuple[int, float]:
        """What a step works on, and the products that this takes."""
        lengths = self._work.lengths[number % workload.DISTINCT]
        tokens, squared = int(lengths.sum()), int((lengths**2).sum())
        masked = self._work.masked(number)
        flops = self._config.training_flops(
            self._size.words, tokens=tokens, squared=squared, masked=masked
        )
        return tokens, flops


def measured(size: Size) -> dict[str, object]:
    """The profile of one size in this process."""
    training = ProfiledTraining(size)
    dtype = torch.bfloat16 if training.precision == "bf16" else torch.float32
    rates = [(rate(torch.mm, dtype), rate(product, dtype))]
    with training.timed():
        for number in range(WARM_UP):
            training.step(number)
        training.spent.clear()
        began = time.process_time()
        for number in range(size.steps):
            training.step(number)
        total = time.process_time() - began
    rates.append((rate(torch.mm, dtype), rate(product, dtype)))
    theirs, ours = (statistics.mean(both) for both in zip(*rates, strict=True))
    tokens, flops = map(sum, zip(*map(training.tokens_and_flops, range(size.steps)), strict=True))
    reached, spent = 1e-9 * flops / total, training.spent
    shares = {part: sum(spent.pop(name, 0.0) for name in names) for part, names in PARTS.items()}
    shares["updates"] += spent.pop("rest of the update")
    shares["other kernels"] = sum(spent.values())
    shares["torch and Python"] = total - sum(shares.values())
    return {
        "precision": training.precision,
        "tokens_per_second_of_a_core": round(tokens / total),
        "gflops": round(reached, 1),
        "matrix_gflops": {"torch": round(theirs, 1), "ours": round(ours, 1)},
        "share_of_matrix_rate": round(reached / max(theirs, ours), 3),
        "share_of_torchs_matrix_rate": round(reached / theirs, 3),
        "time": {part: round(seconds / total, 3) for part, seconds in shares.items()},
    }


def main() -> None:
    """Each size on each kind of processor, in a process with its environment."""
    parser = Arguments(__doc__, output="step_profile.json", here="")
    parser.add_options(sizes=list(SIZES), kinds=list(KINDS))
    arguments = parser.parse_args()
    if arguments.here:
        torch.set_num_threads(1)
        print(json.dumps(measured(SIZES[arguments.here])))
        return
    facts, found = machine(), read_result(arguments.output).get("profiles", {})
    rows: list[tuple[object, ...]] = []
    for kind in arguments.kinds:
        for size in arguments.sizes:
            environment = {**training_environment(TrainingMachine(threads=1)), **KINDS[kind]}
            said = output_of(
                [sys.executable, sys.argv[0], "--here", size], env={**os.environ, **environment}
            )
            profile = found.setdefault(kind, {})[size] = json.loads(said.splitlines()[-1])
            times = profile["time"]
            rows.append((kind, size, profile["share_of_matrix_rate"], *times.values()))
            print(rows[-1], file=sys.stderr, flush=True)
            write_result(arguments.output, {"machine": facts, "profiles": found})
    header = ("processor", "model", "share of the rate", *PARTS, "other kernels", "the rest")
    print(markdown(header, rows))


if __name__ == "__main__":
    main()
