"""Keep what a run trained a sentence encoder to only if it searches better than before.

In:  a finished run that trained a sentence encoder further on pairs; questions with right answers
     and the folder that they are about, if there are any.
Out: `adapted`, an artifact of the run with the encoder that is kept: the trained one, one between
     it and the original, or the original; what it is worth, with its interval. The run's report,
     made again with that.

Without questions queries made of held-out passages decide: dev chooses among the candidates, test
reports. With questions half of them choose and the other half report, on the folder's passages;
only then vectors of terms are tried, which are about the passages that they are fitted to.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from cloze.artifacts.config import flat
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import say
from cloze.artifacts.results import TASK_SPLITS
from cloze.artifacts.stage import InputRef, StageTable, read_stage_table, write_stage_table
from cloze.artifacts.store import Artifact, commit, put_bytes
from cloze.flows.config import ReportStage
from cloze.flows.external_inputs import digest_of_files, digest_of_model
from cloze.flows.inventory import intact
from cloze.flows.report.__main__ import make_report
from cloze.flows.report.summary import KeptEncoder
from cloze.flows.workspace import (
    ADAPTED,
    RunRecord,
    StageRecord,
    Workspace,
    run_artifact,
    show_report,
    write_record,
)
from cloze.inference.collection import SearchedFolder, index_folder
from cloze.inference.searcher import WORDS
from cloze.model.inference.export import contents
from cloze.model.inference.load import model_of, read_sentence_encoder
from cloze.model.retrieval.candidates import (
    SHARES,
    TERM_WEIGHTS,
    QuestionSet,
    Verdict,
    choose,
)
from cloze.model.retrieval.passage_index import PASSAGES, read_passages
from cloze.model.retrieval.questions import Question, find_gold, read_questions
from cloze.model.tasks.files.table_files import read_table
from cloze.model.tasks.files.task_table import Wanted
from cloze.model.tasks.ranking import RankingTexts

FORMAT_VERSION = 7

MOST_PASSAGES = 20_000
"""Passages among which questions are ranked; of a larger folder, the right ones and a sample."""

MOST_BESIDE_PAIRS = 2000
"""Passages among which the queries of held-out pairs are ranked."""

MARGIN = 0.005
"""Of nDCG@10, that the gain by made-up queries must exceed for certain: of useless trainings with
small rates some are better by less."""

FEWEST_QUESTIONS = 20
"""With fewer, no interval means much."""


@dataclass(frozen=True)
class Evidence:
    """What decides: the right passages are known for both sets."""

    choosing: QuestionSet
    reporting: QuestionSet
    term_weights: tuple[float, ...] = ()
    """Of vectors of terms to try."""


def keep_if_better(
    record: RunRecord, space: Workspace, *, folder: str, questions: str = ""
) -> Artifact:
    """Choose the encoder that the run's name stands for from now on, and say why."""
    initial = str(flat(record.config)["finetune.encoder"])
    trained = run_artifact(space, record.name, stage="finetune")
    pairs = run_artifact(space, record.name, stage="pairs")
    # The decision is an artifact like any other: it depends on both encoders and on what they are
    # compared by, so with the same inputs it is taken over, not made again.
    inputs = {
        "initial": digest_of_model(initial, place="finetune.encoder"),
        "trained": trained.digest,
        "pairs": pairs.digest,
    }
    index = _index(initial, folder, questions, space) if questions else None
    if index:
        inputs["questions"] = digest_of_files(questions, place="--evaluate")
        inputs["documents"] = index.digest
    table = StageTable(
        stage=ADAPTED,
        format_version=FORMAT_VERSION,
        config={"shares": [*SHARES], "term_weights": [*TERM_WEIGHTS], "words": WORDS},
        inputs={name: InputRef(digest=digest) for name, digest in inputs.items()},
        output="",
    )
    table = table.model_copy(update={"output": space.store.directory(ADAPTED, table.key)})
    earlier, began = intact(table, said_by="adapt"), time.monotonic()
    artifact = earlier or _chosen(
        table,
        initial,
        trained.directory,
        _of_questions(questions, index)
        if index
        else _of_pairs(pairs, str(flat(record.config)["pairs.kind"])),
    )
    entry = StageRecord(
        key=table.key,
        digest=artifact.digest,
        state="reused" if earlier else "made",
        seconds=None if earlier else round(time.monotonic() - began, 3),
    )
    record = record.model_copy(update={"stages": {**record.stages, ADAPTED: entry}})
    write_record(record, space)
    write_record(_reported(record, space, artifact), space)
    return artifact


