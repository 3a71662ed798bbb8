"""Input shards have similar sizes, whatever the sizes of the files."""

import pickle
from pathlib import Path

import pytest

from cloze.pipeline.config.settings import CorpusConfig, SourceConfig
from cloze.pipeline.readers import input_shards as module
from cloze.pipeline.readers.input_shards import input_shards


def corpus(path: Path, reader: str = "jsonl") -> CorpusConfig:
    return CorpusConfig(sources=(SourceConfig(reader=reader, path=str(path)),))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(module, "MAX_SHARD_BYTES", 8000)


def test_large_files_are_cut_and_small_ones_grouped(tmp_path: Path) -> None:
    sizes = {"a.jsonl": 3500, "b.jsonl": 10, "c.jsonl": 10, "d.jsonl": 990, "e.jsonl": 0}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
    found = input_shards(corpus(tmp_path))
    pieces = [[(Path(p.path).name, p.start, p.stop) for p in shard.pieces] for shard in found]
    assert pieces == [
        [("a.jsonl", 0, 1000)],
        [("a.jsonl", 1000, 2000)],
        [("a.jsonl", 2000, 3000)],
        [("a.jsonl", 3000, 3500), ("b.jsonl", 0, None), ("c.jsonl", 0, None)],
        [("d.jsonl", 0, None), ("e.jsonl", 0, None)],
    ]
    assert sum(shard.size for shard in found) == sum(sizes.values())


def test_compressed_files_and_whole_documents_stay_whole(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"x" * 5000)
    assert [len(shard.pieces) for shard in input_shards(corpus(tmp_path))] == [1]
    (tmp_path / "a.jsonl.gz").rename(tmp_path / "a.txt")
    (shard,) = input_shards(corpus(tmp_path, "text"))
    assert shard.pieces[0].stop is None


def test_large_corpora_have_larger_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WANTED_SHARDS", 4)
    (tmp_path / "a.jsonl").write_bytes(b"x" * 16_000)
    assert [shard.size for shard in input_shards(corpus(tmp_path))] == [4000] * 4
    (tmp_path / "b.jsonl").write_bytes(b"x" * 160_000)
    assert {shard.size for shard in input_shards(corpus(tmp_path))} == {8000}


def test_a_shard_has_the_same_name_in_every_attempt(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"x" * 2500)
    names = [shard.name for shard in input_shards(corpus(tmp_path))]
    assert names == [shard.name for shard in input_shards(corpus(tmp_path))]
    assert len(set(names)) == 3


def test_hidden_files_do_not_count(tmp_path: Path) -> None:
    for name in (".git/config", "sub/.hidden", "sub/seen"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (shard,) = input_shards(corpus(tmp_path))
    assert [Path(piece.path).name for piece in shard.pieces] == ["seen"]


def test_names_of_many_files_weigh_little_on_their_way_to_the_workers(tmp_path: Path) -> None:
    folder = tmp_path / "a folder with a rather long name"
    folder.mkdir()
    for number in range(2000):
        (folder / f"document-{number:09}.txt").write_text("Text.")
    found = input_shards(corpus(tmp_path))
    assert len(pickle.dumps(found)) < 20 * 2000
    assert [piece.file for shard in found for piece in shard.pieces] == list(range(2000))
