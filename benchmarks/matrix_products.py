"""Our matrix products against torch's library: all of a step in fp32, weight gradients in bf16.

    python benchmarks/matrix_products.py [--precision bf16] [--seconds 50] [--threads 2]

In:  nothing: the operands are drawn from a seed; six of each, so that they do not stay in cache.
Out: benchmarks/results/products_bf16.json or products_fp32.json, by this machine's precision, and a
     table on standard output: GFLOP/s, medians over rounds in which the two take turns. Where
     training takes the library's product, both sides are the same.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from benchmarks.measuring import PRECISION, arguments_of, machine, markdown, write_result
from model.encoder.operations.products import product, transposed, transposed_product

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
"""Rows, depth and columns of the products in a step of the demo, in fp32."""

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
"""Those of products over all tokens or words."""

COPIES = 6
Sides = dict[str, Callable[[Tensor, Tensor], Tensor]]


def library_gradient(left_TM: Tensor, right_TN: Tensor) -> Tensor:
    """left^T right, [M, N], by torch: it multiplies a transposed copy of the narrower operand."""
    if left_TM.shape[1] > right_TN.shape[1]:
        return (transposed(right_TN) @ left_TM).mT
    return transposed(left_TM) @ right_TN


def operands(rows: int, depth: int, columns: int) -> list[tuple[Tensor, Tensor]]:
    """Left and right operands, the left one transposed if it is a gradient's, as in training."""
    is_turned = depth > max(rows, columns)
    left = torch.randn(COPIES, depth, rows).mT if is_turned else torch.randn(COPIES, rows, depth)
    return list(zip(left, torch.randn(COPIES, depth, columns), strict=True))


def main() -> None:
    """Read the arguments, compare, write."""
    parser = arguments_of(__doc__, output=f"products_{PRECISION}.json")
    parser.add_argument("--precision", default=PRECISION, choices=("bf16", "fp32"))
    parser.add_argument("--seconds", type=float, default=50.0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    facts = machine()
    shapes, sides = DEMO, Sides(torch=torch.mm, ours=product)
    if arguments.precision == "bf16":
        shapes, sides = GRADIENTS, Sides(torch=library_gradient, ours=transposed_product)
    given = {name: operands(*shape) for name, shape in shapes.items()}
    if arguments.precision == "bf16":
        given = {
            name: [(left.mT.bfloat16(), right.bfloat16()) for left, right in pairs]
            for name, pairs in given.items()
        }
    seconds: dict[tuple[str, str], list[float]] = {}
    until = time.monotonic() + arguments.seconds
    while time.monotonic() < until:
        for name, pairs in given.items():
            for side, multiply in sides.items():
                started = time.perf_counter()
                for left, right in pairs:
                    multiply(left, right)
                took = (time.perf_counter() - started) / COPIES
                seconds.setdefault((name, side), []).append(took)
    medians = {key: statistics.median(found) for key, found in seconds.items()}
    sums = {side: sum(medians[name, side] for name in shapes) for side in sides}
    gflops = {
        name: {side: 2e-9 * rows * depth * columns / medians[name, side] for side in sides}
        for name, (rows, depth, columns) in shapes.items()
    }
    times = sums["torch"] / sums["ours"]
    write_result(
        arguments.output,
        {
            "machine": facts,
            "threads": arguments.threads,
            "rounds": len(seconds[next(iter(seconds))]),
            "gflops": {
                name: {side: round(rate) for side, rate in found.items()}
                for name, found in gflops.items()
            },
            "times_torch_in_sum": round(times, 3),
        },
    )
    header = ("rows × depth × columns", *sides)
    rows = [
        (
            f"{' × '.join(f'{n:,}' for n in shapes[name])}, {name}",
            *(f"{r:.0f}" for r in of.values()),
        )
        for name, of in gflops.items()
    ]
    print(markdown(header, rows))
    print(f"in sum ours is {times:.2f} times as fast")


if __name__ == "__main__":
    main()
