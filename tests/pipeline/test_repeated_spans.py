"""Spans of sentences and exact substrings that came earlier in a source go, all but one."""

import hashlib
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cloze.artifacts.errors import UsageError
from cloze.artifacts.store import Artifact
from cloze.pipeline import recurring_runs
from cloze.pipeline.config.settings import CorpusConfig
from cloze.pipeline.readers import input_shards
from cloze.pipeline.shuffle import merged_runs
from tests.pipeline.corpora import TWO_PROCESSES, digest_after_a_killed_worker, source, write_jsonl
from tests.pipeline.test_boilerplate import (
    boilerplate_table,
    left_of,
    paragraphs,
    run,
    sentence,
)

STORY = "The mill stood empty for years. Nobody went there at night. Then a lamp was seen in it."


def of_spans(path: Path, **options: Any) -> dict[str, Any]:
    """A source of which spans alone are removed, its lines as written."""
    return source(path, line_break="paragraph", boilerplate={"lines": False, **options})


def spans_of(artifact: Artifact) -> list[tuple[str, str, int]]:
    """Kind, text and number of what is removed, by text."""
    with pa.memory_map(artifact.path("spans.arrow")) as file:
        rows = pa.ipc.open_file(file).read_all().to_pylist()
    return sorted((row["kind"], row["text"], row["removed_spans"]) for row in rows)


def left_as_text(output: Path, path: Path, **options: Any) -> list[str]:
    sources = [of_spans(path, **options)]
    return [" ".join(document) for document in left_of(run(output, sources), sources)]


def words(seed: int, count: int) -> str:
    """Words that no other seed yields."""
    rng = random.Random(seed)
    return " ".join("".join(rng.choices("abcdefghijklmnop", k=7)) for _ in range(count))


def test_a_span_of_three_sentences_stays_in_one_document_alone(tmp_path: Path) -> None:
    own = [paragraphs(seed, 2) for seed in range(5)]
    texts = [f"{first} {STORY} {last}" for first, last in own]
    # across paragraphs and in other letters it is the same span; two sentences of it are none
    texts[1] = f"{own[1][0]} {STORY.replace('. Then', '.' + chr(10) + 'Then').upper()}\n{own[1][1]}"
    texts[4] = f"{own[4][0]} {STORY.partition(' Then')[0]} {own[4][1]}"
    write_jsonl(tmp_path / "a.jsonl", texts)
    left = left_as_text(tmp_path / "out", tmp_path / "a.jsonl", sentences=3, min_words=1)
    assert sum("then a lamp was seen" in text.lower() for text in left) == 1
    assert "Nobody went there" in left[4]
    for (first, last), text in zip(own, left, strict=True):
        assert text.startswith(first)
        assert text.endswith(last)


def test_a_substring_of_fifty_tokens_stays_in_one_document_and_one_of_49_in_all(
    tmp_path: Path,
) -> None:
    for count, wanted in ((50, 1), (49, 4)):
        # 49 or 50 with the comma, which is a token
        shared = f"{words(99, 20)}, {words(98, count - 21)}"
        texts = [f"{words(n, 8)} {shared} {words(100 + n, 9)}." for n in range(4)]
        write_jsonl(tmp_path / f"{count}.jsonl", texts)
        path = tmp_path / f"{count}.jsonl"
        left = left_as_text(tmp_path / f"out{count}", path, tokens=50)
        assert sum(shared in text for text in left) == wanted
        for n, text in enumerate(left):
            assert text.startswith(words(n, 8))
            assert text.endswith(f"{words(100 + n, 9)}.")
    # another case, or another mark, is not exactly equal
    texts = [words(5, 60), words(5, 60).title(), words(5, 60).replace(" ", "; ", 40)]
    write_jsonl(tmp_path / "other.jsonl", texts)
    assert left_as_text(tmp_path / "other", tmp_path / "other.jsonl", tokens=50) == texts


def test_within_a_document_the_first_stays(tmp_path: Path) -> None:
    middle = [paragraphs(seed, 1)[0] for seed in range(2)]
    write_jsonl(tmp_path / "a.jsonl", [f"{STORY} {middle[0]} {STORY} {middle[1]} {STORY}"])
    left = left_as_text(tmp_path / "out", tmp_path / "a.jsonl", sentences=3, min_words=1)
    assert left == [f"{STORY} {middle[0]} {middle[1]}"]


