"""How fast batches are read from an examples artifact, and how soon the first one is ready.

    python benchmarks/preparing/loader.py --examples WORKSPACE/artifacts/examples/KEY

In:  an examples artifact.
Out: benchmarks/results/loader.json: examples/s and tokens/s of one core (order, lengths, division
     into micro-batches, gathering, packing) at several batch sizes; seconds to the first batch, at
     the start of a run and far into it.
"""

import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import Arguments, machine, write_result
from cloze.artifacts.store import Artifact, open_artifact
from cloze.model.config import PretrainStage
from cloze.model.data.micro_batches import BatchSource, Share
from cloze.model.data.sources import suited_tokenizer, training_source

BATCH_SIZES = (32, 256, 1024)
REPEATS = 5
FAR = 10**7
"""A step beyond any run of ours: resuming there must be as fast as at step 0."""


def source_of(examples: Artifact, *, max_seq_length: int, batch_size: int) -> BatchSource:
    """Batches of one maximum length, as a training run reads them."""
    phases = [{"max_seq_length": max_seq_length, "share": 1.0}]
    # Enough steps for `FAR` to be one of them.
    recipe = {"steps": 2 * FAR, "batch_size": batch_size, "phases": phases}
    stage = PretrainStage.model_validate({"seed": 0, "encoder": {}, "pretrain": recipe})
    tokenizer = suited_tokenizer(examples, stage)
    return training_source(examples, tokenizer, stage, share=Share(0, 1, token_budget=65536))


def throughput(source: BatchSource, *, batches: int) -> dict[str, float]:
    """Examples and tokens per second of processor time."""
    rates = []
    for repeat in range(REPEATS):
        started, examples, tokens = time.process_time(), 0, 0
        for step in range(repeat * batches, (repeat + 1) * batches):
            made = source(step)
            examples, tokens = examples + made.examples, tokens + made.tokens
        seconds = time.process_time() - started
        rates.append((examples / seconds, tokens / seconds))
    return {
        "examples_per_s": round(statistics.median(rate for rate, _ in rates)),
        "tokens_per_s": round(statistics.median(rate for _, rate in rates)),
    }


def first_batch(examples: Artifact, *, max_seq_length: int, step: int) -> float:
    """Seconds from an opened artifact to the batch of `step`."""
    started = time.perf_counter()
    source_of(examples, max_seq_length=max_seq_length, batch_size=256)(step)
    return round(time.perf_counter() - started, 4)


def main() -> None:
    """Read the arguments, measure, write."""
    parser = Arguments(__doc__, output="loader.json", max_seq_length=128)
    parser.add_argument("--examples", required=True, help="directory of an examples artifact")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    examples, length = open_artifact(arguments.examples), arguments.max_seq_length
    first = first_batch(examples, max_seq_length=length, step=0)
    rates = {}
    for batch_size in BATCH_SIZES:
        source = source_of(examples, max_seq_length=length, batch_size=batch_size)
        rates[str(batch_size)] = throughput(source, batches=max(8, 8192 // batch_size))
    result = {
        "machine": machine(),
        "max_seq_length": length,
        "rows": sum(map(sum, source.shards[length].rows)),
        "by_batch_size": rates,
        "first_batch_s": first,
        "first_batch_again_s": first_batch(examples, max_seq_length=length, step=0),
        "first_batch_far_out_s": first_batch(examples, max_seq_length=length, step=FAR),
    }
    write_result(arguments.output, result)
    print(result)


if __name__ == "__main__":
    main()