def _reported(record: RunRecord, space: Workspace, kept: Artifact) -> RunRecord:
    """The record with a report that says what was kept, instead of the one made before."""
    path = space.local / record.name / "stages" / f"{ReportStage.stage}.json"
    table = read_stage_table(path)
    decided = InputRef(digest=kept.digest, path=kept.directory)
    table = table.model_copy(update={"inputs": {**table.inputs, ADAPTED: decided}})
    place = space.store.directory(table.stage, table.key)
    table = table.model_copy(update={"output": place})
    write_stage_table(table, path)
    earlier = intact(table, said_by="adapt")
    report = earlier or make_report(table, [])
    show_report(report, space, record.name)
    made = {"key": table.key, "digest": report.digest, "state": "reused" if earlier else "made"}
    entry = record.stages[table.stage].model_copy(update=made)
    return record.model_copy(update={"stages": {**record.stages, table.stage: entry}})


def _chosen(table: StageTable, initial: str, trained: str, evidence: Evidence) -> Artifact:
    """The artifact with the encoder that is kept."""
    old, new = read_sentence_encoder(initial), read_sentence_encoder(trained)
    # One set chooses among the candidates, the other reports; see model/retrieval/candidates.py.
    verdict = choose(
        old,
        new,
        choosing=evidence.choosing,
        reporting=evidence.reporting,
        say=lambda line: say(f"adapt: {line}"),
        term_weights=evidence.term_weights,
    )
    files = contents(verdict.encoder(old, new))
    entries = [put_bytes(table.output, content, name=name) for name, content in files.items()]
    words = new.tokenizer.size - old.tokenizer.size  # 0 where none are added
    facts = _facts(verdict, evidence, words=words)
    return commit(table, entries, statistics=facts.model_dump(mode="json"))


def _facts(verdict: Verdict, evidence: Evidence, *, words: int) -> KeptEncoder:
    found, later = verdict.candidates, verdict.later
    return KeptEncoder(
        share=verdict.best.share,
        terms=verdict.best.terms,
        kept_share=verdict.kept.share,
        kept_terms=verdict.kept.terms,
        before=verdict.before,
        difference=verdict.difference.mean,
        low=verdict.difference.low,
        high=verdict.difference.high,
        margin=verdict.margin,
        candidates=tuple((one.share, score) for one, score in found if not one.terms),
        term_candidates=tuple((one.terms, score) for one, score in found if one.terms),
        later_candidates=tuple((one.terms, score) for one, score in verdict.later_candidates),
        later=(later.mean, later.low, later.high) if later else None,
        chosen_by=f"{len(evidence.choosing.questions):,} {evidence.choosing.name}",
        reported_by=f"{len(evidence.reporting.questions):,} {evidence.reporting.name}",
        passages=len(evidence.reporting.passages),
        words=words,
    )


