"""The vocabulary does not depend on workers or files, and never includes held-out text."""

import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cloze.artifacts.errors import UsageError
from cloze.artifacts.store import Artifact
from cloze.artifacts.tokenizer import SPECIAL_TOKENS
from cloze.pipeline import vocabulary as stage
from cloze.pipeline.config.settings import CorpusConfig, SourceConfig
from cloze.pipeline.readers import input_shards
from cloze.pipeline.text.duplicates import read_drop_list
from cloze.pipeline.tokenizer.wordpiece import count_pre_tokens
from cloze.pipeline.vocabulary import (
    CANDIDATES_SCHEMA,
    draw_sample,
    learn_pieces,
    make_vocabulary,
    word_counts,
)
from tests.pipeline.corpora import (
    INLINE,
    documents,
    everything_twice,
    run_as_program,
    source,
    vocabulary_table,
    write_jsonl,
)

TEXTS = documents(11, 600)
SMALL = {"size": 300}


def learn(output: Path, paths: list[Path], **options) -> Artifact:
    sources = [source(path) for path in paths]
    vocabulary = {**SMALL, **options.pop("vocabulary", {})}
    return make_vocabulary(vocabulary_table(output, sources, vocabulary=vocabulary, **options), [])


def pieces_of(artifact: Artifact) -> list[str]:
    return artifact.read_bytes("vocab.txt").decode().splitlines()


@pytest.fixture(scope="module")
def golden(tmp_path_factory) -> Artifact:
    folder = tmp_path_factory.mktemp("golden")
    write_jsonl(folder / "all.jsonl", TEXTS)
    return learn(folder / "out", [folder / "all.jsonl"])


@pytest.mark.parametrize(("wanted", "taken"), [(1, 1), (10, 1), (11, 2), (20, 2), (21, 3), (99, 3)])
def test_documents_are_taken_whole_until_there_are_enough_bytes(
    tmp_path: Path, wanted: int, taken: int
) -> None:
    texts = [b"one   one\n", b"two   two\n", b"three   3\n"]  # ten bytes each
    columns = [
        pa.array([5, 7, 9], pa.uint64()),
        pa.array([bytes([number] * 16) for number in range(3)], pa.binary(16)),
        pa.array(np.zeros(3, dtype=np.uint8)),
        pa.array(texts, pa.large_binary()),
    ]
    path = tmp_path / "candidates.arrow"
    batch = pa.RecordBatch.from_arrays(columns, schema=CANDIDATES_SCHEMA)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, CANDIDATES_SCHEMA) as writer:
        writer.write_batch(batch)
    sources = (SourceConfig(reader="text", path=str(tmp_path)),)
    corpus = CorpusConfig(sources=sources, heldout_share=0.0)
    sample = draw_sample(
        [str(path)], wanted_bytes=wanted, drop_list=read_drop_list(""), corpus=corpus
    )
    assert list(sample) == [texts[:taken]]


