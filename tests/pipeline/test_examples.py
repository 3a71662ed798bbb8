"""The examples stage as a whole: its files, the same bytes everywhere, recovery from faults."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.stage import write_stage_table
from cloze.artifacts.tables import examples_schema
from cloze.artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from cloze.pipeline.examples import fill_examples, make_examples
from tests.artifacts.test_temporary import left_by_a_killed_process
from tests.pipeline.corpora import everything_twice
from tests.pipeline.synthetic_tokens import (
    examples_table,
    random_documents,
    small_tokenizer,
    tokens_artifact,
    tokens_table,
)
from tests.waiting import PATIENCE, wait_for

CONFIG = {"max_seq_lengths": [64, 128], "copies": 3}
LONGEST = 40
BUCKETS = [("train", 0), ("train", 1), ("train", 2), ("heldout", 0)]


@pytest.fixture(scope="module")
def tokenizer():
    return small_tokenizer()


@pytest.fixture(scope="module")
def tokens(tmp_path_factory, tokenizer):
    tables = {
        place: tokens_table(
            random_documents(number, count=30),
            vocabulary_size=tokenizer.size,
            weights=[1 + number % 2] * 30,
        )
        for number, place in enumerate(BUCKETS)
    }
    return tokens_artifact(tmp_path_factory.mktemp("tokens"), tables, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def artifact(tokens, tmp_path_factory):
    output = tmp_path_factory.mktemp("examples")
    return make_examples(examples_table(tokens, output, config=CONFIG), [])


def arrow_names(artifact):
    return {entry.name for entry in artifact.manifest.files if entry.name.endswith(".arrow")}


def read(artifact, name):
    with pa.memory_map(artifact.path(name)) as source:
        reader = pa.ipc.open_file(source)
        return [reader.get_batch(copy) for copy in range(reader.num_record_batches)]


def test_each_bucket_and_length_is_a_file(artifact):
    expected = {f"{s}-{n}-0000{b}.arrow" for s, b in BUCKETS for n in (64, 128)}
    assert arrow_names(artifact) == expected
    names = {entry.name for entry in artifact.manifest.files}
    assert names - expected == {"tokenizer.json", "vocab.txt"}


def test_record_batch_c_is_copy_c_and_heldout_splits_have_one(artifact, tokenizer):
    for name in arrow_names(artifact):
        batches = read(artifact, name)
        entry = artifact.manifest.file(name)
        assert batches[0].schema == examples_schema(tokenizer.size)
        assert [batch.num_rows for batch in batches] == entry.statistics["copies"]
        assert len(batches) == (3 if name.startswith("train") else 1)
        assert sum(batch.num_rows for batch in batches) == entry.rows
        for batch in batches:
            batch.validate(full=True)


def test_examples_are_framed_as_their_columns_say(artifact, tokenizer):
    special = {tokenizer.ids[token] for token in SPECIAL_TOKENS}
    for row in read(artifact, "train-64-00000.arrow")[0].to_pylist():
        ids, positions = row["input_ids"], row["masked_lm_positions"]
        source = list(ids)
        for position, original in zip(positions, row["masked_lm_ids"], strict=True):
            source[position] = original
        a, length = row["segment_a_length"], len(ids)
        assert length <= 64
        assert source[0] == tokenizer.cls_id
        assert source[a - 1] == source[-1] == tokenizer.sep_id
        assert not special & {*source[1 : a - 1], *source[a:-1]}
        assert 3 <= a < length - 1
        assert len(positions) == min(10, max(1, round(0.15 * length)))
        assert positions == sorted(set(positions))
        assert not {0, a - 1, length - 1} & set(positions)
        assert row["next_sentence_label"] in (0, 1)


def test_copies_differ_and_lengths_share_nothing_but_the_text(artifact):
    batches = read(artifact, "train-64-00000.arrow")
    first = [[row["input_ids"] for row in batch.to_pylist()[:50]] for batch in batches]
    assert first[0] != first[1]
    assert first[1] != first[2]


def test_statistics_are_what_the_rows_say(artifact, tokenizer):
    for name in arrow_names(artifact):
        entry, table = artifact.manifest.file(name), pa.Table.from_batches(read(artifact, name))
        lengths = pa.compute.list_value_length(table["input_ids"]).to_numpy()
        counts = entry.statistics
        assert counts["tokens"] == lengths.sum()
        assert counts["masked"] == len(pa.compute.list_flatten(table["masked_lm_ids"]))
        assert counts["next_random"] == pa.compute.sum(table["next_sentence_label"]).as_py()
        assert counts["lengths_next"][10] + counts["lengths_random"][10] == np.sum(
            lengths == counts["max_seq_length"]
        )
    statistics = artifact.manifest.statistics
    assert statistics["tokenizer_digest"] == tokenizer.digest
    assert statistics["vocabulary_size"] == tokenizer.size
    whole = statistics["splits"]["train"]["64"]
    rows = [artifact.manifest.file(f"train-64-0000{b}.arrow").rows for b in range(3)]
    assert whole["rows"] == sum(rows)
    assert whole["masked"] == (
        whole["replaced_by_mask"] + whole["replaced_by_random"] + whole["kept"]
    )
    assert whole["majority_share"] <= whole["length_only_share"] <= 1


@pytest.mark.parametrize(
    "machine",
    [
        {"worker_mode": "processes", "workers": 1},
        {"worker_mode": "processes", "workers": 2},
        {"worker_mode": "threads", "workers": 2},
    ],
)
def test_every_way_to_run_gives_the_same_bytes(artifact, tokens, tmp_path, machine):
    table = examples_table(tokens, tmp_path, config=CONFIG, machine=machine)
    again = make_examples(table, [])
    assert again.digest == artifact.digest
    assert [entry.sha256 for entry in again.manifest.files] == [
        entry.sha256 for entry in artifact.manifest.files
    ]
    assert not list(tmp_path.glob("cloze-*"))


def test_a_bucket_made_twice_gives_the_same_bytes(artifact, tokens, tmp_path, monkeypatch):
    machine = everything_twice(monkeypatch)
    table = examples_table(tokens, tmp_path, config=CONFIG, machine=machine)
    assert make_examples(table, []).digest == artifact.digest


def test_a_length_is_the_same_alone_and_with_fewer_copies(artifact, tokens, tmp_path):
    table = examples_table(tokens, tmp_path, config={"max_seq_lengths": [128], "copies": 2})
    less = make_examples(table, [])
    for mine, theirs in zip(
        read(less, "train-128-00001.arrow"), read(artifact, "train-128-00001.arrow"), strict=False
    ):
        assert mine.equals(theirs)


def test_another_seed_gives_other_examples(artifact, tokens, tmp_path):
    other = make_examples(examples_table(tokens, tmp_path, config=CONFIG, seed=2), [])
    assert other.digest != artifact.digest


def test_finished_files_are_kept_and_only_the_others_made(artifact, tokens, tmp_path, capfd):
    table = examples_table(tokens, tmp_path, config=CONFIG)
    first = make_examples(table, [])
    os.unlink(tmp_path / "manifest.json")
    lost = first.manifest.file("train-128-00001.arrow")
    os.unlink(tmp_path / lost.stored_name)
    kept = tmp_path / first.manifest.file("train-64-00001.arrow").stored_name
    made_at = kept.stat().st_mtime_ns
    capfd.readouterr()
    again = make_examples(table, [])
    assert "7 of 8 files are finished already" in capfd.readouterr().err
    assert again.digest == artifact.digest
    assert kept.stat().st_mtime_ns == made_at


def test_what_a_killed_attempt_left_is_swept(tokens, tmp_path):
    left = left_by_a_killed_process(tmp_path)
    elsewhere = left_by_a_killed_process(tmp_path, host="another-host")
    make_examples(examples_table(tokens, tmp_path, config=CONFIG), [])
    assert not left.exists()
    assert elsewhere.exists()


def test_a_damaged_tokens_file_is_named_and_nothing_is_committed(tokenizer, tmp_path):
    table = tokens_table(random_documents(5, count=20), vocabulary_size=tokenizer.size)
    tokens = tokens_artifact(tmp_path / "tokens", {("train", 0): table}, tokenizer=tokenizer)
    path = Path(tokens.path("train-00000.arrow"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"train-00000.*sha256"):
        make_examples(examples_table(tokens, tmp_path / "out", config=CONFIG), [])
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_full_disk_is_named_and_what_is_finished_stays(tokens, artifact, tmp_path):
    table = examples_table(tokens, tmp_path / "out", config=CONFIG)
    largest = max(entry.size for entry in artifact.manifest.files)
    process = stage_process(table, tmp_path, limit=largest - 1)  # enough for all other files
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert re.search(r"error: .*: no room to write \(File too large; [\d,]+ MB free\)", errors)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert make_examples(table, []).digest == artifact.digest
    assert not list((tmp_path / "out").glob("cloze-*"))


def test_replaced_tokens_are_refused(tokens, tmp_path):
    table = examples_table(tokens, tmp_path, config=CONFIG)
    inputs = {"tokens": table.inputs["tokens"].model_copy(update={"digest": "0" * 64})}
    with pytest.raises(IntegrityError, match="the artifact was replaced"):
        make_examples(table.model_copy(update={"inputs": inputs}), [])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_seq_lengths": [4]}, "max_seq_lengths"),
        ({"max_seq_lengths": [128, 128]}, "twice"),
        ({"copies": 0}, "copies"),
        ({"masking": {"mask_share": 0.9, "random_share": 0.2}}, "must not exceed 1"),
        ({"pack_documents": True}, 'second_segment = "next_sentence".*set second_segment = "none"'),
    ],
)
def test_impossible_settings_are_refused(tokens, tmp_path, config, message):
    with pytest.raises(UsageError, match=message):
        make_examples(examples_table(tokens, tmp_path, config=config), [])


@pytest.mark.parametrize("second", ["sentence_order", "none"])
@pytest.mark.parametrize("unit", ["whole_word", "span"])
def test_options_make_valid_files(tokens, tmp_path, second, unit):
    config = {**CONFIG, "second_segment": second, "masking": {"unit": unit}}
    other = make_examples(examples_table(tokens, tmp_path, config=config), [])
    labels = set()
    for batch in read(other, "train-64-00000.arrow"):
        batch.validate(full=True)
        labels |= set(batch.column("next_sentence_label").to_pylist())
    assert labels == ({-1} if second == "none" else {-1, 0, 1})


def test_the_largest_vocabularies_get_wider_ids(tmp_path):
    wide = small_tokenizer(70_000)
    documents = [[[69_999, 5, 6], [7, 8]], [[9, 10]], [[65_536] * 20, [11] * 20]]
    table = tokens_table(documents, vocabulary_size=wide.size)
    tokens = tokens_artifact(tmp_path / "tokens", {("train", 0): table}, tokenizer=wide)
    wide_artifact = make_examples(examples_table(tokens, tmp_path / "out", config=CONFIG), [])
    batch = read(wide_artifact, "train-64-00000.arrow")[0]
    assert batch.schema.field("input_ids").type.value_type == pa.uint32()
    assert max(batch.column("masked_lm_ids").flatten().to_pylist()) <= 69_999


def stage_process(table, directory, limit=None):
    """The stage as a separate program, with a limit on file size."""
    path = directory / "table.json"
    write_stage_table(table, path)
    limited = ["prlimit", f"--fsize={limit}"] if limit else []
    command = [
        *limited,
        sys.executable,
        "-P",
        "-m",
        "cloze.pipeline.examples",
        "--config",
        str(path),
    ]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def many_buckets(tmp_path_factory, tokenizer):
    documents = random_documents(9, count=120)
    table = tokens_table(documents, vocabulary_size=tokenizer.size)
    tables = {("train", bucket): table for bucket in range(16)}
    return tokens_artifact(tmp_path_factory.mktemp("many"), tables, tokenizer=tokenizer)


def wait_for_files(output, process, count):
    def there():
        assert process.poll() is None, process.communicate()
        return len(list(output.glob("finished/*"))) >= count

    wait_for(there, what=f"{count} finished files")


GOLDEN = {1: "a5d8f95ee6c671f2bd4e1231c7be1d06ce20bdeae7bed369f745400ad3b63e49"}
"""The digest of a small artifact by format version; other bytes require a new version."""

GOLDEN_PACKED = {1: "f5320158ce5e071de4c470f75dde25989a9417ed928e4dee7a6887f51398e2ee"}
"""The same with packed documents."""


def test_the_bytes_are_those_of_the_format_version(artifact, packed):
    version = artifact.manifest.format_version
    assert version in GOLDEN, "a new format version wants its digest here"
    assert artifact.digest == GOLDEN[version]
    assert packed.digest == GOLDEN_PACKED[version]


SINGLE = {"max_seq_lengths": [128], "copies": 2, "second_segment": "none"}


@pytest.fixture(scope="module")
def packed(tokens, tmp_path_factory):
    output = tmp_path_factory.mktemp("packed")
    config = {**SINGLE, "pack_documents": True}
    return make_examples(examples_table(tokens, output, config=config), [])


def documents_of(row):
    """The documents of an example: ids, masked positions and original ids."""
    masked = list(zip(row["masked_lm_positions"], row["masked_lm_ids"], strict=True))
    first, found = 0, []
    for length in row.get("document_lengths", [len(row["input_ids"])]):
        end = first + length
        inside = tuple((place - first, word) for place, word in masked if first <= place < end)
        found.append((tuple(row["input_ids"][first:end]), inside))
        first = end
    assert first == len(row["input_ids"]) == row["segment_a_length"]
    return found


def test_packed_examples_hold_the_masked_documents_of_examples_of_one(packed, tokens, tmp_path):
    single = make_examples(examples_table(tokens, tmp_path, config=SINGLE), [])
    for name in arrow_names(single):
        for alone, together in zip(read(single, name), read(packed, name), strict=True):
            together.validate(full=True)
            rows = together.to_pylist()
            documents = sorted(document for row in rows for document in documents_of(row))
            assert documents == sorted(d for row in alone.to_pylist() for d in documents_of(row))
            lengths = sorted(len(row["input_ids"]) for row in rows)
            assert lengths[-1] <= 128
            assert len(rows) < 2 or sum(lengths[:2]) > 128  # no two would fit into one
    counts = packed.manifest.statistics["splits"]["train"]["128"]
    assert counts["rows"] == counts["not_asked"] == sum(counts["lengths_single"])
    assert (
        counts["mean_length"] > single.manifest.statistics["splits"]["train"]["128"]["mean_length"]
    )


def test_packed_examples_are_in_random_order(packed):
    rows = read(packed, "train-128-00000.arrow")[0].to_pylist()
    documents = np.array([len(row["document_lengths"]) for row in rows])
    halves = documents[: len(rows) // 2].mean(), documents[len(rows) // 2 :].mean()
    assert max(halves) < 1.5 * min(halves)


MANY = {"max_seq_lengths": [128], "copies": 20}


@pytest.fixture(scope="module")
def golden(many_buckets, tmp_path_factory):
    output = tmp_path_factory.mktemp("golden")
    return make_examples(examples_table(many_buckets, output, config=MANY), [])


@pytest.mark.parametrize("victim", ["launcher", "worker"])
def test_killed_and_started_again_it_ends_with_the_same_bytes(
    many_buckets, golden, tmp_path, victim
):
    machine = {"worker_mode": "processes", "workers": 2}
    table = examples_table(many_buckets, tmp_path / "out", config=MANY, machine=machine)
    process = stage_process(table, tmp_path)
    wait_for_files(tmp_path / "out", process, 2)
    family = psutil.Process(process.pid).children(recursive=True)
    if victim == "launcher":
        process.kill()
    else:
        workers = [p for p in family if p.num_threads() > 3 and p.parent().pid != process.pid]
        os.kill(workers[0].pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE)
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    if victim == "worker":
        assert process.returncode == 137
        assert "was ended by SIGKILL" in errors
    assert not (tmp_path / "out" / "manifest.json").exists()
    again = stage_process(table, tmp_path)
    output, errors = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, errors
    assert "files are finished already" in errors
    assert output.strip() == golden.digest
    assert not list((tmp_path / "out").glob("cloze-*"))
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["stage"] == "examples"


@given(st.lists(st.integers(3, LONGEST), max_size=80))
def test_every_stretch_is_in_one_example_and_no_two_examples_could_be_one(lengths):
    lengths_N = np.array(lengths, dtype=np.int64)
    order_N, counts_E = fill_examples(lengths_N, LONGEST)
    assert sorted(order_N.tolist()) == list(range(len(lengths)))
    assert counts_E.sum() == len(lengths)
    if len(lengths):
        sums_E = np.sort(np.add.reduceat(lengths_N[order_N], np.cumsum(counts_E) - counts_E))
        assert counts_E.min() > 0
        assert sums_E[-1] <= LONGEST
        assert len(sums_E) == 1 or sums_E[:2].sum() > LONGEST


def test_a_stretch_goes_where_the_least_room_is_that_is_enough():
    order_N, counts_E = fill_examples(np.array([20, 30, 10, 17]), LONGEST)
    assert counts_E.tolist() == [2, 2]
    assert order_N.tolist() == [0, 3, 1, 2]


@pytest.mark.parametrize("continuation", ["##b", "b"])
def test_masking_whole_words_without_marks_of_words_is_warned_of(tmp_path, capfd, continuation):
    names = (*SPECIAL_TOKENS, "a", continuation, "c", "d")
    table = tokens_table([[[5, 6, 7, 8, 5, 7]] * 9], vocabulary_size=len(names))
    tokenizer = WordPieceTokenizer(names, lowercase=True)
    tokens = tokens_artifact(tmp_path / "tokens", {("train", 0): table}, tokenizer=tokenizer)
    config = {"max_seq_lengths": [64], "masking": {"unit": "whole_word"}}
    make_examples(examples_table(tokens, tmp_path / "out", config=config), [])
    warned = "does not mark where words begin, so every token is masked" in capfd.readouterr().err
    assert warned == (continuation == "b")
