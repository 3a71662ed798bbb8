"""What of an answer's time is arithmetic: the milliseconds of answers.json beside the bound.

    python benchmarks/tasks/answer_bounds.py [--answers benchmarks/results/answers.json]

In:  answers.json, measured on this kind of processor with one thread; MiniLM-L6's shape.
Out: benchmarks/results/answer_bounds.json: for each batch and length, in fp32 and in bf16, the
     milliseconds that its products take at the rate of large ones, what share of our time that is,
     and how many times as fast as the fastest peer an encoder without any other work would be.

Products of a layer's weights and of attention alone: embeddings, norms, GELU, the tokeniser and
reading the weights from memory count as nothing, so nobody is as fast as the bound.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measuring import Arguments, Figures, machine, read_result, write_result
from cloze.model.config import EncoderConfig
from cloze.model.encoder.operations.products import sustained_rate

MINILM = EncoderConfig(
    preset=None,
    num_hidden_layers=6,
    hidden_size=384,
    num_attention_heads=12,
    intermediate_size=1536,
)
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def flops(batch: int, tokens: int) -> float:
    """Of the encoder's products, forward; two of attention are as wide as the encoder."""
    weights = 2.0 * MINILM.layer_weights * batch * tokens
    attention = 2.0 * 2 * MINILM.hidden_size * batch * tokens**2
    return MINILM.num_hidden_layers * (weights + attention)


def main() -> None:
    """Measure this processor's rates, and compare."""
    parser = Arguments(__doc__, output="answer_bounds.json", answers="")
    arguments = parser.parse_args()
    results = Path(__file__).resolve().parents[1] / "results"
    answers = read_result(arguments.answers or str(results / "answers.json"))
    if answers["threads"] != 1:
        raise SystemExit(f"answers.json: {answers['threads']} threads; expected those of one")
    rates = {name: sustained_rate(precision=dtype, cores=1) for name, dtype in PRECISIONS.items()}
    bounds: dict[str, Figures] = {}
    for cell, took in answers["milliseconds"].items():
        batch, tokens = map(int, cell.split(" x "))
        for precision, rate in rates.items():
            bound = 1e3 * flops(batch, tokens) / rate
            ours = f"cloze {precision}"
            peers = [took[side] for side in took if side.endswith(precision) and side != ours]
            bounds.setdefault(cell, {})[precision] = {
                "bound": round(bound, 2),
                "ours": took[ours],
                "share": round(bound / took[ours], 2),
                "fastest_peer": min(peers),
                "times_at_the_bound": round(min(peers) / bound, 2),
            }
    gflops = {name: round(rate / 1e9, 1) for name, rate in rates.items()}
    of_answers = {name: answers["machine"][name] for name in ("date", "commit", "processor")}
    head: Figures = {"machine": machine(), "answers": of_answers, "gflops": gflops}
    write_result(arguments.output, {**head, "milliseconds": bounds})


if __name__ == "__main__":
    main()
