"""The tokens stage as a whole: the contents of its files, and the same bytes in all conditions."""

import hashlib
import json
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cloze.artifacts import filesystem
from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, commit, put_local_file
from cloze.artifacts.tables import tokens_schema
from cloze.pipeline import tokens
from cloze.pipeline.config import settings
from cloze.pipeline.readers import input_shards
from cloze.pipeline.shuffle import beam_group_by_key as shuffle
from cloze.pipeline.shuffle import buckets
from cloze.pipeline.shuffle import local_spill as spill
from cloze.pipeline.shuffle.beam_group_by_key import BeamGroupByKey
from cloze.pipeline.tokenizer import tokenized_documents
from cloze.pipeline.tokens import make_tokens
from tests.conftest import PROJECT, cloze
from tests.object_store import faulty_store
from tests.pipeline.corpora import (
    TWO_PROCESSES,
    digest_after_a_killed_worker,
    documents,
    everything_twice,
    given_vocabulary,
    letters_tokenizer,
    run_as_program,
    source,
    tokens_table,
    write_jsonl,
)


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory) -> Artifact:
    return given_vocabulary(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(autouse=True)
def many_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give small corpora the structure of large ones."""
    monkeypatch.setattr(settings, "BUCKET_BYTES", 8_000)
    monkeypatch.setattr(settings, "DOCUMENTS_PER_BUCKET", 40)
    monkeypatch.setattr(input_shards, "BLOCK_BYTES", 30_000)
    monkeypatch.setattr(buckets, "MOST_GROUPS", 2)


def rows_of(artifact: Artifact, split: str) -> list[dict[str, Any]]:
    names = [e.name for e in artifact.manifest.files if e.name.startswith(f"{split}-")]
    return [row for name in names for row in table_of(artifact, name).to_pylist()]


def table_of(artifact: Artifact, name: str) -> pa.Table:
    return pa.ipc.open_file(artifact.path(name)).read_all()


def digest_of(text: str) -> bytes:
    """The digest of a text that `sentences_of` can split."""
    lines = "".join(f"{sentence}\n" for sentence in sentences_of(text))
    return hashlib.blake2b(lines.encode(), digest_size=16).digest()


def sentences_of(text: str) -> list[str]:
    return re.split(r"(?<=[.?!]) ", text)


TEXTS = documents(1, 500)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "all.jsonl"
    write_jsonl(path, TEXTS)
    return path


def run(output: Path, sources: list[dict[str, Any]], vocabulary: Artifact, **options) -> Artifact:
    return make_tokens(tokens_table(output, sources, vocabulary=vocabulary, **options), [])


class TestContent:
    def test_every_document_is_there_once_with_the_ids_of_tokenizers(
        self, corpus: Path, vocabulary: Artifact, tmp_path: Path
    ) -> None:
        artifact = run(tmp_path, [source(corpus)], vocabulary, heldout_share=0.1)
        rows = {
            row["document_digest"]: row
            for s in ("train", "heldout")
            for row in rows_of(artifact, s)
        }
        assert set(rows) == {digest_of(text) for text in TEXTS}
        tokenizer = letters_tokenizer()
        for text in TEXTS:
            row = rows[digest_of(text)]
            encoded = [tokenizer.encode(sentence) for sentence in sentences_of(text)]
            assert row["token_ids"] == [index for ids in encoded for index in ids]
            assert row["sentence_lengths"] == [len(ids) for ids in encoded]
            assert row["copies"] == 1

    def test_buckets_are_sorted_ranges_of_digests(
        self, corpus: Path, vocabulary: Artifact, tmp_path: Path
    ) -> None:
        artifact = run(tmp_path, [source(corpus)], vocabulary, heldout_share=0.0)
        names = sorted(e.name for e in artifact.manifest.files if e.name.startswith("train-"))
        assert names == [f"train-{number:05}.arrow" for number in range(8)]
        everything = []
        for number, name in enumerate(names):
            table = table_of(artifact, name)
            assert table.schema == tokens_schema(letters_tokenizer().size)
            digests = table["document_digest"].to_pylist()
            assert {digest[0] >> 5 for digest in digests} == {number}
            everything += digests
        assert everything == sorted(everything)

    def test_the_manifest_counts_what_is_there(
        self, corpus: Path, vocabulary: Artifact, tmp_path: Path
    ) -> None:
        artifact = run(tmp_path, [source(corpus)], vocabulary, heldout_share=0.1)
        statistics = artifact.manifest.statistics
        tokenizer = letters_tokenizer()
        assert statistics["tokenizer_digest"] == tokenizer.digest
        assert statistics["vocabulary_size"] == tokenizer.size
        assert statistics["documents_read"] == len(TEXTS)
        for split in ("train", "heldout"):
            rows, counts = rows_of(artifact, split), statistics["splits"][split]
            lengths = [len(row["token_ids"]) for row in rows]
            sentences = [n for row in rows for n in row["sentence_lengths"]]
            assert counts["documents"] == len(rows)
            assert counts["sentences"] == len(sentences)
            assert counts["tokens"] == counts["weighted_tokens"] == sum(lengths)
            histogram = Counter(length.bit_length() - 1 for length in lengths)
            assert {k: n for k, n in enumerate(counts["document_lengths"]) if n} == histogram
            histogram = Counter(length.bit_length() - 1 for length in sentences)
            assert {k: n for k, n in enumerate(counts["sentence_lengths"]) if n} == histogram
        chosen = [
            text
            for text in TEXTS
            if digest_of(text) in {row["document_digest"] for row in rows_of(artifact, "train")}
        ]
        expected = sum(len(sentence) + 1 for text in chosen for sentence in sentences_of(text))
        assert statistics["splits"]["train"]["text_bytes"] == expected

    def test_token_counts_are_those_of_the_training_split(
        self, corpus: Path, vocabulary: Artifact, tmp_path: Path
    ) -> None:
        artifact = run(tmp_path, [source(corpus)], vocabulary, heldout_share=0.3)
        ids = [index for row in rows_of(artifact, "train") for index in row["token_ids"]]
        counts = artifact.read_json("token_counts.json")
        assert counts == np.bincount(ids, minlength=letters_tokenizer().size).tolist()

    def test_the_tokenizer_lies_beside_the_tokens(
        self, corpus: Path, vocabulary: Artifact, tmp_path: Path
    ) -> None:
        artifact = run(tmp_path, [source(corpus)], vocabulary)
        for name in ("tokenizer.json", "vocab.txt"):
            assert artifact.read_bytes(name) == vocabulary.read_bytes(name)
        assert not (tmp_path / "work").exists()

    def test_a_weight_is_a_number_of_copies(
        self, corpus: Path, vocabulary: Artifact, tmp_path: Path
    ) -> None:
        artifact = run(tmp_path, [source(corpus, weight=3)], vocabulary, heldout_share=0.0)
        assert {row["copies"] for row in rows_of(artifact, "train")} == {3}
        counts = artifact.manifest.statistics["splits"]["train"]
        assert counts["weighted_tokens"] == 3 * counts["tokens"]


class TestHeldOut:
    def test_the_share_is_drawn_by_digest_and_seed(
        self, corpus: Path, vocabulary: Artifact, tmp_path: Path
    ) -> None:
        def held_out(name: str, **options: Any) -> set[bytes]:
            artifact = run(tmp_path / name, [source(corpus)], vocabulary, **options)
            return {row["document_digest"] for row in rows_of(artifact, "heldout")}

        tenth, fifth = held_out("a", heldout_share=0.1), held_out("b", heldout_share=0.2)
        assert 25 < len(tenth) < 80
        assert tenth < fifth
        assert held_out("c", heldout_share=0.1, seed=6) != tenth
        assert held_out("d", heldout_share=0.0) == set()

    @pytest.mark.parametrize(("share", "said"), [(1e-9, True), (0.2, False), (0.0, False)])
    def test_it_is_said_if_the_draw_held_out_nothing_and_what_is_held_out_then(
        self,
        share: float,
        said: bool,
        corpus: Path,
        vocabulary: Artifact,
        tmp_path: Path,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        found = run(tmp_path, [source(corpus)], vocabulary, heldout_share=share)
        line = "draws none of so few documents; the one with the smallest digest is held out"
        assert (line in capfd.readouterr().err) == said
        assert len(rows_of(found, "heldout")) == 1 or not said

    def test_a_held_out_source_keeps_its_documents_to_itself(
        self, corpus: Path, vocabulary: Artifact, tmp_path: Path
    ) -> None:
        exam = tmp_path / "exam.jsonl"
        write_jsonl(exam, TEXTS[:50] + TEXTS[:5] + documents(9, 3))
        other = tmp_path / "other.jsonl"
        write_jsonl(other, TEXTS[40:60])
        sources = [source(corpus), source(exam, heldout="exam"), source(other, heldout="other")]
        artifact = run(tmp_path / "out", sources, vocabulary, heldout_share=0.2)
        digests = {
            split: {row["document_digest"] for row in rows_of(artifact, split)}
            for split in ("train", "heldout", "exam", "other")
        }
        assert digests["exam"] == {digest_of(text) for text in TEXTS[:50] + documents(9, 3)}
        assert digests["other"] == {digest_of(text) for text in TEXTS[50:60]}
        assert digests["train"] | digests["heldout"] == {digest_of(text) for text in TEXTS[60:]}
        assert not digests["train"] & digests["heldout"]
        assert artifact.manifest.statistics["dropped"] == {"duplicate": 5, "held_out": 70}


class TestDropped:
    def test_of_equal_documents_the_first_source_survives(
        self, vocabulary: Artifact, tmp_path: Path
    ) -> None:
        for name, texts in {"a": TEXTS[:20], "b": TEXTS[10:30]}.items():
            write_jsonl(tmp_path / f"{name}.jsonl", texts)
        sources = [source(tmp_path / "b.jsonl", weight=2), source(tmp_path / "a.jsonl", weight=7)]
        artifact = run(tmp_path / "out", sources, vocabulary, heldout_share=0.0)
        copies = {row["document_digest"]: row["copies"] for row in rows_of(artifact, "train")}
        assert copies == {
            **{digest_of(text): 7 for text in TEXTS[:10]},
            **{digest_of(text): 2 for text in TEXTS[10:30]},
        }

    def test_every_dropped_document_is_listed_with_its_place_and_reason(
        self, vocabulary: Artifact, tmp_path: Path
    ) -> None:
        write_jsonl(tmp_path / "corpus" / "a.jsonl", [TEXTS[0], "", TEXTS[1], TEXTS[0]])
        write_jsonl(tmp_path / "corpus" / "b.jsonl", [TEXTS[1], "\ufffd" * 9, "\ue000", "of it"])
        cleaning = {"min_words": 2}
        artifact = run(
            tmp_path / "out",
            [source(tmp_path / "corpus")],
            vocabulary,
            cleaning=cleaning,
            heldout_share=0.0,
        )
        listed = table_of(artifact, "dropped.arrow").to_pylist()
        found = sorted((Path(row["path"]).name, row["position"], row["reason"]) for row in listed)
        lengths = [len(json.dumps({"text": t})) + 1 for t in (TEXTS[0], "", TEXTS[1])]
        after = [len(json.dumps({"text": t})) + 1 for t in (TEXTS[1], "\ufffd" * 9)]
        assert found == [
            ("a.jsonl", lengths[0], "empty"),
            ("a.jsonl", sum(lengths), "duplicate"),
            ("b.jsonl", 0, "duplicate"),
            ("b.jsonl", after[0], "not_text"),
            ("b.jsonl", sum(after), "short"),
        ]
        assert artifact.manifest.statistics["dropped"] == {
            "duplicate": 2,
            "empty": 1,
            "not_text": 1,
            "short": 1,
        }
        assert artifact.manifest.statistics["documents_read"] == 8
        assert "dropped.arrow" in {entry.name for entry in artifact.manifest.records}

    def test_a_page_a_thousand_times_is_kept_once(
        self, vocabulary: Artifact, tmp_path: Path
    ) -> None:
        write_jsonl(tmp_path / "a.jsonl", [TEXTS[3]] * 1000 + TEXTS[:5])
        artifact = run(
            tmp_path / "out", [source(tmp_path / "a.jsonl")], vocabulary, heldout_share=0.0
        )
        assert len(rows_of(artifact, "train")) == 5
        assert artifact.manifest.statistics["dropped"] == {"duplicate": 1000}

    def test_documents_without_a_token_are_dropped(
        self, vocabulary: Artifact, tmp_path: Path
    ) -> None:
        write_jsonl(tmp_path / "a.jsonl", ["\ue000 \ufffd", *TEXTS[:2]])
        cleaning = {"max_replacement_share": 1.0}
        artifact = run(
            tmp_path / "o", [source(tmp_path / "a.jsonl")], vocabulary, cleaning=cleaning
        )
        assert artifact.manifest.statistics["dropped"] == {"no_tokens": 1}

    @pytest.mark.parametrize(
        ("html", "sentences"), [(None, 1), (False, 1), (True, 2)], ids=["untold", "off", "on"]
    )
    def test_what_came_from_html_is_read_so_if_its_source_says_so(
        self, vocabulary: Artifact, tmp_path: Path, html: bool | None, sentences: int
    ) -> None:
        write_jsonl(tmp_path / "a.jsonl", ["the cat &amp; the dog<br>on it"])
        sources = [source(tmp_path / "a.jsonl", html=html)]
        (row,) = rows_of(run(tmp_path / "out", sources, vocabulary, heldout_share=0.0), "train")
        assert len(row["sentence_lengths"]) == sentences

    def test_a_drop_list_is_obeyed(
        self, corpus: Path, vocabulary: Artifact, tmp_path: Path
    ) -> None:
        unwanted = sorted(digest_of(text) for text in TEXTS[:30])
        drop_list = drop_list_artifact(tmp_path / "drop", unwanted)
        cleaning = {"drop_list": drop_list.directory}
        artifact = run(tmp_path / "out", [source(corpus)], vocabulary, cleaning=cleaning)
        digests = {r["document_digest"] for s in ("train", "heldout") for r in rows_of(artifact, s)}
        assert digests == {digest_of(text) for text in TEXTS[30:]}
        assert artifact.manifest.statistics["dropped"] == {"drop_list": 30}


def drop_list_artifact(directory: Path, digests: list[bytes]) -> Artifact:
    directory.mkdir()
    table = pa.table(
        {
            "document_digest": pa.array(digests, pa.binary(16)),
            "reason": ["near_duplicate"] * len(digests),
        }
    )
    with pa.ipc.new_file(str(directory / "tmp"), table.schema) as writer:
        writer.write_table(table)
    stage = StageTable(stage="droplist", format_version=1, config={}, output=str(directory))
    entry = put_local_file(str(directory), str(directory / "tmp"), name="drop-00000.arrow")
    return commit(stage, [entry])


def engine_shuffle(shards: Any, *, job: Any, runner: Any) -> BeamGroupByKey:
    """The shuffle backend of a remote engine."""
    return BeamGroupByKey(replace(job, scratch=""), f"{job.output}/work", len(shards))


Made = Callable[..., Artifact]
Gathered = Callable[[Callable[[int, list[object]], list[list[object]]]], None]


@pytest.fixture
def made(corpus: Path, vocabulary: Artifact, tmp_path: Path) -> Made:
    """Makes the tokens of the corpus, or of other sources, with a tenth held out."""

    def make(
        sources: list[dict[str, Any]] | None = None,
        *,
        output: str = "",
        heldout_share: float = 0.1,
        **options: Any,
    ) -> Artifact:
        table = tokens_table(
            tmp_path / "out",
            sources or [source(corpus)],
            vocabulary=vocabulary,
            heldout_share=heldout_share,
            **options,
        )
        return make_tokens(table.model_copy(update={"output": output}) if output else table, [])

    return make


@pytest.fixture
def workers_here() -> None:
    """Workers on this machine, which spill to its disk."""


@pytest.fixture
def on_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers elsewhere, to which an engine's shuffle brings the documents."""
    monkeypatch.setattr(tokens, "choose_backend", engine_shuffle)
    monkeypatch.setattr(tokenized_documents, "RUN_TOKENS", 2000)


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> Gathered:
    """Changes what the engine gathers under each key: the bundles that it hands on, by key."""
    write = shuffle.write_buckets

    def change(bundles: Callable[[int, list[object]], list[list[object]]]) -> None:
        def written(one: tuple[int, Iterable[object]], *, backend: BeamGroupByKey) -> Any:
            *before, last = bundles(one[0], list(one[1]))
            for values in before:
                list(write((one[0], values), backend=backend))
            return write((one[0], last), backend=backend)

        monkeypatch.setattr(shuffle, "write_buckets", written)

    return change


class TestSameBytes:
    @pytest.fixture(scope="class")
    @classmethod
    def golden(cls, corpus: Path, vocabulary: Artifact, tmp_path_factory) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(settings, "BUCKET_BYTES", 8_000)
            patch.setattr(settings, "DOCUMENTS_PER_BUCKET", 40)
            output = tmp_path_factory.mktemp("golden")
            return run(output, [source(corpus)], vocabulary, heldout_share=0.1).digest

    @pytest.mark.parametrize(
        "machine",
        [
            {"worker_mode": "processes", "workers": 1},
            {"worker_mode": "processes", "workers": 2},
            {"worker_mode": "threads", "workers": 2},
        ],
        ids=lambda machine: f"{machine['workers']} {machine['worker_mode']}",
    )
    def test_any_workers(self, golden: str, made: Made, machine: dict[str, Any]) -> None:
        assert made(machine=machine).digest == golden

    def test_any_piece_of_work_done_twice(
        self, golden: str, made: Made, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert made(machine=everything_twice(monkeypatch)).digest == golden

    @pytest.mark.parametrize("files", [1, 7, 60])
    def test_any_order_naming_and_splitting_of_files(
        self, golden: str, made: Made, tmp_path: Path, files: int
    ) -> None:
        rng = random.Random(files)
        texts = rng.sample(TEXTS, len(TEXTS))
        for number in range(files):
            suffix = rng.choice([".jsonl", ".jsonl.gz"])
            folder = tmp_path / "corpus" / str(rng.randrange(10**9))
            write_jsonl(folder / f"part{suffix}", texts[number::files])
        assert made([source(tmp_path / "corpus")]).digest == golden

    def test_any_format(self, golden: str, made: Made, tmp_path: Path) -> None:
        folder = tmp_path / "corpus"
        folder.mkdir()
        (folder / "book.txt").write_bytes(
            b"\xef\xbb\xbf" + "\r\n\r\n".join(TEXTS).replace(" the ", " \t the\u00a0").encode()
        )
        assert made([{"reader": "blank_line_text", "path": str(folder)}]).digest == golden

    @pytest.mark.parametrize("sampled", [1, 300, shuffle.SAMPLED_BYTES])
    def test_through_the_shuffle_of_an_engine(
        self,
        golden: str,
        made: Made,
        on_engine: None,
        monkeypatch: pytest.MonkeyPatch,
        sampled: int,
    ) -> None:
        """Also if all or some of the repeated texts count as frequent."""
        monkeypatch.setattr(shuffle, "SAMPLED_BYTES", sampled)
        assert made().digest == golden

    def test_through_a_shuffle_whose_gathered_bundles_come_twice_in_another_order(
        self, golden: str, made: Made, on_engine: None, gathered: Gathered
    ) -> None:
        longest = 0

        def twice(key: int, values: list[object]) -> list[list[object]]:
            nonlocal longest
            longest = max(longest, len(values))
            return [values, values[::-1]]

        gathered(twice)
        assert made().digest == golden
        assert longest > 1

    @pytest.mark.parametrize("where", ["workers_here", "on_engine"])
    def test_in_a_workspace_elsewhere(
        self, golden: str, made: Made, where: str, request: pytest.FixtureRequest
    ) -> None:
        request.getfixturevalue(where)
        assert made(output=f"memory://store/tokens-{where}").digest == golden

    @pytest.mark.parametrize("where", ["workers_here", "on_engine"])
    def test_in_a_store_that_fails_now_and_then_and_lists_late(
        self,
        golden: str,
        made: Made,
        faulty_url: str,
        monkeypatch: pytest.MonkeyPatch,
        where: str,
        request: pytest.FixtureRequest,
    ) -> None:
        request.getfixturevalue(where)
        monkeypatch.setattr(faulty_store, "LATE_SECONDS", 60.0)
        assert made(output=f"{faulty_url}/tokens").digest == golden

    def test_workers_here_put_nothing_but_buckets_and_their_accounts_elsewhere(
        self, made: Made, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put: list[str] = []
        put_file = filesystem.put_file

        def counting(path: str, url: str, **options: bool) -> None:
            put.append(url.rpartition("/")[2])
            put_file(path, url, **options)

        monkeypatch.setattr(filesystem, "put_file", counting)
        made(output="memory://store/once", heldout_share=0.0)
        assert Counter(name.partition("-")[0] for name in put if "-" in name) == {
            "train": 8,
            "counts": 2,
            "dropped": 2,
        }

    def test_an_engine_that_is_started_again_sends_only_what_is_missing(
        self,
        golden: str,
        made: Made,
        on_engine: None,
        gathered: Gathered,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        sent: list[int] = []
        put_account = shuffle.put_account

        def counted(key: int, values: list[object]) -> list[list[object]]:
            sent.append(key)
            return [values]

        def dying(group: Any, accounts: Any, *, job: Any) -> str:
            if group.split == "heldout":
                raise KeyboardInterrupt
            return put_account(group, accounts, job=job)

        gathered(counted)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shuffle, "put_account", dying)
            with pytest.raises(KeyboardInterrupt):
                made()
        buckets_sent = len(sent)
        assert made().digest == golden
        assert len(sent) - buckets_sent == 2  # one bucket of the held-out split, and the account

    def test_documents_that_a_shuffle_loses_are_noticed(
        self, made: Made, on_engine: None, gathered: Gathered
    ) -> None:
        gathered(lambda key, values: [values[:-1] if key == 1 else values])
        with pytest.raises(IntegrityError, match="the engine's shuffle lost or duplicated some"):
            made()

    def test_other_texts_give_other_bytes(self, golden: str, made: Made, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "a.jsonl", [*TEXTS[:-1], TEXTS[-1] + " More."])
        assert made([source(tmp_path / "a.jsonl")]).digest != golden


class TestKilled:
    @pytest.fixture(scope="class")
    @classmethod
    def golden(cls, corpus: Path, vocabulary: Artifact, tmp_path_factory) -> str:
        folder = tmp_path_factory.mktemp("golden")
        table = tokens_table(folder / "out", [source(corpus)], vocabulary=vocabulary)
        ended = run_as_program(table, folder)
        assert ended.digest, ended.errors
        return ended.digest

    @pytest.mark.parametrize(
        ("site", "count", "kept"),
        [
            ("before a run is renamed", 2, ""),
            ("before a run is finished", 3, "shards are finished already"),
            ("before a bucket is put", 4, "shards and 0 of 3 groups are finished already"),
            ("before a group is finished", 3, "shards and 1 of 3 groups are finished already"),
            ("before the manifest", 1, "shards and 3 of 3 groups are finished already"),
        ],
    )
    def test_started_again_it_goes_on_and_ends_with_the_same_bytes(
        self,
        golden: str,
        corpus: Path,
        vocabulary: Artifact,
        tmp_path: Path,
        site: str,
        count: int,
        kept: str,
    ) -> None:
        table = tokens_table(tmp_path / "out", [source(corpus)], vocabulary=vocabulary)
        assert run_as_program(table, tmp_path, site=site, count=count).code == -signal.SIGKILL
        assert not (tmp_path / "out" / "manifest.json").exists()
        again = run_as_program(table, tmp_path)
        assert again.digest == golden, again.errors
        assert kept in again.errors
        left = {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()}
        assert left == {"finished"}

    def test_what_a_machine_wrote_before_it_went_down_is_made_again(
        self,
        golden: str,
        corpus: Path,
        vocabulary: Artifact,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        table = tokens_table(tmp_path / "out", [source(corpus)], vocabulary=vocabulary)
        run_as_program(table, tmp_path, site="before a bucket is put", count=4)
        for run in (tmp_path / "out" / "work").glob("*-0.arrow"):
            run.write_bytes(b"")  # renamed, but never flushed
        monkeypatch.setattr(spill, "older_than_this_start", lambda path: True)
        assert make_tokens(table, []).digest == golden
        assert "finished already" not in capsys.readouterr().err

    def test_a_killed_worker_ends_the_run_and_the_next_one_goes_on(
        self, golden: str, corpus: Path, vocabulary: Artifact, tmp_path: Path
    ) -> None:
        table = tokens_table(
            tmp_path / "out", [source(corpus)], vocabulary=vocabulary, machine=TWO_PROCESSES
        )
        site = "before a bucket is put"
        assert digest_after_a_killed_worker(table, tmp_path, site=site, count=2) == golden


class TestFaults:
    def test_an_empty_corpus_is_named(self, vocabulary: Artifact, tmp_path: Path) -> None:
        (tmp_path / "corpus").mkdir()
        with pytest.raises(UsageError, match=r"corpus: no files here"):
            run(tmp_path / "out", [source(tmp_path / "corpus")], vocabulary)

    def test_a_corpus_of_nothing_says_what_became_of_it(
        self, vocabulary: Artifact, tmp_path: Path
    ) -> None:
        write_jsonl(tmp_path / "a.jsonl", ["", " ", "\ufffd"])
        with pytest.raises(UsageError, match=r"none of its 3 documents.*2 empty, 1 not_text"):
            run(tmp_path / "out", [source(tmp_path / "a.jsonl")], vocabulary)

    @pytest.mark.parametrize("mode", ["inline", "processes"])
    def test_a_truncated_archive_ends_the_run_with_its_name(
        self, vocabulary: Artifact, tmp_path: Path, mode: str
    ) -> None:
        path = tmp_path / "corpus" / "b.jsonl.gz"
        write_jsonl(tmp_path / "corpus" / "a.jsonl", TEXTS[:20])
        write_jsonl(path, TEXTS)
        path.write_bytes(path.read_bytes()[:-100])
        machine = {"worker_mode": mode}
        with pytest.raises(IntegrityError, match=r"b\.jsonl\.gz: .*cut short"):
            run(tmp_path / "out", [source(tmp_path / "corpus")], vocabulary, machine=machine)
        assert not (tmp_path / "out" / "manifest.json").exists()

    def test_one_document_is_a_corpus(self, vocabulary: Artifact, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "a.jsonl", TEXTS[:1])
        artifact = run(tmp_path / "out", [source(tmp_path / "a.jsonl")], vocabulary)
        assert len(rows_of(artifact, "train")) == 1

    def test_the_vocabulary_named_must_be_the_one_found(
        self, corpus: Path, vocabulary: Artifact, tmp_path: Path
    ) -> None:
        table = tokens_table(tmp_path, [source(corpus)], vocabulary=vocabulary)
        inputs = {"vocabulary": table.inputs["vocabulary"].model_copy(update={"digest": "0" * 64})}
        with pytest.raises(IntegrityError, match="the artifact was replaced"):
            make_tokens(table.model_copy(update={"inputs": inputs}), [])

    def test_many_small_files_share_portions(self, vocabulary: Artifact, tmp_path: Path) -> None:
        (tmp_path / "corpus").mkdir()
        for number, text in enumerate(TEXTS):
            (tmp_path / "corpus" / f"{number}.txt").write_text(text)
        folder = {"reader": "text", "path": str(tmp_path / "corpus")}
        artifact = run(tmp_path / "out", [folder], vocabulary, heldout_share=0.0)
        assert len(rows_of(artifact, "train")) == len(TEXTS)


def test_buckets_hold_at_least_five_hundred_documents_where_there_are_enough(
    monkeypatch: pytest.MonkeyPatch, vocabulary: Artifact, tmp_path: Path
) -> None:
    monkeypatch.setattr(settings, "BUCKET_BYTES", 1000)
    monkeypatch.setattr(settings, "DOCUMENTS_PER_BUCKET", 650)
    texts = [f"{text} {number}" for number, text in enumerate(documents(3, 6000))]
    write_jsonl(tmp_path / "a.jsonl", texts)
    artifact = run(tmp_path / "out", [source(tmp_path / "a.jsonl")], vocabulary, heldout_share=0.02)
    sizes = [e.rows for e in artifact.manifest.files if e.name.startswith("train-")]
    assert len(sizes) == 8
    assert min(sizes) >= 500


LATIN_1 = "Dès Noël où un zéphyr haï me vêt de glaçons würmiens, ".encode("latin-1") * 20
LATIN_1 = bytes(byte for byte in LATIN_1 if byte >= 0x80) * 3 + LATIN_1


def test_prepare_ends_with_an_account_of_what_was_read_kept_and_dropped(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number, text in enumerate(documents(1, 30)):
        (folder / f"{number:02}.txt").write_text(text)
    (folder / "30.txt").write_text(documents(1, 1)[0])
    (folder / "empty.txt").write_text(" \n")
    (folder / "old.txt").write_bytes(LATIN_1)
    (folder / "one bad byte.txt").write_bytes(b"A long enough text with one \xff byte in it.")
    done = cloze(
        *("tokens", str(PROJECT / "configs" / "text_folder.toml"), "--workspace", str(tmp_path)),
        *("--set", f"corpus.sources.0.path='{folder}'", "--set", "vocabulary.size=300"),
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "tokens: " in line]
    account = "\n".join(re.sub(r".*tokens: ", "", line) for line in lines)
    assert re.search(r"34 documents read, 31 kept: .*\d+ heldout", account)
    duplicate = r"1 dropped as duplicate, the same text came earlier; for example .*30\.txt\n"
    assert re.search(duplicate, account)
    assert re.search(r"1 dropped as empty, nothing is left .*empty\.txt\n", account)
    assert re.search(r"1 dropped as not_text, too many bytes .*iconv.*old\.txt\n", account)
    assert "2 with bytes that are not UTF-8" in account
