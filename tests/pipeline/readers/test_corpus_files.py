"""A corpus that changes while it is read is never stored; any file name works."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.filesystem import find_files
from cloze.artifacts.manifest import MANIFEST_NAME
from cloze.artifacts.store import Artifact
from cloze.pipeline.config.settings import CorpusConfig, SourceConfig
from cloze.pipeline.readers.compression import stream
from cloze.pipeline.readers.input_shards import CorpusFiles, input_shards, reader_named
from cloze.pipeline.runner.execution import Runner
from cloze.pipeline.tokens import make_tokens
from tests.pipeline.corpora import documents, given_vocabulary, source, tokens_table, write_jsonl


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return given_vocabulary(tmp_path_factory.mktemp("vocabulary"))


def while_it_runs(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Run a function between the start of a stage and its first read."""
    run = Runner.run

    def changed(*arguments: object, **options: object) -> None:
        change()
        run(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Runner, "run", changed)


def test_a_file_written_to_while_tokens_are_made_ends_the_stage_and_is_never_stored(
    tmp_path: Path, vocabulary: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "corpus" / "a.jsonl"
    write_jsonl(path, documents(1, 30))
    content = path.read_bytes()
    golden = make_tokens(
        tokens_table(tmp_path / "golden", [source(path)], vocabulary=vocabulary), []
    )
    table = tokens_table(tmp_path / "out", [source(path)], vocabulary=vocabulary)
    with monkeypatch.context() as patch:
        while_it_runs(patch, lambda: write_jsonl(path, documents(2, 40)))
        with pytest.raises(IntegrityError, match=r"a\.jsonl: was written to since the stage began"):
            make_tokens(table, [])
    assert not (tmp_path / "out" / MANIFEST_NAME).exists()
    # output made from the other content must not be reused once the file is restored
    path.write_bytes(content)
    assert make_tokens(table, []).digest == golden.digest


@pytest.mark.parametrize("change", ["is new", "is gone"])
def test_a_file_added_or_removed_while_a_stage_reads_ends_it_with_its_name(
    tmp_path: Path, change: str
) -> None:
    folder, output = tmp_path / "corpus", tmp_path / "out"
    for name in ("a", "b") if change == "is gone" else ("a",):
        write_jsonl(folder / f"{name}.jsonl", documents(1, 3))
    corpus = CorpusConfig.model_validate({"sources": [source(folder)]})
    files = CorpusFiles(corpus, str(output))
    files.require_unchanged()
    if change == "is gone":
        (folder / "b.jsonl").unlink()
    else:
        write_jsonl(folder / "b.jsonl", documents(2, 3))
    with pytest.raises(IntegrityError, match=rf"b\.jsonl: {change} since the stage began"):
        files.require_unchanged()


def test_what_was_made_of_other_files_before_a_kill_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_jsonl(path, documents(1, 3))
    corpus = CorpusConfig.model_validate({"sources": [source(path)]})
    finished = tmp_path / "out" / "finished" / "train-00000.arrow.json"
    CorpusFiles(corpus, str(tmp_path / "out"))
    finished.parent.mkdir()
    finished.touch()
    CorpusFiles(corpus, str(tmp_path / "out"))
    assert finished.exists()
    write_jsonl(path, documents(2, 3))
    CorpusFiles(corpus, str(tmp_path / "out"))
    assert not finished.exists()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda folder: (folder / "b.txt").write_text("new"), r"b\.txt: is new"),
        (lambda folder: (folder / "a.txt").unlink(), r"a\.txt: is gone"),
        (lambda folder: os.utime(folder / "a.txt", ns=(1, 1)), r"a\.txt: was written to"),
    ],
)
def test_files_that_come_go_or_change_are_named(
    tmp_path: Path, change: Callable[[Path], object], complaint: str
) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("a.txt", "z.txt"):
        (folder / name).write_text("Text.")
    corpus = CorpusConfig(sources=(SourceConfig(reader="text", path=str(folder)),))
    files = CorpusFiles(corpus, str(tmp_path / "out"))
    files.require_unchanged()
    change(folder)
    with pytest.raises(IntegrityError, match=complaint):
        files.require_unchanged()


@pytest.mark.parametrize("name", ["a::b.txt", "a[1].txt", "a*.txt", "what?.txt", "per%20cent.txt"])
@pytest.mark.parametrize("named", ["directly", "by its folder"])
def test_a_file_of_any_name_is_read(tmp_path: Path, name: str, named: str) -> None:
    path = tmp_path / "corpus" / name
    path.parent.mkdir()
    path.write_text("Some text.")
    config = SourceConfig(reader="text", path=str(path if named == "directly" else path.parent))
    (shard,) = input_shards(CorpusConfig(sources=(config,)))
    (block,) = (
        block for piece in shard.pieces for block in reader_named("text").read(piece, config)
    )
    assert block.text.tobytes() == b"Some text.\n"


@pytest.mark.parametrize("text", ["BZh", "BZh9", "BZhang wrote this.", "BZh91AY&S"])
def test_a_text_that_begins_like_bzip2_is_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text)
    assert b"".join(stream(str(path))) == text.encode()


def test_links_to_folders_and_files_are_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.txt").write_text("Text.")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "folder").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus" / "b.txt").symlink_to(tmp_path / "elsewhere" / "a.txt")
    names = [os.path.relpath(file.path, tmp_path) for file in find_files(str(tmp_path / "corpus"))]
    assert names == ["corpus/b.txt", "corpus/folder/a.txt"]


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        (".", "a link to one of its parent folders"),
        ("..", "a link to one of its parent folders"),
        ("loop", r"broken link \(Too many levels of symbolic links\)"),
        ("missing", r"broken link \(No such file or directory\)"),
    ],
)
def test_links_that_lead_nowhere_or_round_are_named(
    tmp_path: Path, target: str, complaint: str
) -> None:
    folder = tmp_path / "corpus" / "inner"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("Text.")
    (folder / "loop").symlink_to(target)
    with pytest.raises(UsageError, match=rf"inner/loop: {complaint}"):
        find_files(str(tmp_path / "corpus"))