class TestSameBytes:
    def test_shuffled_renamed_and_cut_otherwise(
        self, golden: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(input_shards, "BLOCK_BYTES", 20_000)
        texts = random.Random(3).sample(TEXTS, len(TEXTS))
        for number in range(5):
            write_jsonl(tmp_path / "corpus" / f"{9 - number}.jsonl.gz", texts[number::5])
        again = learn(tmp_path / "out", [tmp_path / "corpus"])
        assert again.digest == golden.digest

    @pytest.mark.parametrize("workers", [1, 2])
    def test_any_workers(self, golden: Artifact, tmp_path: Path, workers: int) -> None:
        write_jsonl(tmp_path / "all.jsonl", TEXTS)
        machine = {"worker_mode": "processes", "workers": workers}
        again = learn(tmp_path / "out", [tmp_path / "all.jsonl"], machine=machine)
        assert again.digest == golden.digest

    def test_any_portion_read_twice(
        self, golden: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_jsonl(tmp_path / "all.jsonl", TEXTS)
        machine = everything_twice(monkeypatch)
        again = learn(tmp_path / "out", [tmp_path / "all.jsonl"], machine=machine)
        assert again.digest == golden.digest

    @pytest.mark.parametrize(
        ("machine", "code"),
        [(INLINE, -signal.SIGKILL), ({"worker_mode": "processes", "workers": 2}, 137)],
        ids=["program", "worker"],
    )
    def test_killed_and_started_again(
        self, golden: Artifact, tmp_path: Path, machine: dict[str, object], code: int
    ) -> None:
        write_jsonl(tmp_path / "all.jsonl", TEXTS)
        output, sources = tmp_path / "out", [source(tmp_path / "all.jsonl")]
        table = vocabulary_table(output, sources, vocabulary=SMALL, machine=machine)
        first = run_as_program(table, tmp_path, site="before a sample is put", count=2)
        assert first.code == code, first.errors
        assert "was ended by SIGKILL" in first.errors or machine is INLINE
        assert not (output / "manifest.json").exists()
        again = run_as_program(table, tmp_path)
        assert again.digest == golden.digest, again.errors
        assert not list(output.glob("cloze-*"))

    def test_in_a_workspace_elsewhere(self, golden: Artifact, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "all.jsonl", TEXTS)
        sources = [source(tmp_path / "all.jsonl")]
        table = vocabulary_table(tmp_path, sources, vocabulary=SMALL)
        again = make_vocabulary(
            table.model_copy(update={"output": "memory://store/vocabulary"}), []
        )
        assert again.digest == golden.digest

    def test_a_document_counts_once(self, golden: Artifact, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "all.jsonl", TEXTS + TEXTS[:100] * 3)
        assert learn(tmp_path / "out", [tmp_path / "all.jsonl"]).digest == golden.digest

    def test_learning_does_not_depend_on_hash_seeds(self) -> None:
        program = (
            "from collections import Counter; "
            "from cloze.pipeline.vocabulary import learn_pieces; "
            "words = {f'{a}{b}{c}': 2 for a in 'abcdef' for b in 'ghijkl' for c in 'mnopqr'}; "
            "print(' '.join(learn_pieces(words, size=120)))"
        )
        found = {
            subprocess.run(
                [sys.executable, "-c", program],
                capture_output=True,
                text=True,
                check=True,
                cwd=Path(__file__).parents[2],
            ).stdout
            for _ in range(4)
        }
        assert len(found) == 1


class TestSample:
    def test_held_out_documents_are_never_seen(self, tmp_path: Path) -> None:
        secret = [f"xylophone{number} quizzical{number}" for number in range(30)]
        write_jsonl(tmp_path / "train.jsonl", TEXTS[:200] + secret)
        write_jsonl(tmp_path / "exam.jsonl", secret)
        sources = [
            source(tmp_path / "train.jsonl"),
            source(tmp_path / "exam.jsonl", heldout="exam"),
        ]
        table = vocabulary_table(tmp_path / "out", sources, vocabulary=SMALL)
        pieces = pieces_of(make_vocabulary(table, []))
        assert not [piece for piece in pieces if "xylo" in piece or "quiz" in piece]
        without = learn(tmp_path / "b", [tmp_path / "train.jsonl"])
        assert "xylophone" in pieces_of(without)

    def test_the_held_out_share_is_left_out(self, tmp_path: Path) -> None:
        rng = random.Random(1)
        words = ["".join(rng.choices("abcdefghij", k=6)) for _ in range(80)]
        write_jsonl(tmp_path / "all.jsonl", [f"{word} " * 40 for word in words])

        def learnt(share: float) -> int:
            """How many documents' own words have become pieces."""
            folder, size = tmp_path / f"{share}", {"size": 1000}
            files = [tmp_path / "all.jsonl"]
            pieces = pieces_of(learn(folder, files, heldout_share=share, vocabulary=size))
            return len({*words}.intersection(pieces))

        assert learnt(0.0) == 80
        assert 24 < learnt(0.49) < 56

    def test_a_sample_is_the_same_whatever_the_first_limit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        write_jsonl(tmp_path / "all.jsonl", TEXTS)
        half = {"sample_bytes": sum(map(len, TEXTS)) // 2}
        whole = learn(tmp_path / "a", [tmp_path / "all.jsonl"], vocabulary=half)
        monkeypatch.setattr("cloze.pipeline.vocabulary.sample_limit", lambda wanted, size: 1 << 60)
        again = learn(tmp_path / "b", [tmp_path / "all.jsonl"], vocabulary=half)
        assert again.digest == whole.digest
        assert "drawing a larger one" in capfd.readouterr().err

    def test_limits_leave_room(self) -> None:
        assert stage.sample_limit(10, 40) == 1 << 64
        assert stage.sample_limit(10, 80) == 1 << 63
        assert stage.sample_limit(10, 0) == 1 << 64


class TestLearning:
    def test_special_tokens_come_first_and_everything_once(self, golden: Artifact) -> None:
        pieces = pieces_of(golden)
        assert tuple(pieces[:5]) == SPECIAL_TOKENS
        assert len(pieces) == len(set(pieces)) == SMALL["size"]
        assert golden.manifest.statistics["vocabulary_size"] == SMALL["size"]
        assert "the" in pieces

    def test_accents_and_case_go_if_the_model_is_uncased(self) -> None:
        chunks = count_pre_tokens("Ärger ÄRGER ärger naïve 中文 don’t".encode(), lowercase=True)
        assert word_counts(chunks, lowercase=True) == {
            "arger": 3,
            "naive": 1,
            "中": 1,
            "文": 1,
            "don": 1,
            "’": 1,
            "t": 1,
        }
        chunks = count_pre_tokens("Ärger ärger THE the".encode(), lowercase=False)
        assert word_counts(chunks, lowercase=False) == {"Ärger": 1, "ärger": 1, "THE": 1, "the": 1}

    def test_counting_whole_blocks_counts_every_word(self) -> None:
        text = "\n".join(TEXTS)
        expected: Counter[str] = Counter()
        for mark in ".?!":
            text = text.replace(mark, f" {mark} ")
        expected.update(text.lower().split())
        assert (
            word_counts(count_pre_tokens(text.encode(), lowercase=True), lowercase=True) == expected
        )

    def test_rare_characters_get_no_piece_if_the_alphabet_is_limited(self) -> None:
        words = {"aab": 9, "abc": 8, "xyz": 1}
        pieces = learn_pieces(words, size=50, most=3)
        assert not [piece for piece in pieces[5:] if set(piece) & set("xyz")]
        assert set("xyz") <= set(learn_pieces(words, size=50))

    def test_1500_ideographs_all_have_a_piece(self) -> None:
        ideographs = {chr(0x4E00 + n): 1 + n % 7 for n in range(1500)}
        assert ideographs.keys() <= set(learn_pieces(ideographs, size=8192))

    def test_the_alphabet_leaves_room_for_words(self) -> None:
        words = {chr(0x4E00 + n): 5 for n in range(500)} | {"hello": 100, "jelly": 90}
        pieces = learn_pieces(words, size=64)
        assert len(pieces) <= 64
        assert "hello" in pieces

    def test_a_given_vocabulary_is_taken_as_it_is(self, tmp_path: Path) -> None:
        path = tmp_path / "vocab.txt"
        path.write_text("\n".join([*SPECIAL_TOKENS, "hello", "##x"]) + "\n")
        for number in range(2):
            table = vocabulary_table(tmp_path / f"{number}", [], vocabulary={"path": str(path)})
            artifact = make_vocabulary(table, [])
            assert pieces_of(artifact)[5:] == ["hello", "##x"]
            path = tmp_path / "tokenizer.json"
            path.write_bytes(artifact.read_bytes("tokenizer.json"))

    def test_nothing_to_learn_from_is_an_error(self, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "a.jsonl", ["", " "])
        with pytest.raises(UsageError, match="no training document to learn a vocabulary from"):
            learn(tmp_path / "out", [tmp_path / "a.jsonl"])