def test_short_sentences_stay_however_often_they_come(tmp_path: Path) -> None:
    talk = "Yes. I know. Thank you."
    texts = [f"{paragraphs(n, 1)[0]} {talk} {paragraphs(50 + n, 1)[0]}" for n in range(20)]
    write_jsonl(tmp_path / "a.jsonl", texts)
    assert left_as_text(tmp_path / "out", tmp_path / "a.jsonl", sentences=3) == texts
    gone = left_as_text(tmp_path / "all", tmp_path / "a.jsonl", sentences=3, min_words=1)
    assert sum(talk in text for text in gone) == 1


def rank(text: str) -> bytes:
    """By which documents are ordered."""
    return hashlib.blake2b(f"{text}\n".encode(), digest_size=8).digest()


def expected(texts: list[str], *, sentences: int, tokens: int) -> set[str]:
    """What is left by the rule, in plain Python, of texts in which each sentence is a word."""
    seen: set[tuple[str, ...]] = set()
    left: set[str] = set()
    for text in sorted(set(texts), key=rank):
        gone: set[int] = set()
        for pattern, size in ((r"\w+\.", sentences), (r"\w+|\.", tokens)):
            units = list(re.finditer(pattern, text))
            for at in range(len(units) - size + 1 if size else 0):
                span = units[at : at + size]
                key = (pattern, *(one.group() for one in span))
                if key in seen:
                    gone |= set(range(span[0].start(), span[-1].end()))
                seen.add(key)
        if tokens:  # a full stop right behind a word that stays
            gone -= {at for at in gone if text[at] == "." and at - 1 not in gone}
        kept = (" " if at in gone else one for at, one in enumerate(text))
        left.add(" ".join("".join(kept).split()))
    return left - {""}


@pytest.mark.parametrize(("sentences", "tokens"), [(3, 0), (0, 10), (5, 11)])
def test_what_is_left_is_what_the_rule_says(tmp_path: Path, sentences: int, tokens: int) -> None:
    rng = random.Random(sentences + tokens)
    # few different words, so that much recurs
    texts = [
        " ".join(f"{rng.choice(['Ab', 'Cd', 'Ef'])}." for _ in range(rng.randint(1, 12)))
        for _ in range(60)
    ]
    write_jsonl(tmp_path / "a.jsonl", texts)
    options = {"sentences": sentences, "tokens": tokens, "min_words": 1}
    left = left_as_text(tmp_path / "out", tmp_path / "a.jsonl", **options)
    wanted = expected(texts, sentences=sentences, tokens=tokens)
    assert set(left) == wanted
    # some are left whole, others in part, and of others nothing is
    assert wanted & set(texts)
    assert wanted - set(texts)
    assert len(wanted) < len(set(texts))


def test_sentences_without_spaces_between_them_are_cut_out_exactly(tmp_path: Path) -> None:
    shared = "江南的春天很美。山上有许多花。河水流向东方。"
    texts = [f"我叫{name}。{shared}再见{name}。" for name in "甲乙丙"]
    write_jsonl(tmp_path / "a.jsonl", texts)
    left = left_as_text(tmp_path / "out", tmp_path / "a.jsonl", sentences=3, min_words=1)
    joined = [text.replace(" ", "") for text in left]
    assert sum(shared in text for text in joined) == 1
    gone = [text.replace(shared, "") for text in texts]
    assert all(text in both for text, *both in zip(joined, texts, gone, strict=True))


def some_texts(count: int) -> list[str]:
    """Documents that share stories, notices and long phrases with others."""
    rng = random.Random(3)
    stories = [" ".join(sentence(rng) for _ in range(3)) for _ in range(20)]
    phrases = [words(seed, 55) for seed in range(20)]
    return [
        f"{first} {rng.choice(stories)}\n{second} {rng.choice(phrases)} {third}"
        for seed in range(count)
        for first, second, third in [paragraphs(1000 + seed, 3)]
    ]


ALL = {"lines": True, "min_documents": 5, "sentences": 3, "tokens": 50}


