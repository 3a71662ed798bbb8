"""Our float32 matrix product against torch's library, at the shapes of a step of the demo.

    python benchmarks/float32_products.py [--seconds 50] [--threads 2]

In:  nothing: the operands are drawn from a seed; six of each, so that they do not stay in cache.
Out: benchmarks/results/float32_products.json, and a table on standard output: GFLOP/s, medians over
     rounds in which the two take turns. Where torch's library is the faster one on this vendor's
     processors, both sides are that library (model/hardware.py).
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from benchmarks.measuring import arguments_of, machine, markdown, write_result
from model.encoder.operations.products import product

TOKENS, MASKED, WIDTH, WORDS = 1856, 300, 256, 8192
SHAPES = {
    "query, key and value": (TOKENS, WIDTH, 3 * WIDTH),
    "into the feed-forward part": (TOKENS, WIDTH, 4 * WIDTH),
    "out of it": (TOKENS, 4 * WIDTH, WIDTH),
    "its weights' gradient": (WIDTH, TOKENS, 4 * WIDTH),
    "logits of the masked tokens": (WORDS, WIDTH, MASKED),
    "their gradient": (WIDTH, WORDS, MASKED),
    "the vocabulary's gradient": (WORDS, MASKED, WIDTH),
}
"""Rows, depth and columns."""

COPIES = 6
SIDES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"torch": torch.mm, "ours": product}


def operands(rows: int, depth: int, columns: int) -> list[tuple[Tensor, Tensor]]:
    """Left and right operands, the left one transposed if it is a gradient's, as in training."""
    is_turned = depth > max(rows, columns)
    left = torch.randn(COPIES, depth, rows).mT if is_turned else torch.randn(COPIES, rows, depth)
    return list(zip(left, torch.randn(COPIES, depth, columns), strict=True))


def main() -> None:
    """Read the arguments, compare, write."""
    parser = arguments_of(__doc__, output="float32_products.json")
    parser.add_argument("--seconds", type=float, default=50.0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    facts = machine()
    given = {name: operands(*shape) for name, shape in SHAPES.items()}
    seconds: dict[tuple[str, str], list[float]] = {}
    until = time.monotonic() + arguments.seconds
    while time.monotonic() < until:
        for name, pairs in given.items():
            for side, multiply in SIDES.items():
                started = time.perf_counter()
                for left, right in pairs:
                    multiply(left, right)
                took = (time.perf_counter() - started) / COPIES
                seconds.setdefault((name, side), []).append(took)
    medians = {key: statistics.median(found) for key, found in seconds.items()}
    sums = {side: sum(medians[name, side] for name in SHAPES) for side in SIDES}
    gflops = {
        name: {side: 2e-9 * rows * depth * columns / medians[name, side] for side in SIDES}
        for name, (rows, depth, columns) in SHAPES.items()
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
    header = ("rows × depth × columns", *SIDES)
    rows = [
        (
            f"{' × '.join(f'{n:,}' for n in SHAPES[name])}, {name}",
            *(f"{r:.0f}" for r in of.values()),
        )
        for name, of in gflops.items()
    ]
    print(markdown(header, rows))
    print(f"in sum ours is {times:.2f} times as fast")


if __name__ == "__main__":
    main()
