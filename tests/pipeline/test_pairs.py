"""Query and passage pairs mined from unlabelled documents."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloze.artifacts.errors import UsageError
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact
from cloze.pipeline.config.settings import SPANS_OF_A_PASSAGE, PairsStage
from cloze.pipeline.pairs import PairSample, make_pairs

SPLITS = ("train", "dev", "test")


def made(output: Path, source: dict[str, Any], **pairs: Any) -> Artifact:
    table = StageTable(
        stage="pairs",
        format_version=PairsStage.format_version,
        config={"seed": 1, "corpus": {"sources": [source]}, "cleaning": {}, "pairs": pairs},
        output=str(output),
    )
    output.mkdir()
    return make_pairs(table, [])


def rows(artifact: Artifact, split: str) -> list[dict[str, str]]:
    lines = artifact.read_bytes(f"retrieval/{split}.jsonl").splitlines()
    return [json.loads(line) for line in lines]


def story(number: int, sentences: int) -> str:
    return "".join(f"Sentence {n} of the story {number} is told.\n" for n in range(sentences))


@pytest.fixture
def stories(tmp_path: Path) -> dict[str, Any]:
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text(f"Story number {number}\n" + story(number, 120))
    (tmp_path / "copy.txt").write_text((tmp_path / "0.txt").read_text())
    return {"reader": "text", "path": f"{tmp_path}/*.txt", "line_break": "sentence"}


def test_neighbouring_passages_are_pairs_and_no_passage_is_in_two_splits(
    tmp_path: Path, stories: dict[str, Any]
) -> None:
    artifact = made(tmp_path / "out", stories, words=14, heldout_share=0.25)
    seen: dict[str, str] = {}
    for split in SPLITS:
        assert rows(artifact, split)
        for row in rows(artifact, split):
            query, passage = row["query"].split(), row["passage"].split()
            # the next passage continues with the following sentence
            if query[0] == passage[0] == "Sentence":
                assert int(passage[1]) == int(query[-7]) + 1
            for text in (row["query"], row["passage"]):
                assert seen.setdefault(text, split) == split
    assert len(seen) == 2 * sum(len(rows(artifact, split)) for split in SPLITS)  # no duplicates


def test_spans_of_other_passages_are_held_out(tmp_path: Path, stories: dict[str, Any]) -> None:
    artifact = made(tmp_path / "out", stories, kind="spans", words=14, heldout_share=0.25)
    spans: dict[str, list[str]] = {}
    for row in rows(artifact, "train"):
        spans.setdefault(row["passage"], []).append(row["query"])
        # some of the passage's words, in their order
        words = iter(row["passage"].split())
        assert all(word in words for word in row["query"].split())
        assert len(row["query"].split()) >= 3
    # All but those that are the whole passage.
    assert 0.9 * SPANS_OF_A_PASSAGE < max(map(len, spans.values())) <= SPANS_OF_A_PASSAGE
    whole = [query in passage for passage, queries in spans.items() for query in queries]
    assert 0.2 < sum(whole) / len(whole) < 0.7
    for split in ("dev", "test"):
        found = rows(artifact, split)
        held_out = {row["passage"] for row in found}
        assert held_out.isdisjoint(spans)
        # Some of each passage before more of any; a span that is the whole passage is none.
        assert {row["passage"] for row in found[: 2 * len(held_out)]} == held_out
    again = made(tmp_path / "again", stories, kind="spans", words=14, heldout_share=0.25)
    assert again.digest == artifact.digest


def chapter(draw: np.random.Generator, sentences: int) -> list[str]:
    words = (draw.integers(5000, size=12) for _ in range(sentences))
    return [f"{' '.join(f'word{n}' for n in sentence)}." for sentence in words]


def runs_of_five(texts: Iterable[str]) -> set[tuple[str, ...]]:
    split = (text.split() for text in texts)
    return {tuple(words[n : n + 5]) for words in split for n in range(len(words) - 4)}


def test_another_version_of_a_training_passage_does_not_judge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though its passages begin elsewhere; and texts without another version stay."""
    draw, folder = np.random.default_rng(0), tmp_path / "texts"
    folder.mkdir()
    source = {"reader": "text", "path": f"{folder}/*.txt", "line_break": "sentence"}
    options = {"kind": "spans", "words": 30, "heldout_share": 0.25}
    chapters = [chapter(draw, 300) for _ in range(6)]
    for number, one in enumerate(chapters):
        (folder / f"a{number}.txt").write_text("\n".join(one) + "\n")
    alone = made(tmp_path / "alone", source, **options)
    assert "nearly copies" not in capsys.readouterr().err
    for number, one in enumerate(chapters[:2]):
        later = [*chapter(draw, 2), *one[:100], *chapter(draw, 3), *one[100:]]
        (folder / f"b{number}.txt").write_text("\n".join(later) + "\n")
    both = made(tmp_path / "both", source, **options)
    found = re.findall(r"(\d+) of (\d+) passages of (\w+) are nearly", capsys.readouterr().err)
    assert [split for _, _, split in found] == ["dev", "test"]
    trained = runs_of_five(row["passage"] for row in rows(both, "train"))
    for copies, passages, split in found:
        assert 0 < int(copies) < int(passages)
        held_out = {row["passage"] for row in rows(both, split)}
        assert len(held_out) == int(passages) - int(copies)
        for passage in held_out:
            own = runs_of_five([passage])
            assert len(own & trained) <= len(own) / 2
    # What has no other version judges as before.
    others = runs_of_five("\n".join(one) for one in chapters[2:])
    kept = {row["passage"] for row in rows(both, "test")}
    before = {row["passage"] for row in rows(alone, "test")}
    assert {one for one in before if runs_of_five([one]) <= others} <= kept