def _of_pairs(pairs: Artifact, kind: str) -> Evidence:
    """The held-out pairs of the run, whose passages are ranked among those that are trained on."""
    texts = {
        split: RankingTexts(
            read_table(
                pairs.path(f"retrieval/{split}.jsonl"), Wanted(required=("query", "passage"))
            )
        )
        for split in TASK_SPLITS
    }
    # A configuration of one's own may have other pairs.
    name, margin = ("made-up queries", MARGIN) if kind == "spans" else ("held-out pairs", 0.0)
    every = [text for one in texts.values() for text in one.passages]
    sets = []
    for split in ("dev", "test"):
        own = texts[split]
        # Its own first, as they are numbered. Among few passages nearly every query finds its own.
        passages = [*dict.fromkeys(chain(own.passages, every))]
        relevant = tuple(dict(sorted(grades.items())) for grades in own.relevant)
        most = max(MOST_BESIDE_PAIRS, len(own.passages))
        texts_of = (tuple(own.queries), tuple(passages[:most]))
        sets.append(QuestionSet(f"{name} ({split})", *texts_of, relevant, margin))
    return Evidence(sets[0], sets[1])


def _index(initial: str, folder: str, questions: str, space: Workspace) -> Artifact:
    """The folder's passages, as `cloze search` has them."""
    model = model_of(read_sentence_encoder(initial), precision="fp32")
    searched = SearchedFolder(folder, WORDS, others=(questions,))
    return index_folder(model, initial, searched, space=space)


def refuse_unknown_answers(initial: str, folder: str, questions: str, space: Workspace) -> None:
    """Refuse questions about other documents; the index is the one that will decide."""
    _of_questions(questions, _index(initial, folder, questions, space))


def questions_that_decide(path: str) -> list[Question]:
    """The questions at `path`, if there are enough to choose by."""
    asked = read_questions(path)
    if len(asked) < FEWEST_QUESTIONS:
        raise UsageError(
            f"{path}: {len(asked)} questions, expected at least {FEWEST_QUESTIONS} to choose an "
            "encoder by; leave out --evaluate, then made-up queries decide"
        )
    return asked


def _of_questions(questions: str, index: Artifact) -> Evidence:
    """Two halves of the questions, on the folder's passages."""
    asked = questions_that_decide(questions)
    passages = [*read_passages(index.path(PASSAGES))]
    gold = find_gold(asked, passages)
    # Whole documents may be right; vectors are those of passages, so each passage of a right
    # document counts as right.
    grades = [
        _by_passage(of_question, gold.firsts(number), len(passages))
        for number, of_question in enumerate(gold.relevant)
    ]
    rows = _sampled(grades, len(passages))
    number = {row: place for place, row in enumerate(rows)}
    # Halved at random: questions in a file are often in an order, by topic or by author.
    draw = np.random.default_rng(0).permutation(len(asked))
    halves = []
    for half in (draw[::2], draw[1::2]):
        # A question whose right passage is not in the folder cannot tell encoders apart.
        kept = [one for one in sorted(half.tolist()) if grades[one]]
        halves.append(
            QuestionSet(
                "questions",
                tuple(gold.questions[one] for one in kept),
                tuple(passages[row].indexed for row in rows),
                tuple({number[row]: g for row, g in grades[one].items()} for one in kept),
            )
        )
    return Evidence(halves[0], halves[1], TERM_WEIGHTS)


def _by_passage(
    grades: Mapping[int, float], firsts_U: np.typing.NDArray[np.int64], passages: int
) -> dict[int, float]:
    """Grades of passages, from those of the units that they belong to."""
    ends_U = np.append(firsts_U[1:], passages)
    return {
        row: grade
        for unit, grade in grades.items()
        if unit >= 0
        for row in range(int(firsts_U[unit]), int(ends_U[unit]))
    }


def _sampled(grades: Sequence[Mapping[int, float]], passages: int) -> list[int]:
    """All passages, or the right ones and as many others as `MOST_PASSAGES` allows."""
    if passages <= MOST_PASSAGES:
        return [*range(passages)]
    # Right passages must all be there; the others are only there to be confused with.
    right = {row for of_question in grades for row in of_question}
    drawn = np.random.default_rng(0).permutation(passages)[:MOST_PASSAGES].tolist()
    return sorted({*right, *drawn})
