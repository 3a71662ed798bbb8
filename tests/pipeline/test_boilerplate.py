"""Lines that recur in many documents are listed, shown, and removed from all but the first."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cloze.artifacts.errors import UsageError
from cloze.artifacts.stage import InputRef, StageTable
from cloze.artifacts.store import Artifact, finished_file
from cloze.pipeline import recurring_runs
from cloze.pipeline.boilerplate import Search, make_line_list, write_line_runs
from cloze.pipeline.config.settings import BoilerplateStage, CleaningConfig, CorpusConfig
from cloze.pipeline.readers import input_shards
from cloze.pipeline.readers.input_shards import CorpusFiles
from cloze.pipeline.runner.graph import WorkQueue
from cloze.pipeline.shuffle import merged_runs
from cloze.pipeline.text.texts import read_documents
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

NOTICE = "This message and any attachments are confidential and for the addressee only."
MENU = ["Home", "About us", "Products", "News", "Contact"]


def sentence(rng: random.Random) -> str:
    words = ["".join(rng.choices("abcdefghijklmnop", k=6)) for _ in range(rng.randint(6, 14))]
    return " ".join(words).capitalize() + "."


def paragraphs(seed: int, count: int) -> list[str]:
    """Lines that no other seed yields."""
    rng = random.Random(seed)
    return [" ".join(sentence(rng) for _ in range(rng.randint(1, 4))) for _ in range(count)]


def boilerplate_table(
    output: Path, sources: list[dict[str, Any]], *, machine: dict[str, Any] | None = None
) -> StageTable:
    config = BoilerplateStage.model_validate({"corpus": {"sources": sources}})
    return StageTable(
        stage="boilerplate",
        format_version=1,
        config=config.model_dump(mode="json"),
        output=str(output),
        machine=machine or INLINE,
    )


def of_lines(path: Path, **options: Any) -> dict[str, Any]:
    """A source whose lines are paragraphs, as written."""
    return source(path, line_break="paragraph", boilerplate=options)


def rows_of(artifact: Artifact) -> list[dict[str, Any]]:
    with pa.memory_map(artifact.path("lines.arrow")) as file:
        rows: list[dict[str, Any]] = pa.ipc.open_file(file).read_all().to_pylist()
        return rows


def left_of(artifact: Artifact, sources: list[dict[str, Any]]) -> list[list[str]]:
    """The documents that are left, as lines, in file order."""
    corpus = CorpusConfig.model_validate({"sources": sources})
    cleaning = CleaningConfig(boilerplate=artifact.directory)
    return [document.sentences for document in read_documents(corpus, cleaning)]


def run(output: Path, sources: list[dict[str, Any]], **options: Any) -> Artifact:
    return make_line_list(boilerplate_table(output, sources, **options), [])


def with_notice(count: int) -> list[str]:
    """Documents of one paragraph, each followed by the notice."""
    return [f"{paragraphs(seed, 1)[0]}\n{NOTICE}" for seed in range(count)]


def test_a_line_of_ten_documents_stays_in_one_and_a_line_of_nine_stays(tmp_path: Path) -> None:
    for count, wanted in ((10, 1), (9, 9)):
        write_jsonl(tmp_path / f"{count}.jsonl", with_notice(count))
        sources = [of_lines(tmp_path / f"{count}.jsonl")]
        artifact = run(tmp_path / f"out{count}", sources)
        left = left_of(artifact, sources)
        assert len(left) == count
        assert sum(lines[-1] == NOTICE for lines in left) == wanted
        removed = [(row["text"], row["occurrences"]) for row in rows_of(artifact)]
        assert removed == [(NOTICE, 10)] * (count == 10)


def test_from_the_nth_document_on_a_line_is_removed(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", with_notice(20))
    sources = [of_lines(tmp_path / "a.jsonl", min_documents=4, kept_documents=3)]
    left = left_of(run(tmp_path / "out", sources), sources)
    assert sum(lines[-1] == NOTICE for lines in left) == 3
    nowhere = [of_lines(tmp_path / "a.jsonl", kept_documents=0)]
    left = left_of(run(tmp_path / "none", nowhere), nowhere)
    assert not any(NOTICE in lines for lines in left)


def test_short_lines_stay_unless_their_run_recurs(tmp_path: Path) -> None:
    # "Yes." between long lines, "References" before lines of the document's own, numbers
    ordinary = ["Yes.", "12 14 16 18 20 22 24 26"]
    texts = [
        "\n".join([*MENU, first, *ordinary, second, "References", f"Smith {seed}"])
        for seed in range(40)
        for first, second in [paragraphs(seed, 2)]
    ]
    write_jsonl(tmp_path / "a.jsonl", texts)
    sources = [of_lines(tmp_path / "a.jsonl")]
    left = left_of(run(tmp_path / "out", sources), sources)
    lines = ["\n".join(document) for document in left]
    assert sum("Products" in text for text in lines) == 1
    assert not any(text.startswith(("Home", "Contact")) for text in lines if "Products" not in text)
    assert all("Yes." in text and "References\nSmith" in text for text in lines)
    assert all(ordinary[1] in text for text in lines)


def test_each_source_is_counted_by_itself_and_only_where_asked_for(tmp_path: Path) -> None:
    texts = with_notice(18)
    for number in range(3):
        write_jsonl(tmp_path / f"{number}.jsonl", texts[6 * number : 6 * number + 6])
    write_jsonl(tmp_path / "plain.jsonl", [f"{text} \nOther." for text in texts])
    sources = [
        of_lines(tmp_path / "0.jsonl"),
        of_lines(tmp_path / "1.jsonl", min_documents=6),
        of_lines(tmp_path / "2.jsonl"),
        source(tmp_path / "plain.jsonl", line_break="paragraph"),
    ]
    artifact = run(tmp_path / "out", sources)
    assert [row["source"] for row in rows_of(artifact)] == [1]
    with_it = [NOTICE in lines for lines in left_of(artifact, sources)]
    assert [sum(with_it[:6]), sum(with_it[6:12]), sum(with_it[12:18])] == [6, 1, 6]
    assert all(with_it[18:])
    assert list(artifact.manifest.statistics["sources"]) == ["0", "1", "2"]


def test_case_makes_no_difference_and_digits_make_none_if_so_asked(tmp_path: Path) -> None:
    texts = [
        f"{first}\n{NOTICE.upper() if seed % 2 else NOTICE}\n"
        f"Printed on {seed} May 2024 for internal use by Acme, page {seed * 7}"
        for seed in range(30)
        for first in paragraphs(seed, 1)
    ]
    write_jsonl(tmp_path / "a.jsonl", texts)
    for ignore_digits, lines in ((False, {1}), (True, {1})):
        sources = [of_lines(tmp_path / "a.jsonl", ignore_digits=ignore_digits)]
        artifact = run(tmp_path / f"out{ignore_digits}", sources)
        assert len(rows_of(artifact)) == 1 + ignore_digits
        left = left_of(artifact, sources)
        assert {sum(NOTICE.upper() in (x.upper() for x in text) for text in left)} == lines
        printed = sum(any(line.startswith("Printed") for line in text) for text in left)
        assert printed == (1 if ignore_digits else 30)


def test_exact_duplicates_count_once(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [*with_notice(5) * 4, *paragraphs(99, 3)])
    assert rows_of(run(tmp_path / "out", [of_lines(tmp_path / "a.jsonl")])) == []


def three_kinds(count: int) -> Iterator[tuple[str, list[str], list[str]]]:
    """Reports, mails and web pages: their kind, their planted lines, and their own."""
    rng = random.Random(1)
    companies = [f"Company{number}" for number in range(20)]
    ordinary = ["Yes.", "References", "Thank you.", "Summary", "See below."]
    for number in range(count):
        own = paragraphs(number, 4)
        own[2:2] = rng.sample(ordinary, 2)
        company = companies[number % 20]
        if number % 3 == 0:
            head = [f"{company} Ltd, registered in England, annual report of the board, part A"]
            foot = [f"The directors of {company} accept no liability for errors in this report."]
            yield "report", [*head, *foot], [*head, *own, *foot]
        elif number % 3 == 1:
            foot = ["--", f"{company} support team", "Mondays to Fridays", "Tel. 020 7946 0000"]
            foot += [NOTICE, f"Please do not print this message of {company} unless you must."]
            yield "mail", foot, [*own, *foot]
        else:
            menu = [*MENU, f"Jobs at {company}", "Log in"]
            foot = [f"All pages of this site are the property of {company} and its partners."]
            foot += ["Imprint", "Privacy", "Terms of use", "Site map", "Cookies"]
            yield "page", [*menu, *foot], [*menu, *own, *foot]


def test_planted_boilerplate_of_three_kinds_is_found_and_nothing_else_is_touched(
    tmp_path: Path,
) -> None:
    documents = list(three_kinds(10_000))
    sources = []
    for kind in ("report", "mail", "page"):
        texts = ["\n".join(lines) for name, _, lines in documents if name == kind]
        write_jsonl(tmp_path / f"{kind}.jsonl", texts)
        sources.append({**of_lines(tmp_path / f"{kind}.jsonl"), "line_break": "sentence"})
    artifact = run(tmp_path / "out", sources)
    by_kind = sorted(documents, key=lambda one: ("report", "mail", "page").index(one[0]))
    planted = found = other = touched = 0
    for (_, plants, lines), left in zip(by_kind, left_of(artifact, sources), strict=True):
        own = [line for line in lines if line not in plants]
        planted += len(plants)
        found += sum(line not in left for line in plants)
        other += len(own)
        touched += sum(line not in left for line in own)
    assert found >= 0.99 * planted
    assert touched <= 0.001 * other
    # the account is of what was removed
    counted = artifact.manifest.statistics["sources"].values()
    assert sum(one["removed_lines"] for one in counted) == found + touched
    assert sum(one["lines"] for one in counted) == planted + other


@pytest.mark.parametrize("files", [3, 17])
def test_the_list_does_not_depend_on_files_workers_runs_and_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    texts = ["\n".join(lines) for _, _, lines in three_kinds(600)]
    texts += texts[:50]
    write_jsonl(tmp_path / "whole.jsonl", texts)
    monkeypatch.setattr(merged_runs, "BATCH_ROWS", 100)
    golden = run(tmp_path / "golden", [of_lines(tmp_path / "whole.jsonl")])
    assert len(rows_of(golden)) > 100
    monkeypatch.setattr(input_shards, "BLOCK_BYTES", 20_000)
    monkeypatch.setattr(recurring_runs, "RUN_ROWS", 400)
    monkeypatch.setattr(merged_runs, "RANGE_ROWS", 500)
    shuffled = random.Random(files).sample(texts, len(texts))
    for number in range(files):
        write_jsonl(tmp_path / "corpus" / f"{number * 7 % files}.jsonl", shuffled[number::files])
    found = run(tmp_path / "out", [of_lines(tmp_path / "corpus")], machine=TWO_PROCESSES)
    assert rows_of(found) == rows_of(golden)
    assert found.digest == golden.digest
    assert not (tmp_path / "out" / "work").exists()


def test_a_killed_worker_ends_the_count_and_the_next_one_goes_on(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "all.jsonl", ["\n".join(lines) for _, _, lines in three_kinds(300)])
    sources = [of_lines(tmp_path / "all.jsonl")]
    golden = run(tmp_path / "golden", sources)
    table = boilerplate_table(tmp_path / "out", sources, machine=TWO_PROCESSES)
    digest = digest_after_a_killed_worker(table, tmp_path, site="before lines are put", count=2)
    assert digest == golden.digest


def test_tokens_drops_what_is_nothing_but_boilerplate_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closing = "Thank you for reading this message to the end of it."
    texts = [*with_notice(40), NOTICE, f"{NOTICE}\n{closing}"]
    texts += [f"{paragraphs(seed, 1)[0]}\n{closing}" for seed in range(100, 120)]
    write_jsonl(tmp_path / "a.jsonl", texts)
    sources = [of_lines(tmp_path / "a.jsonl", kept_documents=0)]
    artifact = run(tmp_path / "out", sources)
    table = tokens_table(
        tmp_path / "tokens", sources, vocabulary=given_vocabulary(tmp_path / "vocabulary")
    )
    role = InputRef(digest=artifact.digest, path=artifact.directory)
    table = table.model_copy(update={"inputs": {**table.inputs, "boilerplate": role}})
    tokens = make_tokens(table, [])
    assert tokens.manifest.statistics["dropped"] == {"boilerplate": 2}
    said = capsys.readouterr().err
    assert "2 dropped as boilerplate, all their lines recur in other documents" in said


def test_a_corpus_of_nothing_but_boilerplate_is_refused_with_source_and_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = paragraphs(1, 30)
    rng = random.Random(1)
    write_jsonl(tmp_path / "a.jsonl", ["\n".join(rng.sample(lines, 12)) for _ in range(2000)])
    name = rf"corpus\.sources\.0 \({tmp_path}/a\.jsonl\): \d+\.\d+% of its text recurs in 10"
    with pytest.raises(UsageError, match=rf"{name}.*; raise boilerplate\.min_documents"):
        run(tmp_path / "out", [of_lines(tmp_path / "a.jsonl")])
    assert not (tmp_path / "out" / "manifest.json").exists()
    texts = [f"{NOTICE}\n{paragraphs(seed, 1)[0][:40]}" for seed in range(100)]
    write_jsonl(tmp_path / "b.jsonl", texts)
    run(tmp_path / "more", [of_lines(tmp_path / "b.jsonl")])
    said = capsys.readouterr().err
    assert f"warning: boilerplate: corpus.sources.0 ({tmp_path}/b.jsonl): 6" in said
    assert "if it is not boilerplate, raise boilerplate.min_documents (now 10)" in said


def test_no_source_or_no_list_is_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", with_notice(3))
    with pytest.raises(UsageError, match=r"none asks for boilerplate.*set boilerplate = \{\}"):
        run(tmp_path / "out", [source(tmp_path / "a.jsonl")])
    corpus = CorpusConfig.model_validate({"sources": [of_lines(tmp_path / "a.jsonl")]})
    with pytest.raises(UsageError, match=r"corpus\.sources\.0: .*set cleaning\.boilerplate"):
        list(read_documents(corpus, CleaningConfig()))
    with pytest.raises(ValueError, match="kept_documents = 10 is not below min_documents = 10"):
        CorpusConfig.model_validate({"sources": [of_lines(tmp_path, kept_documents=10)]})


def test_a_list_found_with_other_settings_is_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", with_notice(12))
    artifact = run(tmp_path / "out", [of_lines(tmp_path / "a.jsonl")])
    with pytest.raises(UsageError, match=r"lines of corpus\.sources\.0 were found with .*agree"):
        left_of(artifact, [of_lines(tmp_path / "a.jsonl", ignore_digits=True)])
    other = given_vocabulary(tmp_path / "vocabulary")
    with pytest.raises(UsageError, match="made by the stage vocabulary, expected boilerplate"):
        left_of(other, [of_lines(tmp_path / "a.jsonl")])


def test_memory_of_the_launcher_does_not_grow_with_the_frequency_of_a_line(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", with_notice(3000))
    table = boilerplate_table(tmp_path / "out", [of_lines(tmp_path / "a.jsonl")])
    stage = BoilerplateStage.model_validate(table.config)
    (shard,) = CorpusFiles(stage.corpus, table.output).shards()
    name = write_line_runs(shard, search=Search(stage, table.output), queue=WorkQueue())
    entry = finished_file(table.output, name)
    assert entry is not None
    runs = pa.ipc.open_file(Path(table.output, entry.stored_name).read_bytes()).read_all()
    counts = np.unique_counts(runs["key"].to_numpy()).counts
    assert counts.max() == 11  # ten documents and a row for the rest