@pytest.mark.parametrize("files", [3, 17])
def test_what_is_found_does_not_depend_on_files_workers_runs_and_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    texts = some_texts(300)
    texts += texts[:50]
    write_jsonl(tmp_path / "whole.jsonl", texts)
    monkeypatch.setattr(merged_runs, "BATCH_ROWS", 10)
    golden = run(tmp_path / "golden", [of_spans(tmp_path / "whole.jsonl", **ALL)])
    assert {kind for kind, _, _ in spans_of(golden)} == {"sentences", "tokens"}
    monkeypatch.setattr(input_shards, "BLOCK_BYTES", 20_000)
    monkeypatch.setattr(recurring_runs, "RUN_ROWS", 400)
    monkeypatch.setattr(merged_runs, "RANGE_ROWS", 500)
    shuffled = random.Random(files).sample(texts, len(texts))
    for number in range(files):
        write_jsonl(tmp_path / "corpus" / f"{number * 7 % files}.jsonl", shuffled[number::files])
    sources = [of_spans(tmp_path / "corpus", **ALL)]
    found = run(tmp_path / "out", sources, machine=TWO_PROCESSES)
    assert found.digest == golden.digest
    assert found.manifest.statistics == golden.manifest.statistics
    assert not (tmp_path / "out" / "work").exists()


def test_a_killed_worker_ends_the_search_and_the_next_one_goes_on(tmp_path: Path) -> None:
    for part in range(3):
        write_jsonl(tmp_path / "in" / f"{part}.jsonl", some_texts(150)[part * 50 : part * 50 + 50])
    sources = [of_spans(tmp_path / "in", tokens=50)]
    golden = run(tmp_path / "golden", sources)
    table = boilerplate_table(tmp_path / "out", sources, machine=TWO_PROCESSES)
    # the first files of the third step
    digest = digest_after_a_killed_worker(table, tmp_path, site="before lines are put", count=4)
    assert digest == golden.digest


def test_what_goes_is_counted_by_kind_and_source_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = some_texts(40)
    write_jsonl(tmp_path / "a.jsonl", texts)
    write_jsonl(tmp_path / "b.jsonl", texts)
    sources = [
        of_spans(tmp_path / "a.jsonl", sentences=3, tokens=50),
        of_spans(tmp_path / "b.jsonl", tokens=50),
    ]
    artifact = run(tmp_path / "out", sources)
    left = left_of(artifact, sources)
    first, second = artifact.manifest.statistics["sources"].values()
    # sources are searched by themselves, and in the second one only phrases are looked for
    assert first["tokens_bytes"] == second["tokens_bytes"] > 0
    assert first["sentences_spans"] > 0
    assert "sentences_spans" not in second
    removed = first["sentences_bytes"] + first["tokens_bytes"]
    whole = sum(len(" ".join(text.split())) for text in texts)
    kept = sum(len(" ".join(document)) for document in left[:40])
    # beside what goes, up to a space at either end of each span
    spans = first["sentences_spans"] + first["tokens_spans"]
    assert 0 <= whole - kept - removed <= 2 * spans
    rows = spans_of(artifact)
    assert sum(count for _, _, count in rows) == spans + second["tokens_spans"]
    said = capsys.readouterr().err
    name = f"boilerplate: corpus.sources.1 ({tmp_path}/b.jsonl)"
    assert f"{name}: {second['tokens_spans']} spans, " in said
    assert "are removed because the same 50 tokens came earlier" in said
    assert any(f"× '{words(seed, 55)[:100]}" in said for seed in range(20))


def test_a_source_of_the_same_text_again_and_again_is_refused_with_its_remedy(
    tmp_path: Path,
) -> None:
    stories = " ".join(paragraphs(1, 8))
    write_jsonl(tmp_path / "a.jsonl", [f"{stories} {n}." for n in range(2000)])
    name = rf"corpus\.sources\.0 \({tmp_path}/a\.jsonl\): \d+\.\d+% of its text came earlier, so"
    with pytest.raises(UsageError, match=rf"{name}.*; raise or leave out boilerplate\.sentences"):
        run(tmp_path / "out", [of_spans(tmp_path / "a.jsonl", sentences=3)])
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_settings_that_remove_nothing_or_ordinary_phrases_are_refused(tmp_path: Path) -> None:
    for options, message in (
        ({}, "neither sentences nor tokens is set"),
        ({"tokens": 4}, "tokens = 4 would remove ordinary phrases; set 0, or at least 10"),
    ):
        with pytest.raises(ValueError, match=message):
            CorpusConfig.model_validate({"sources": [of_spans(tmp_path, **options)]})
