"""Near-duplicates and overlaps with evaluation sets are listed and dropped."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cloze.artifacts.errors import UsageError
from cloze.artifacts.stage import InputRef, StageTable
from cloze.artifacts.store import Artifact
from cloze.pipeline.config.settings import DedupStage
from cloze.pipeline.dedup import make_drop_list
from cloze.pipeline.readers import input_shards
from cloze.pipeline.tokens import make_tokens
from tests.pipeline.corpora import (
    INLINE,
    TWO_PROCESSES,
    digest_after_a_killed_worker,
    given_vocabulary,
    source,
    tokens_table,
    write_jsonl,
)

NEAR = {"near_duplicates": {}}


def text(seed: int, words: int = 120) -> str:
    """Random words: two texts have no shingle in common."""
    rng = random.Random(seed)
    drawn = ["".join(rng.choices("abcdefghijklmnop", k=6)) for _ in range(words)]
    return " ".join(drawn).capitalize() + "."


def edited(original: str, *, place: int = 60) -> str:
    """Replace a word in the middle: 5 of 116 shingles change."""
    words = original.split(" ")
    words[place] = "otherwise"
    return " ".join(words)


def dedup_table(
    output: Path,
    sources: list[dict[str, Any]],
    unwanted: dict[str, Any],
    *,
    machine: dict[str, Any] | None = None,
    **corpus: Any,
) -> StageTable:
    config = DedupStage.model_validate(
        {
            "seed": 5,
            "corpus": {"heldout_share": 0.0, "sources": sources, **corpus},
            "cleaning": {},
            "dedup": unwanted,
        }
    )
    return StageTable(
        stage="dedup",
        format_version=1,
        config=config.model_dump(mode="json"),
        output=str(output),
        machine=machine or INLINE,
    )


def run(
    output: Path, sources: list[dict[str, Any]], unwanted: dict[str, Any], **options: Any
) -> Artifact:
    return make_drop_list(dedup_table(output, sources, unwanted, **options), [])


def listed(artifact: Artifact) -> list[dict[str, Any]]:
    with pa.memory_map(artifact.path("drop.arrow")) as file:
        rows: list[dict[str, Any]] = pa.ipc.open_file(file).read_all().to_pylist()
        return rows


def left(folder: Path, sources: list[dict[str, Any]], drop_list: Artifact) -> Artifact:
    """The tokens of the corpus without the documents on the drop list."""
    vocabulary = given_vocabulary(folder / "vocabulary")
    table = tokens_table(folder / "tokens", sources, vocabulary=vocabulary, heldout_share=0.0)
    role = InputRef(digest=drop_list.digest, path=drop_list.directory)
    return make_tokens(table.model_copy(update={"inputs": {**table.inputs, "drop_list": role}}), [])


ORIGINALS = [text(seed) for seed in range(40)]
COPIES = [edited(original) for original in ORIGINALS[:10]]


def test_of_documents_alike_one_stays(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [*ORIGINALS, *COPIES, edited(COPIES[0], place=30)])
    sources = [source(tmp_path / "a.jsonl")]
    artifact = run(tmp_path / "out", sources, NEAR)
    rows = listed(artifact)
    assert {row["reason"] for row in rows} == {"near_duplicate"}
    assert len(rows) == 11  # ten pairs, and a third document near the first pair
    digests = [row["document_digest"] for row in rows]
    assert digests == sorted(set(digests))
    assert not {row["kept_digest"] for row in rows} & set(digests)
    tokens = left(tmp_path, sources, artifact)
    assert tokens.manifest.statistics["splits"]["train"]["documents"] == 40
    assert tokens.manifest.statistics["dropped"] == {"drop_list": 11}


def test_planted_copies_are_found_down_to_the_threshold_and_nothing_below_it(
    tmp_path: Path,
) -> None:
    originals = [text(seed, words=100 + seed) for seed in range(200)]
    copies = []
    for number, original in enumerate(originals):
        copy = original.split(" ")
        for place in range(number % 8):  # each word is in five shingles
            copy[8 + 11 * place] = f"changed{number}x{place}"
        copies.append(" ".join(copy))
    write_jsonl(tmp_path / "a.jsonl", [*originals, *copies])
    rows = listed(run(tmp_path / "out", [source(tmp_path / "a.jsonl")], NEAR))

    def is_alike(number: int) -> bool:
        shingles, changed = 96 + number, 5 * (number % 8)
        return changed > 0 and (shingles - changed) / (shingles + changed) >= 0.8

    assert len(rows) == sum(map(is_alike, range(200))) > 90


def test_case_and_punctuation_make_no_difference_and_half_the_text_does(tmp_path: Path) -> None:
    loud = ORIGINALS[0].upper().replace(" ", " - ")
    half = ORIGINALS[1][: len(ORIGINALS[1]) // 2] + text(99, words=60)
    write_jsonl(tmp_path / "a.jsonl", [*ORIGINALS[:2], loud, half])
    assert len(listed(run(tmp_path / "out", [source(tmp_path / "a.jsonl")], NEAR))) == 1


@pytest.mark.parametrize("files", [3, 17])
def test_the_list_does_not_depend_on_files_and_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    texts = [*ORIGINALS, *COPIES]
    write_jsonl(tmp_path / "whole.jsonl", texts)
    golden = run(tmp_path / "golden", [source(tmp_path / "whole.jsonl")], NEAR).digest
    monkeypatch.setattr(input_shards, "BLOCK_BYTES", 4_000)
    shuffled = random.Random(files).sample(texts, len(texts))
    for number in range(files):
        write_jsonl(tmp_path / "corpus" / f"{number * 7 % files}.jsonl", shuffled[number::files])
    found = run(tmp_path / "out", [source(tmp_path / "corpus")], NEAR, machine=TWO_PROCESSES)
    assert found.digest == golden
    assert not (tmp_path / "out" / "work").exists()


def test_a_killed_worker_ends_the_search_and_the_next_one_goes_on(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "all.jsonl", [*ORIGINALS, *COPIES])
    sources = [source(tmp_path / "all.jsonl")]
    golden = run(tmp_path / "golden", sources, NEAR)
    table = dedup_table(tmp_path / "out", sources, NEAR, machine=TWO_PROCESSES)
    digest = digest_after_a_killed_worker(
        table, tmp_path, site="before candidates are put", count=2
    )
    assert digest == golden.digest


def test_a_held_out_document_stays_and_the_first_source_comes_before_the_second(
    tmp_path: Path,
) -> None:
    names = {
        "second": COPIES[:6],
        "first": ORIGINALS[:6],
        "judged": [edited(ORIGINALS[0], place=9)],
    }
    for name, texts in names.items():
        write_jsonl(tmp_path / f"{name}.jsonl", texts)
    sources = [
        source(tmp_path / "first.jsonl"),
        source(tmp_path / "second.jsonl"),
        source(tmp_path / "judged.jsonl", heldout="judged"),
    ]
    tokens = left(tmp_path, sources, run(tmp_path / "out", sources, NEAR))
    splits = tokens.manifest.statistics["splits"]
    assert splits["judged"]["documents"] == 1
    assert splits["train"]["documents"] == 5  # all of the first source but its near-duplicate
    dropped = pa.ipc.open_file(tokens.path("dropped.arrow")).read_all()
    assert dropped["source"].to_pylist().count(1) == 6


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("set.tsv", "1\t{passage}\tyes\n"),
        ("set.json", json.dumps({"data": [{"context": "{passage}"}]})),
        ("set.jsonl", json.dumps({"question": "{passage}"}) + "\n"),
        ("set.txt", "{passage}\n"),
    ],
)
def test_a_document_with_thirteen_words_of_an_evaluation_set_overlaps(
    tmp_path: Path, name: str, content: str
) -> None:
    long, short = (" ".join(ORIGINALS[n].split(" ")[20 : 20 + 13 - n]) for n in (0, 1))
    lines = [content.replace("{passage}", passage.upper()) for passage in (long, short)]
    for number, line in enumerate(lines):
        path = tmp_path / "sets" / f"{number}-{name}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(line)
    write_jsonl(tmp_path / "a.jsonl", ORIGINALS)
    overlap = {"overlap": {"paths": [str(tmp_path / "sets")]}}
    artifact = run(tmp_path / "out", [source(tmp_path / "a.jsonl")], overlap)
    assert [(row["reason"], row["kept_digest"]) for row in listed(artifact)] == [("overlap", None)]
    assert artifact.manifest.statistics == {
        "distinct_documents": 40,
        "dropped": {"overlap": 1},
    }


def test_what_overlaps_stays_for_nobody(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [ORIGINALS[0], COPIES[0]])
    (tmp_path / "set.txt").write_text(" ".join(ORIGINALS[0].split(" ")[55:68]))
    both = {**NEAR, "overlap": {"paths": [str(tmp_path / "set.txt")]}}
    rows = listed(run(tmp_path / "out", [source(tmp_path / "a.jsonl")], both))
    assert [row["reason"] for row in rows] == ["overlap"]


def test_looking_for_nothing_is_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ORIGINALS[:1])
    with pytest.raises(UsageError, match="nothing to look for; set dedup.near_duplicates"):
        run(tmp_path / "out", [source(tmp_path / "a.jsonl")], {})
