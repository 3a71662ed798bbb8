"""Quality rules beside datatrove's: the same decisions, and how fast.

    python benchmarks/preparing/rules.py --wikiextractor FOLDER --documents 20000 \
        --datatrove PYTHON --more texts.jsonl --vocabulary vocab.txt

In:  a folder of WikiExtractor files; optionally JSON lines of other texts, which come first; the
     interpreter of an environment with datatrove (benchmarks/peers/datatrove_rules.py).
Out: for each preset how many decisions are equal on the cleaned documents, and why the others are
     not; seconds of processor time of both, on one core and in turns. With a vocabulary also how
     fast documents become token ids, from files on, with the rules of a preset and without. The
     seconds of a whole `cloze prepare` of one copy, start-up and a new vocabulary included, with
     rules and without. The speed of other tools' rules (benchmarks/peers/other_rules.py) beside
     Gopher's here. `--parts` measures some of this; the rest stays in the result file.

A decision that differs is made again by datatrove with our words in place of spaCy's: if it is then
equal, the words are the cause.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import tomli_w

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.corpus import corpus_of
from benchmarks.measuring import Arguments, Figures, in_turns, machine, measure, write_result
from cloze.artifacts.arrays import concatenated
from cloze.artifacts.stage import StageTable
from cloze.pipeline.config.presets import PRESETS
from cloze.pipeline.config.settings import (
    CleaningConfig,
    ReaderName,
    TokensStage,
    VocabularyConfig,
    VocabularyStage,
)
from cloze.pipeline.readers.documents import DocumentBlock, grouped
from cloze.pipeline.readers.input_shards import input_shards
from cloze.pipeline.text.filters import Reason, filter_documents
from cloze.pipeline.text.line_rules import apply_line_rules
from cloze.pipeline.text.personal import KINDS
from cloze.pipeline.text.sentences import split_sentences
from cloze.pipeline.text.texts import STRIDE_BYTES, count_lines, read_paragraphs
from cloze.pipeline.text.words import cut_words
from cloze.pipeline.tokenizer.tokenized_documents import ShardTokenizer
from cloze.pipeline.vocabulary import make_vocabulary

PEER = Path(__file__).resolve().parents[1] / "peers" / "datatrove_rules.py"
OTHERS = Path(__file__).resolve().parents[1] / "peers" / "other_rules.py"
PARTS = ("decisions", "tokens", "preparation", "others")
ROUNDS = 3
SOME = 4000
"""Documents for tools of which the speed alone is asked."""
EXAMPLES = 3
"""Documents named for each difference."""


@dataclass
class Decisions:
    """Why a preset drops each document, or `kept`; what it leaves of it; and the seconds taken."""

    reasons: list[str]
    texts: list[str]
    seconds: float


def cleaned(path: str, reader: ReaderName) -> Iterator[str]:
    """The documents of a file or folder as the filters see them, without the last line feed."""
    corpus = corpus_of(path, reader=reader)
    for shard in input_shards(corpus):
        for block in read_paragraphs(shard, corpus=corpus):
            for _, text in block.documents():
                if text.strip():
                    yield text.decode().removesuffix("\n")


def blocks_of(documents: list[str]) -> Iterator[DocumentBlock]:
    """The documents in blocks of about a megabyte."""
    encoded = (document.encode() + b"\n" for document in documents)
    for group in grouped(encoded, len, limit=STRIDE_BYTES):
        yield DocumentBlock(*concatenated(group), np.arange(len(group)))


def decide(preset: str, documents: list[str]) -> Decisions:
    """Apply a preset as the pipeline does."""
    cleaning, found = CleaningConfig(presets=(preset,)), Decisions([], [], 0.0)
    for block in blocks_of(documents):
        started = time.process_time()
        left, _ = apply_line_rules(block, cleaning)
        sentences_D = None
        if cleaning.min_sentences:
            text, ends_D, _ = split_sentences(left.text, left.ends, ())
            sentences_D = count_lines(text, ends_D)
        nothing_D = np.zeros(len(block.ends), dtype=np.int64)
        reasons_D = filter_documents(left, nothing_D, cleaning, sentences_D)
        found.seconds += time.process_time() - started
        found.reasons += [Reason(reason).name.lower() for reason in reasons_D.tolist()]
        found.texts += [text.decode().removesuffix("\n") for _, text in left.documents()]
    return found


def theirs(
    documents: list[str], python: str, *, folder: str, with_our_words: bool = False
) -> tuple[list[Figures], dict[str, float]]:
    """What datatrove decides, and its seconds by filter."""
    paths = [os.path.join(folder, name) for name in ("documents", "decisions", "words")]
    with open(paths[0], "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in documents)
    if with_our_words:
        with open(paths[2], "w", encoding="utf-8") as file:
            file.writelines(json.dumps(list(cut_words(text))) + "\n" for text in documents)
    given = paths if with_our_words else paths[:2]
    said = measure([python, str(PEER), *given], cores="0").said
    with open(paths[1], encoding="utf-8") as file:
        return [json.loads(line) for line in file], said["seconds"]


def token_seconds(documents: list[str], vocabulary: str, *, folder: str) -> dict[str, float]:
    """Seconds to read and tokenise the documents, by preset: the best of `ROUNDS`, in turns."""
    path = Path(folder) / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    corpus = corpus_of(str(path), reader="jsonl")
    config = VocabularyStage(
        seed=0,
        corpus=corpus,
        cleaning=CleaningConfig(),
        vocabulary=VocabularyConfig(path=vocabulary),
    ).model_dump(mode="json")
    table = StageTable(
        stage="vocabulary", format_version=1, config=config, output=f"{folder}/vocabulary"
    )
    artifact = make_vocabulary(table, []).directory

    def seconds(presets: tuple[str, ...]) -> float:
        cleaning = CleaningConfig(presets=presets)
        stage = TokensStage(seed=0, corpus=corpus, cleaning=cleaning)
        tokenizer = ShardTokenizer(stage, artifact)
        started = time.process_time()
        for shard in input_shards(corpus):
            for _ in tokenizer.tables(shard):
                pass
        return time.process_time() - started

    # No preset, each alone, and all: shared measures are computed once, so all need not cost the
    # sum.
    cases: list[tuple[str, ...]] = [(), *((preset,) for preset in PRESETS), tuple(PRESETS)]
    taken = in_turns(cases, seconds, rounds=ROUNDS)
    return {"+".join(case) or "none": round(min(found), 3) for case, found in taken.items()}


def preparation_seconds(documents: list[str], *, folder: str) -> Figures:
    """Seconds of processor time of `cloze prepare` by rules: the best of two, in turns."""
    path = Path(folder) / "prepared.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    rules: dict[str, dict[str, object]] = {
        "none": {},
        **{preset: {"presets": [preset]} for preset in PRESETS},
        "+".join(PRESETS): {"presets": [*PRESETS]},
        "mask": {"mask": [*KINDS]},
        "languages": {"languages": ["en"]},
    }
    machine_file = Path(folder) / "machine.toml"
    machine_file.write_text("[pipeline]\nworkers = 1\n")

    def seconds(name: str) -> float:
        config = {
            "name": "rules",
            "corpus": {"sources": [{"reader": "jsonl", "path": str(path)}]},
            "cleaning": rules[name],
            "vocabulary": {"size": 16_000},
            "examples": {"max_seq_lengths": [128], "copies": 1},
            "pretrain": {"phases": [{"max_seq_length": 128, "share": 1.0}]},
        }
        with tempfile.TemporaryDirectory(dir=folder) as workspace:
            written = Path(workspace) / "rules.toml"
            written.write_text(tomli_w.dumps(config))
            command = ["prepare", str(written), "--workspace", f"{workspace}/runs"]
            command += ["--on", str(machine_file)]
            return measure([sys.executable, "-P", "-m", "cloze", *command], cores="0").cpu

    taken = {case: min(found) for case, found in in_turns(rules, seconds, rounds=2).items()}
    return {
        "seconds": {case: round(found, 2) for case, found in taken.items()},
        "speed": {case: round(taken["none"] / found, 3) for case, found in taken.items()},
    }


def other_speeds(documents: list[str], pythons: dict[str, str], *, folder: str) -> Figures:
    """The speed of other tools' rules, in MB a second, and how many times as fast ours are."""
    path = Path(folder) / "others.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    size = sum(len(document.encode()) for document in documents) / 1e6
    # Ours once before it is timed, as theirs is: tables are made at first use.
    decide("gopher", documents[:100])
    found: Figures = {}
    for tool, python in pythons.items():
        # Before and after theirs, so that a machine that slows down does so for both.
        before = decide("gopher", documents).seconds
        said = measure([python, str(OTHERS), tool, str(path)], cores="0").said
        ours = (before + decide("gopher", documents).seconds) / 2
        found[tool] = {
            **{key: said[key] for key in ("version", "filters")},
            "documents": len(documents),
            "mb_per_second": round(size / said["seconds"], 3),
            "times": round(said["seconds"] / ours, 1),
        }
    return found


