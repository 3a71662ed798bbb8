"""Rules over a whole corpus: what they drop, remove and mask is accounted for, by source."""

from pathlib import Path
from typing import Any

import pytest

from cloze.artifacts.errors import UsageError
from cloze.artifacts.store import Artifact
from cloze.pipeline.config.settings import CorpusConfig
from cloze.pipeline.tokens import make_tokens
from cloze.pipeline.vocabulary import make_vocabulary
from tests.pipeline.corpora import (
    documents,
    given_vocabulary,
    source,
    tokens_table,
    vocabulary_table,
    write_jsonl,
)
from tests.pipeline.test_boilerplate import run

C4 = {"presets": ["c4"], "min_sentences": 0, "mask": ["mail"]}


def tokens(output: Path, *paths: Path, cleaning: dict[str, Any], **options: Any) -> Artifact:
    sources = [source(path, line_break="paragraph") for path in paths]
    vocabulary = given_vocabulary(output.with_name("vocabulary"))
    table = tokens_table(output, sources, vocabulary=vocabulary, cleaning=cleaning, **options)
    return make_tokens(table, [])


def test_what_is_dropped_removed_and_masked_is_said_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [
        "It is a plain line. [12]\nWrite to a@b.org in the end.\nno end here",
        "nothing of this ends",
        "Here is a { in it.",
    ]
    write_jsonl(tmp_path / "a.jsonl", [*documents(1, 20), *more])
    artifact = tokens(tmp_path / "tokens", tmp_path / "a.jsonl", cleaning=C4)
    statistics = artifact.manifest.statistics
    assert statistics["dropped"] == {"curly_bracket": 1, "removed_lines": 1}
    # of the random documents none has a citation, and all end like sentences
    assert statistics["edits"] == {"citations": 1, "mail": 1, "unterminated": 3}
    said = capsys.readouterr().err
    assert "tokens: 3 lines removed as unterminated, by cleaning.remove_unterminated_lines" in said
    assert "tokens: 1 citations removed, by cleaning.remove_citations" in said
    assert "tokens: masked, by cleaning.mask: 1 mail" in said
    assert "warning" not in said


def test_a_source_with_rules_of_its_own_has_these_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in (("a", 1), ("b", 2), ("c", 3)):
        write_jsonl(tmp_path / f"{name}.jsonl", [*documents(seed, 10), f"Brackets {{ in {name}."])
    write_jsonl(tmp_path / "d.jsonl", [f"word {word}" for word in ("one", "two", "three")])
    own: list[dict[str, Any]] = [{}, {"cleaning": {}}, {"cleaning": {"presets": ["c4"]}}]
    own += [{"cleaning": {"min_words": 3}}]
    own[2]["cleaning"] |= {"min_sentences": 0, "drop_curly_brackets": False, "mask": ["mail"]}
    sources = [
        source(tmp_path / f"{name}.jsonl", line_break="paragraph", **options)
        for name, options in zip("abcd", own, strict=True)
    ]
    table = tokens_table(
        tmp_path / "tokens",
        sources,
        vocabulary=given_vocabulary(tmp_path / "vocabulary"),
        cleaning={"drop_curly_brackets": True},
    )
    statistics = make_tokens(table, []).manifest.statistics
    # of the first source alone: the second has none, the third turns the rule off
    assert statistics["dropped"] == {"curly_bracket": 1, "short": 3}
    said = capsys.readouterr().err
    assert "corpus.sources.3.cleaning.min_words (a value beside corpus.sources.3.cleaning.p" in said
    with pytest.raises(ValueError, match="unknown preset; expected gopher, c4, fineweb"):
        CorpusConfig.model_validate({"sources": [source(tmp_path, cleaning={"presets": ["x"]})]})


@pytest.mark.parametrize("workers", [1, 2])
def test_rules_have_the_same_effect_for_any_number_of_files_and_workers(
    tmp_path: Path, workers: int
) -> None:
    texts = [text.replace(".", " [1].\nno end\n") for text in documents(2, 60)]
    write_jsonl(tmp_path / "one" / "a.jsonl", texts)
    for part in range(5):
        write_jsonl(tmp_path / "many" / f"{part}.jsonl", texts[part * 12 : part * 12 + 12])
    cleaning = {"presets": ["gopher", "c4", "fineweb"], "min_words": 5, "min_sentences": 1}
    machine = {"worker_mode": "processes" if workers > 1 else "inline", "workers": workers}
    one = tokens(tmp_path / "t1", tmp_path / "one", cleaning=cleaning)
    many = tokens(tmp_path / "t2", tmp_path / "many", cleaning=cleaning, machine=machine)
    assert one.digest == many.digest
    assert one.manifest.statistics["edits"] == many.manifest.statistics["edits"]


def test_a_source_of_which_rules_drop_more_than_half_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(tmp_path / "a.jsonl", documents(1, 20))
    write_jsonl(tmp_path / "b.jsonl", [*documents(3, 10), *(f"x {n}" for n in range(11))])
    paths = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    tokens(tmp_path / "tokens", *paths, cleaning={"min_words": 3})
    (warning,) = (line for line in capsys.readouterr().err.splitlines() if "warning" in line)
    assert (
        f"warning: tokens: corpus.sources.1 ({paths[1]}): rules drop 11 of its 21 documents "
        "(52%), most of them (11) as short; loosen or turn off cleaning.min_words"
    ) in warning


def test_a_source_of_one_giant_document_is_named_as_cut_into_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "giant.txt"
    line = " ".join(documents(1, 20)).replace("\n", " ")
    path.write_text(f"{line}\n" * (16_700_000 // len(line)))
    sources: list[dict[str, Any]] = [
        {"reader": "text", "path": str(path), "line_break": "paragraph"}
    ]
    vocabulary = given_vocabulary(tmp_path / "vocabulary")
    make_tokens(tokens_table(tmp_path / "tokens", sources, vocabulary=vocabulary), [])
    sources[0]["boilerplate"] = {}
    run(tmp_path / "lines", sources)
    said = capsys.readouterr().err
    name = f"corpus.sources.0 ({path}): its 17 MB are 4 documents, parts of larger ones"
    assert f"warning: tokens: {name}, which are cut at 4 MiB; if it consists of smaller" in said
    assert f"warning: boilerplate: {name}" in said
    assert "such as blank_line_text or jsonl; each part counts as a document" in said


def test_a_corpus_of_which_everything_is_dropped_is_an_error_with_source_rule_and_remedy(
    tmp_path: Path,
) -> None:
    write_jsonl(tmp_path / "a.jsonl", documents(1, 20))
    write_jsonl(tmp_path / "b.jsonl", ["no end", "none here"])
    paths = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    cleaning = {"min_words": 10_000, "remove_unterminated_lines": True}
    message = (
        rf"corpus\.sources\.0 \({paths[0]}\): rules drop 20 of its 20 documents \(100%\), most of "
        rf"them \(20\) as short; loosen or turn off cleaning\.min_words .*; corpus\.sources\.1 "
        rf"\({paths[1]}\): rules drop 2 of .* as removed_lines; line rules remove all"
    )
    with pytest.raises(UsageError, match=rf"no document is left: {message}"):
        tokens(tmp_path / "tokens", *paths, cleaning=cleaning)
    assert not (tmp_path / "tokens" / "manifest.json").exists()
    sources = [source(path, line_break="paragraph") for path in paths]
    table = vocabulary_table(tmp_path / "v", sources, cleaning=cleaning)
    with pytest.raises(UsageError, match=rf"no training document .* from: {message}"):
        make_vocabulary(table, [])
