"""Our matrix products against torch's library: all of a step in fp32; in bf16 those of our kernels.

    python benchmarks/training/matrix_products.py [--precision bf16] [--seconds 50] [--threads 2]

In:  nothing: the operands are drawn from a seed; six of each, so that they do not stay in cache.
Out: benchmarks/results/products_bf16.json or products_fp32.json, by this machine's precision, and a
     table on standard output: GFLOP/s, medians over rounds in which the two take turns. Where
     training takes the library's product, both sides are the same.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor

from benchmarks.measuring import PRECISION, Arguments, machine, markdown, write_result
from cloze.model.encoder.operations.products import product, transposed, transposed_product

COPIES = 6
SIDES = ("torch", "ours")
Pairs = list[tuple[Tensor, Tensor]]


class Kind(NamedTuple):
    """Products that take their operands in the same layout."""

    operands: Callable[[int, int, int], Pairs]
    sides: tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]
    """torch's, ours."""

    shapes: dict[str, tuple[int, int, int]]
    """Rows, depth and columns."""


def of_a_step(rows: int, depth: int, columns: int) -> Pairs:
    """Operands in float32, the left one transposed if it is a gradient's, as in training."""
    is_turned = depth > max(rows, columns)
    left = torch.randn(COPIES, depth, rows).mT if is_turned else torch.randn(COPIES, rows, depth)
    return list(zip(left, torch.randn(COPIES, depth, columns), strict=True))


def over_tokens(rows: int, depth: int, columns: int) -> Pairs:
    """Both operands of a gradient, [T, M] and [T, N], in bfloat16."""
    left, right = torch.randn(COPIES, depth, rows), torch.randn(COPIES, depth, columns)
    return list(zip(left.bfloat16(), right.bfloat16(), strict=True))


def with_a_weight(rows: int, depth: int, columns: int) -> Pairs:
    """[M, K] and a weight [N, K], transposed, in bfloat16."""
    left, weight = torch.randn(COPIES, rows, depth), torch.randn(COPIES, columns, depth)
    return list(zip(left.bfloat16(), weight.bfloat16().mT, strict=True))


def library_gradient(left_TM: Tensor, right_TN: Tensor) -> Tensor:
    """left^T right, [M, N], by torch: it multiplies a transposed copy of the narrower operand."""
    if left_TM.shape[1] > right_TN.shape[1]:
        return (transposed(right_TN) @ left_TM).mT
    return transposed(left_TM) @ right_TN


# in a step of the demo
TOKENS, MASKED, WIDTH, WORDS = 1856, 300, 256, 8192
DEMO = {
    "query, key and value": (TOKENS, WIDTH, 3 * WIDTH),
    "into the feed-forward part": (TOKENS, WIDTH, 4 * WIDTH),
    "out of it": (TOKENS, 4 * WIDTH, WIDTH),
    "its weights' gradient": (WIDTH, TOKENS, 4 * WIDTH),
    "logits of the masked tokens": (WORDS, WIDTH, MASKED),
    "their gradient": (WIDTH, WORDS, MASKED),
    "the vocabulary's gradient": (WORDS, MASKED, WIDTH),
}
GRADIENTS = {
    "L4 H256, query, key and value": (256, 6656, 768),
    "L4 H256, attention's output": (256, 6656, 256),
    "L4 H256, feed-forward part": (256, 6656, 1024),
    "L4 H256, masked vectors": (256, 30_522, 992),
    "MiniLM, attention's output": (384, 1024, 384),
    "MiniLM, feed-forward part": (384, 1024, 1536),
    "modern 68M, feed-forward part": (2048, 4096, 512),
    "base, attention's output": (768, 3400, 768),
    "base, feed-forward part": (768, 3400, 3072),
}
FEW_ROWS = {
    "MiniLM, out of the feed-forward part": (416, 1536, 384),
    "the same, 640 tokens": (640, 1536, 384),
    "the same, 800 tokens": (800, 1536, 384),
    "gradient of its attention's input": (416, 1152, 384),
    "its attention's output, 416 tokens": (416, 384, 384),
    "L4 H256, attention's output, 512 tokens": (512, 256, 256),
    "L2 H128, query, key and value, 512 tokens": (512, 128, 384),
}
KINDS = {
    "fp32": (Kind(of_a_step, (torch.mm, product), DEMO),),
    "bf16": (
        Kind(over_tokens, (library_gradient, transposed_product), GRADIENTS),
        Kind(with_a_weight, (torch.mm, product), FEW_ROWS),
    ),
}
"""A step of the demo in fp32; in bf16, weight gradients and products of few rows."""


def main() -> None:
    """Read the arguments, compare, write."""
    parser = Arguments(__doc__, output=f"products_{PRECISION}.json", seconds=50.0)
    parser.add_options(threads=torch.get_num_threads())
    parser.add_argument("--precision", default=PRECISION, choices=tuple(KINDS))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    facts = machine()
    shapes: dict[str, tuple[int, int, int]] = {}
    turns = []
    for operands, sides, of_kind in KINDS[arguments.precision]:
        shapes |= of_kind
        for name, shape in of_kind.items():
            pairs = operands(*shape)
            turns += [((name, side), way, pairs) for side, way in zip(SIDES, sides, strict=True)]
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key, *_ in turns}
    until = time.monotonic() + arguments.seconds
    while time.monotonic() < until:
        for key, multiply, pairs in turns:
            started = time.perf_counter()
            for left, right in pairs:
                multiply(left, right)
            seconds[key].append((time.perf_counter() - started) / COPIES)
    medians = {key: statistics.median(found) for key, found in seconds.items()}
    torchs, ours = (sum(medians[name, side] for name in shapes) for side in SIDES)
    # two FLOPs for each of rows × depth × columns
    gflops = {
        name: {side: round(2e-9 * math.prod(shape) / medians[name, side]) for side in SIDES}
        for name, shape in shapes.items()
    }
    result = {
        "machine": facts,
        "threads": arguments.threads,
        "rounds": len(next(iter(seconds.values()))),
        "gflops": gflops,
        "times_torch_in_sum": round(torchs / ours, 3),
    }
    write_result(arguments.output, result)
    rows = [
        (f"{' × '.join(f'{n:,}' for n in shape)}, {name}", *gflops[name].values())
        for name, shape in shapes.items()
    ]
    print(markdown(("rows × depth × columns", *SIDES), rows))
    print(f"in sum ours is {torchs / ours:.2f} times as fast")


if __name__ == "__main__":
    main()