def compare(
    preset: str,
    documents: list[str],
    ours: Decisions,
    peer: list[Figures],
    again: dict[int, Figures],
) -> Figures:
    """The decisions that are equal, and those that are not by what differs."""
    causes: dict[str, list[int]] = {}
    for number, (reason, row) in enumerate(zip(ours.reasons, peer, strict=True)):
        if (reason == "kept") == (row[preset] is None):
            continue
        # Decided again by their rules on our words: if that agrees, only the words were cut
        # otherwise.
        same_words = number in again and (reason == "kept") == (again[number][preset] is None)
        cause = (
            "words cut otherwise" if same_words else f"{row[preset] or 'kept'} there, {reason} here"
        )
        causes.setdefault(cause, []).append(number)
    texts = sum(
        " ".join(ours.texts[number].split()) != " ".join(row["text"].split())
        for number, row in enumerate(peer)
        if preset == "c4" and row["c4"] is None and ours.reasons[number] == "kept"
    )
    return {
        "equal": len(documents) - sum(map(len, causes.values())),
        "dropped": sum(reason != "kept" for reason in ours.reasons),
        "reasons": dict(Counter(ours.reasons).most_common()),
        "differences": {cause: len(found) for cause, found in sorted(causes.items())},
        "examples": {
            cause: [documents[number][:80] for number in found[:EXAMPLES]]
            for cause, found in sorted(causes.items())
        },
        **({"texts_that_differ": texts} if preset == "c4" else {}),
    }


