"""What the words of the same text are worth without an encoder: the mean of static vectors.

    python benchmarks/afternoon/static_vectors.py configs/afternoon.toml TOKENS

In:  the configuration with its tasks, and the run's artifact `tokens` (`cloze inspect RUN/tokens`).
Out: benchmarks/results/static_vectors.json: for each task the scores on dev of the mean vector, and
     of the baselines that every report has (bag of words, word overlap).

Vectors are those that pre-training can begin with (`[word_vectors]`). A text is the mean of its
pieces' vectors, rare ones weighing more (Arora et al. 2017); a pair is the product and the distance
of its two, with their cosine. Logistic or ridge regression does the rest; how strongly it is held
back is chosen by cross-validation on train.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.afternoon.short_grid import read
from benchmarks.measuring import Arguments, machine, write_result
from cloze.artifacts.store import Artifact, open_artifact
from cloze.artifacts.tokenizer import SubwordTokenizer, read_tokenizer_json
from cloze.model.config import TaskConfig
from cloze.model.data.documents import training_frequencies
from cloze.model.data.word_vectors import mutual_information, pair_counts, singular_vectors
from cloze.model.tasks.baselines import baselines
from cloze.model.tasks.files.task_table import TaskTable
from cloze.model.tasks.problems import load_problem, load_tables

WIDTH, WINDOW, RARE = 256, 5, 1e-3

Floats = NDArray[np.float64]


def static_vectors(tokens: Artifact) -> tuple[Floats, Floats]:
    """[V, WIDTH] vectors of the word-pieces, and [V] how often each occurs, as a share."""
    frequencies = training_frequencies(tokens)
    counts, _ = pair_counts(tokens, frequencies, window=WINDOW)
    vectors = singular_vectors(mutual_information(counts), WIDTH)
    return vectors.astype(np.float64), frequencies / frequencies.sum()


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
    if problem.predicts == "number":
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
    vectors, usual = static_vectors(tokens)
    tasks = {
        task.name: scores(task, tokenizer, vectors, usual)
        for task in read(arguments.config).finetune.tasks
    }
    for name, found in tasks.items():
        print(name, found)
    write_result(arguments.output, {"machine": machine(), "width": WIDTH, "tasks": tasks})


if __name__ == "__main__":
    main()