def test_held_out_passages_judge_where_all_are_nearly_copies_and_that_is_said(
    tmp_path: Path, stories: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "out", stories, kind="spans", words=14, heldout_share=0.25)
    assert "of passages that train, so scores on it are too good" in capsys.readouterr().err


def test_an_opening_line_is_paired_with_what_follows_it(
    tmp_path: Path, stories: dict[str, Any]
) -> None:
    artifact = made(tmp_path / "out", stories, kind="opening", words=20, heldout_share=0.3)
    found = [row for split in SPLITS for row in rows(artifact, split)]
    assert sorted(row["query"] for row in found) == [f"Story number {n}" for n in range(6)]
    for row in found:
        number = row["query"].split()[-1]
        assert row["passage"].startswith(f"Sentence 0 of the story {number} is told.")


def test_headings_are_paired_with_the_beginnings_of_their_sections(tmp_path: Path) -> None:
    for number in range(30):
        sections = (f"## Part {number} of {n}\n\n{story(n, 3)}\n" for n in range(2))
        text = f"# Book {number}\n\n{''.join(sections)}"
        (tmp_path / f"{number}.md").write_text(text)
    source = {"reader": "text", "path": f"{tmp_path}/*.md", "line_break": "sentence"}
    artifact = made(tmp_path / "out", source, kind="heading", words=12, heldout_share=0.3)
    found = {row["query"]: row["passage"] for split in SPLITS for row in rows(artifact, split)}
    # a heading followed by a subheading has no text of its own
    assert sorted(found) == sorted(f"Part {number} of {n}" for number in range(30) for n in (0, 1))
    assert found["Part 7 of 1"] == "Sentence 0 of the story 1 is told."


def test_summaries_of_functions_are_paired_with_their_signatures(tmp_path: Path) -> None:
    source = {"reader": "docstrings", "packages": ["httpx"]}
    artifact = made(tmp_path / "out", source, kind="signature", heldout_share=0.3)
    passages = [row["passage"] for split in SPLITS for row in rows(artifact, split)]
    assert any(passage.startswith("request(method, url") for passage in passages)


def test_the_same_pairs_are_drawn_again_and_no_more_than_are_wanted(
    tmp_path: Path, stories: dict[str, Any]
) -> None:
    options = {"words": 14, "heldout_share": 0.25, "train_pairs": 9, "evaluation_pairs": 8}
    first = made(tmp_path / "one", stories, **options)
    assert first.digest == made(tmp_path / "two", stories, **options).digest
    assert [len(rows(first, split)) for split in SPLITS] == [9, 8, 8]


def test_too_little_text_for_held_out_pairs_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(story(1, 3))
    with pytest.raises(UsageError, match=r"0 pairs, and no .*give more text, fewer pairs\.words"):
        made(tmp_path / "out", {"reader": "text", "path": f"{tmp_path}/a.txt"})


def test_three_parts_are_enough_for_three_splits(tmp_path: Path, stories: dict[str, Any]) -> None:
    for path in tmp_path.glob("*.txt"):
        path.write_text(story(0, 60))
    artifact = made(tmp_path / "out", stories, words=14)
    assert [len(rows(artifact, split)) for split in SPLITS] == [10, 10, 10]


def test_a_sample_keeps_the_smallest_keys_in_their_order() -> None:
    sample = PairSample(wanted=2)
    for key in (5, 1, 4, 2):
        sample.offer(key, (f"query {key}", ""))
    assert sample.pairs() == [("query 1", ""), ("query 2", "")]
    assert sample.seen == 4