def main() -> None:
    """Read the documents, decide on both sides, compare, and write the result."""
    parser = Arguments(__doc__, output="rules.json", wikiextractor=str, documents=20_000)
    parser.add_options(datatrove="", more="", vocabulary="", parts=[*PARTS])
    parser.add_options(nemo_curator="", data_juicer="")
    arguments = parser.parse_args()
    others = cleaned(arguments.more, "jsonl") if arguments.more else iter(())
    documents = list(islice(others, arguments.documents))
    wanted = arguments.documents - len(documents)
    documents += islice(cleaned(arguments.wikiextractor, "wikiextractor"), wanted)
    size = sum(len(document.encode()) for document in documents) / 1e6
    facts = {"machine": machine(), "documents": len(documents), "megabytes": round(size, 2)}
    result: Figures = {}
    # A part that is measured anew leaves the others as they are.
    if set(arguments.parts) < set(PARTS) and Path(arguments.output).exists():
        result = json.loads(Path(arguments.output).read_text())
    with tempfile.TemporaryDirectory() as folder:
        if "decisions" in arguments.parts:
            result |= facts | decisions(documents, arguments, size=size, folder=folder)
        if "tokens" in arguments.parts and arguments.vocabulary:
            vocabulary = os.path.abspath(arguments.vocabulary)
            result["token_seconds"] = token_seconds(documents, vocabulary, folder=folder)
        if "preparation" in arguments.parts:
            result["preparation"] = facts | preparation_seconds(documents, folder=folder)
        if "others" in arguments.parts:
            names = ("nemo_curator", "data_juicer")
            pythons = {name: getattr(arguments, name) for name in names if getattr(arguments, name)}
            result["others"] = other_speeds(documents[:SOME], pythons, folder=folder)
    write_result(arguments.output, result)
    print(json.dumps(result, indent=1))


def decisions(
    documents: list[str], arguments: argparse.Namespace, *, size: float, folder: str
) -> Figures:
    """Decide on both sides, and compare."""
    # compiled, and tables made, before anything is timed
    for preset in PRESETS:
        decide(preset, documents[:100])
    before = {preset: decide(preset, documents) for preset in PRESETS}
    peer, seconds = theirs(documents, arguments.datatrove, folder=folder)
    # Ours once more, so that a machine which slows down or recovers meanwhile does so for both
    # sides.
    after = {preset: decide(preset, documents) for preset in PRESETS}
    different = [
        number
        for number, row in enumerate(peer)
        if any((before[p].reasons[number] == "kept") != (row[p] is None) for p in PRESETS)
    ]
    some = [documents[number] for number in different]
    rows, _ = theirs(some, arguments.datatrove, folder=folder, with_our_words=True)
    again = dict(zip(different, rows, strict=True))
    result: Figures = {}
    for preset, ours in before.items():
        taken = (ours.seconds + after[preset].seconds) / 2
        result[preset] = {
            "mb_per_second": round(size / taken, 1),
            "datatrove_mb_per_second": round(size / seconds[preset], 3),
            "times": round(seconds[preset] / taken, 1),
            **compare(preset, documents, ours, peer, again),
        }
    return result


if __name__ == "__main__":
    main()
