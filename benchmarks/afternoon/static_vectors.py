"""What the words of the same text are worth without an encoder: the mean of static vectors.

    python benchmarks/afternoon/static_vectors.py configs/afternoon.toml TOKENS

In:  the configuration with its tasks, and the run's artifact `tokens` (`cloze inspect RUN/tokens`).
Out: benchmarks/results/static_vectors.json: for each task the scores on dev of the mean vector, and
     of the baselines that every report has (bag of words, word overlap).

Vectors are those of Levy et al. (2015): positive pointwise mutual information of word-pieces within
`WINDOW`, contexts smoothed by `SMOOTHING`, and a truncated singular value decomposition. A text is
the mean of its pieces' vectors, rare ones weighing more (Arora et al. 2017); a pair is the product
and the distance of its two, with their cosine. Logistic or ridge regression does the rest; how
strongly it is held back is chosen by cross-validation on train.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.extmath import randomized_svd

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.afternoon.short_grid import read
from benchmarks.measuring import Arguments, machine, write_result
from cloze.artifacts.store import Artifact, open_artifact
from cloze.artifacts.tokenizer import SubwordTokenizer, read_tokenizer_json
from cloze.model.config import TaskConfig
from cloze.model.tasks.baselines import baselines
from cloze.model.tasks.files.task_table import TaskTable
from cloze.model.tasks.problems import load_problem, load_tables

WIDTH, WINDOW, SMOOTHING, RARE = 256, 5, 0.75, 1e-3
CHUNK = 2_000_000
"""Tokens counted at a time."""

Floats = NDArray[np.float64]


def documents(tokens: Artifact) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The word-pieces of each file of the training split, and the document that each is in."""
    for entry in tokens.manifest.files:
        if not entry.name.startswith("train-"):
            continue
        with pa.memory_map(tokens.path(entry.name)) as source:
            column = pa.ipc.open_file(source).read_all()["token_ids"].combine_chunks()
            pieces = column.flatten().to_numpy().astype(np.int64)
            yield pieces, np.repeat(np.arange(len(column)), column.value_lengths().to_numpy())


def static_vectors(tokens: Artifact, size: int) -> tuple[Floats, Floats]:
    """[V, WIDTH] vectors of the word-pieces, and [V] how often each occurs, as a share."""
    together = np.zeros(size * size, np.float32)
    alone = np.zeros(size)
    for pieces, document in documents(tokens):
        alone += np.bincount(pieces, minlength=size)
        for start in range(0, len(pieces), CHUNK):
            ids, where = pieces[start : start + CHUNK], document[start : start + CHUNK]
            for apart in range(1, WINDOW + 1):
                # A window does not reach into the next document.
                inside = where[apart:] == where[:-apart]
                pairs = ids[:-apart][inside] * size + ids[apart:][inside]
                # Unique first: an index that repeats would be added once.
                found, counts = np.unique(pairs, return_counts=True)
                together[found] += counts
    matrix = together.reshape(size, size)
    matrix += matrix.T.copy()  # both sides
    contexts = matrix.sum(0, dtype=np.float64) ** SMOOTHING
    rows = matrix.sum(1, dtype=np.float64)
    with np.errstate(divide="ignore"):
        for row in range(size):  # in place: the matrix is the largest thing here
            expected = rows[row] * contexts / contexts.sum()
            matrix[row] = np.log(np.maximum(matrix[row] / np.maximum(expected, 1e-9), 1.0))
    left, values, _ = randomized_svd(matrix, WIDTH, random_state=0)
    # By the roots of the singular values, which Levy et al. find better than their full weight.
    vectors: Floats = left * np.sqrt(values)
    return vectors, alone / alone.sum()


def means(texts: list[str], tokenizer: SubwordTokenizer, vectors: Floats, usual: Floats) -> Floats:
    """[texts, WIDTH] mean vectors, of length one."""
    weighted = vectors * (RARE / (RARE + usual))[:, None]
    found: Floats = np.zeros((len(texts), vectors.shape[1]))
    for row, text in enumerate(texts):
        if ids := tokenizer.encode(text):
            found[row] = weighted[ids].mean(0)
    found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)
    return found


def features(
    table: TaskTable, tokenizer: SubwordTokenizer, vectors: Floats, usual: Floats
) -> Floats:
    """[rows, F] what the regression sees of a row."""
    first = means(table.texts("text_a"), tokenizer, vectors, usual)
    if not table.has("text_b"):
        return first
    second = means(table.texts("text_b"), tokenizer, vectors, usual)
    cosine = (first * second).sum(1, keepdims=True)
    return np.hstack([cosine, first * second, np.abs(first - second)])


def scores(
    config: TaskConfig, tokenizer: SubwordTokenizer, vectors: Floats, usual: Floats
) -> dict[str, dict[str, float]]:
    """Each system's metrics on dev in percent."""
    tables = load_tables(config)
    problem = load_problem(config, None, tables)
    train, dev = (features(tables[split], tokenizer, vectors, usual) for split in ("train", "dev"))
    labels = tables["train"].columns["label"]
    if config.kind == "regression":
        model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(0, 5, 11)))
        predicted = model.fit(train, [float(str(y)) for y in labels]).predict(dev).tolist()
    else:
        chosen = LogisticRegressionCV(
            **{"Cs": np.logspace(-4, 0, 5), "cv": 3, "max_iter": 300, "scoring": "accuracy"},
            **{"l1_ratios": (0,), "use_legacy_attributes": False},
        )
        model = make_pipeline(StandardScaler(), chosen)
        predicted = model.fit(train, [str(y) for y in labels]).predict(dev).tolist()
    found = {"static vectors": problem.score("dev", predicted)}
    found |= {one.name: one.dev for one in baselines(problem, tables)}
    return {
        name: {metric: round(100 * score, 1) for metric, score in by_metric.items()}
        for name, by_metric in found.items()
    }


def main() -> None:
    """Make the vectors, then score every task."""
    parser = Arguments(__doc__, output="static_vectors.json")
    parser.add_argument("config")
    parser.add_argument("tokens", help="directory of the artifact `tokens`")
    arguments = parser.parse_args()
    tokens = open_artifact(arguments.tokens)
    tokenizer = read_tokenizer_json(tokens.path("tokenizer.json"))
    vectors, usual = static_vectors(tokens, tokenizer.size)
    tasks = {
        task.name: scores(task, tokenizer, vectors, usual)
        for task in read(arguments.config).finetune.tasks
    }
    for name, found in tasks.items():
        print(name, found)
    write_result(arguments.output, {"machine": machine(), "width": WIDTH, "tasks": tasks})


if __name__ == "__main__":
    main()
