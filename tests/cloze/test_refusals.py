"""Invalid values, contradictions and foreign files are rejected before anything runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cloze.conftest import CONFIG
from tests.cloze.test_command import error_line
from tests.cloze.tiny_model import write_model

Cloze = Callable[..., Any]

HUGE = "1" + "0" * 26
PHASE = "[{max_seq_length=128,share=nan}]"
TASK = 'name="t",kind="classification"'

VALUES = {
    "pretrain.optimizer.learning_rate=inf": "a finite number",
    "pretrain.optimizer.max_grad_norm=inf": "a finite number",
    "encoder.initializer_range=1e300": "less than or equal to 100",
    f"pretrain.phases={PHASE}": "pretrain.phases.0.share: Input should be a finite number",
    "seed=-1": "seed: Input should be greater than or equal to 0",
    f"seed={HUGE}": "seed: Input should be less than",
    f"pretrain.steps={HUGE}": "pretrain.steps: Input should be less than or equal to",
    f"cleaning.min_words={HUGE}": "cleaning.min_words: integers are limited to 64 bits",
    "pretrain.steps=" + "9" * 5000: "pretrain.steps: integers are limited to 64 bits",
    "encoder.hidden_size=1000000000": "encoder.hidden_size: Input should be less than or equal",
    "vocabulary.size=1000000000": "vocabulary.size: Input should be less than or equal",
    "encoder={preset='tiny',num_attention_heads=-1}": "greater than or equal to 0",
    "finetune.seeds=[]": "finetune.seeds: Tuple should have at least 1 item",
    "finetune.seeds=[1,1]": "seed 1 is listed twice",
    "name=" + "a" * 300: "name: String should have at most 100 characters",
    "name=Artifacts": "Artifacts is a reserved folder of the workspace",
    "evaluate.masked_sentences=['no gap']": "'no gap' needs exactly one [MASK]",
    "corpus.sources.².path=texts": "no index ² in a list of 1; count from 0",
    'corpus.sources.0.path="a\\u0000b"': "contains a NUL character",
    "corpus.sources.0.path=foo://x": "foo://x: no file system for this URL (Protocol not known",
    "corpus.sources.0.path=http://": "http://: cannot be searched for files",
    "corpus.sources.0.path=ftp://me:secret@host/x": "corpus.sources.0.path: a URL with a password",
    "corpus.sources.0.path=https://host/x?X-Amz-Signature=9": "a URL with a password or token",
}
CONTRADICTIONS = {
    "examples.max_seq_lengths=[128]": "pretrain.phases uses length 512, but examples.max_seq_len",
    "encoder.max_position_embeddings=128": "uses 512 tokens, but the encoder has 128 positions",
    f"finetune.tasks=[{{{TASK}}}]": "task t has no training file, and there is no [labels] to make",
    f"finetune.tasks=[{{{TASK}}},{{name='T',kind='tagging'}}]": "two tasks are named T",
    "vocabulary.path=/etc/passwd": "vocabulary.path = /etc/passwd: vocabulary of",
    "vocabulary.path=texts": "Is a directory: ",
    "encoder={family='modern',preset='mini'}": 'family = "modern" has no preset mini; its presets',
    "encoder={family='modern',preset='17M'}": 'family = "modern" has no segments and no next-sen',
    "encoder={preset='tiny',gated=false}": "encoder: gated: not of BERT's architecture; leave out",
    "pretrain.first_batch_size=4": "first_batch_size and batch_growth_steps go together; set both",
    "pretrain={first_batch_size=300,batch_growth_steps=9}": "first_batch_size 300 is larger than b",
    "pretrain={first_batch_size=3,steps=9,batch_growth_steps=9}": "the first phase has 8 steps",
    "pretrain.optimizer.decay_share=0": "pretrain.optimizer.decay_share: Input should be greater",
    "encoder={preset='tiny',local_attention=64}": "encoder: local_attention: not of BERT's",
    "pretrain.optimizer.decay_share=0.5": 'decay_share = 0.5 with schedule = "linear"',
    "finetune.optimizer.learning_rate=1e-3": "learning_rate = 0.001 has no effect here",
    "finetune.optimizer={warmup_steps=7}": "warmup_steps = 7 has no effect here",
    f"finetune.tasks=[{{{TASK},threshold=0.9}}]": "threshold applies to tasks of kind multi_label",
    f"finetune.tasks=[{{{TASK},folder='glue'}}]": "folder applies with glue = NAME; leave it out",
    f"finetune.tasks=[{{{TASK},dev='d.csv',dev_share=0.5}}]": "dev_share applies without dev and",
    f"finetune.tasks=[{{{TASK},test_columns={{label='x'}}}}]": "test_columns applies with test",
    "encoder={family='modern',preset='17M',type_vocab_size=3}": "type_vocab_size = 3 requires fam",
}


@pytest.mark.parametrize("assignment", [*VALUES, *CONTRADICTIONS], ids=lambda text: text[:40])
def test_impossible_and_contradictory_values_are_rejected_before_the_first_stage(
    cloze: Cloze, folder: Path, assignment: str
) -> None:
    done = cloze("run", "try.toml", "--without-prefect", "--set", assignment)
    message = error_line(done.stderr)
    assert (VALUES | CONTRADICTIONS)[assignment] in message
    assert "secret" not in message
    assert len(message) < 500
    assert done.returncode == 2
    assert not (folder / "runs" / "artifacts").exists()


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("muon", "zero_stage = 2", "muon with training.zero_stage = 2"),
        ("lamb", "zero_stage = 2\noffload_optimizer = true", "lamb with training.offload_opt"),
        ("offload", "offload_optimizer = true", "training.offload_optimizer with training.zero"),
        ("budget", "token_budget = 100", "token_budget = 100, but pretrain.phases has sequences"),
    ],
)
def test_a_machine_that_cannot_train_the_run_is_rejected_before_the_first_stage(
    cloze: Cloze, folder: Path, name: str, setting: str, message: str
) -> None:
    """By every command, in the same words."""
    (folder / "machine.toml").write_text(f"[training]\n{setting}\n")
    changed = f"pretrain.optimizer.name={name}" if name in ("muon", "lamb") else "seed=1"
    lines = {
        error_line(cloze(*verb, "try.toml", "--on", "machine.toml", "--set", changed).stderr)
        for verb in (["plan"], ["run", "--without-prefect"], ["pretrain"], ["report"])
    }
    (line,) = lines
    assert message in line
    assert not (folder / "runs" / "artifacts").exists()


@pytest.mark.parametrize("verb", ["plan", "run", "finetune"])
def test_a_missing_task_column_is_rejected_before_the_first_stage(
    cloze: Cloze, folder: Path, verb: str
) -> None:
    (folder / "train.tsv").write_text("sentence\tlabel\nfine\t1\nbad\t0\n")
    task = f"[{{{TASK},train='train.tsv',dev='train.tsv',columns={{text_a='sentense'}}}}]"
    done = cloze(verb, "try.toml", "--set", f"finetune.tasks={task}")
    assert "no column 'sentense' for text_a, only sentence, label; " in done.stderr
    assert done.returncode == 2
    assert not (folder / "runs" / "artifacts").exists()


FILES = {
    "nested lists": (b"a = " + b"[" * 100_000, "tables or lists nested too deeply"),
    "nested tables": (b"a = " + b"{b=" * 3000, "tables or lists nested too deeply"),
    "10 MB": (b"# a comment\n" * 900_000, "larger than 1,048,576 bytes"),
    "not UTF-8": (b"name = '\xff'", "not a TOML file"),
    "a number of 5,000 digits": (b"seed = " + b"9" * 5000, "not a TOML file"),
    "unknown keys by the thousand": (
        b"".join(b"key_%d = 1\n" % number for number in range(3000)),
        "and 2,991 more",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_an_invalid_configuration_is_rejected_at_once(
    cloze: Cloze, folder: Path, name: str
) -> None:
    content, message = FILES[name]
    (folder / "odd.toml").write_bytes(content)
    done = cloze("plan", "odd.toml")
    assert message in error_line(done.stderr)
    assert done.returncode == 2


def test_a_byte_order_mark_before_a_configuration_is_ignored(cloze: Cloze, folder: Path) -> None:
    (folder / "marked.toml").write_bytes(b"\xef\xbb\xbf" + CONFIG.encode())
    assert cloze("plan", "marked.toml").returncode == 0


def test_broken_and_circular_links_are_named_everywhere(cloze: Cloze, folder: Path) -> None:
    (folder / "texts" / "gone.txt").symlink_to("nowhere")
    (folder / "circle").symlink_to("circle")
    for path in ("texts", "texts/*.txt", "texts/gone.txt", "circle"):
        done = cloze("plan", "try.toml", "--set", f"corpus.sources.0.path={path}")
        assert "broken link" in error_line(done.stderr)
    assert "circle: Too many levels of" in error_line(cloze("plan", "circle").stderr)
    assert "circle: Too many" in error_line(cloze("runs", "--workspace", "circle").stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs", "--workspace", "foo://x"],
        ["run", "try.toml", "--workspace", "foo://x"],
        ["init", "foo://x"],
        ["inspect", "foo://x"],
        ["fill-mask", "foo://x", "a [MASK]"],
    ],
)
def test_a_url_with_an_unknown_scheme_is_rejected_everywhere(
    cloze: Cloze, arguments: list[str]
) -> None:
    done = cloze(*arguments)
    assert error_line(done.stderr).startswith("foo://x")
    assert "no file system for this URL (Protocol not known: foo)" in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("place", ["/proc/nothing", "try.toml"])
def test_an_export_to_an_unwritable_folder_is_a_one_line_error(
    cloze: Cloze, folder: Path, place: str
) -> None:
    write_model(folder / "model")
    done = cloze("export", "model", f"{place}/exported")
    assert place in error_line(done.stderr)
    assert done.returncode == 1


def change_config(folder: Path, **fields: object) -> None:
    """Replace `config.json`, without our own part."""
    config = json.loads((folder / "config.json").read_text()) | fields
    config.pop("cloze", None)
    (folder / "config.json").write_text(json.dumps(config))


def not_a_number(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.pooler.dense.bias"][3] = torch.nan
    save_file(tensors, folder / "model.safetensors")


def shards(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors").unlink()
    table = json.dumps({"weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(table)


def tokenizer(folder: Path, **changes: object) -> None:
    table: dict[str, Any] = {
        "model": {"type": "WordPiece", "vocab": {"[PAD]": 0}},
        "normalizer": {"type": "BertNormalizer", "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(table | changes))


NORMALIZER = {"type": "BertNormalizer", "lowercase": True, "strip_accents": "yes"}
WORD = {"content": ["a"], "id": 0}
MODELS: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights that are no numbers": (not_a_number, "dense.bias has NaN or infinite values"),
    "hidden_act a list": (lambda f: change_config(f, hidden_act=["gelu"]), "hidden_act ['gelu']"),
    "hidden_act unknown": (lambda f: change_config(f, hidden_act="relu"), "hidden_act 'relu'"),
    "hidden size of a billion": (lambda f: change_config(f, hidden_size=10**9), "hidden_size"),
    "zero heads": (lambda f: change_config(f, num_attention_heads=0), "all four sizes"),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), "expected a JSON object"),
    "config nested": (lambda f: (f / "config.json").write_text("[" * 10**5), "not JSON"),
    "weight_map a list": (lambda f: shards(f, ["a"]), "no weight_map"),
    "weight_map of numbers": (lambda f: shards(f, {"a": 1}), "'1' is not a shard's name"),
    "weight_map that leads out": (lambda f: shards(f, {"a": "../a.safetensors"}), "is not a shard"),
    "weight_map that promises": (lambda f: shards(f, {"a": "b.safetensors"}), "missing"),
    "no vocabulary": (lambda f: (f / "vocab.txt").write_text(""), "vocabulary of 0 tokens lacks"),
    "vocabulary not UTF-8": (lambda f: (f / "vocab.txt").write_bytes(b"\xff"), "not UTF-8"),
    "words a list": (lambda f: tokenizer(f, model={"vocab": ["a"]}), "not a BERT tokenizer.json"),
    "an id of words": (
        lambda f: tokenizer(f, model={"vocab": {"a": "0", "b": 1}}),
        "not a BERT tokenizer.json",
    ),
    "strip_accents of words": (
        lambda f: tokenizer(f, normalizer=NORMALIZER),
        "not a BERT tokenizer.json",
    ),
    "an added word that is none": (
        lambda f: tokenizer(f, added_tokens=[WORD]),
        "not a BERT tokenizer.json",
    ),
    "added words a number": (lambda f: tokenizer(f, added_tokens=5), "not a BERT tokenizer.json"),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_unsupported_model_is_rejected_with_the_reason(
    cloze: Cloze, folder: Path, name: str
) -> None:
    spoil, message = MODELS[name]
    write_model(folder / "model")
    spoil(folder / "model")
    done = cloze("import", "model")
    assert message in error_line(done.stderr)
    assert done.returncode in (1, 2)
    assert not (folder / "runs" / "artifacts").exists()


def test_inspect_verifies_files_that_it_does_not_show(cloze: Cloze, folder: Path) -> None:
    write_model(folder / "model")
    directory = Path(json.loads(cloze("import", "model", "--json").stdout)["directory"])
    (weights,) = directory.glob("model.*.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    done = cloze("inspect", str(directory))
    assert "the file was damaged or changed" in error_line(done.stderr)
    assert done.returncode == 1


UNREADABLE = {"cut": b'{"name": "b', "binary": b"\xff\xfe\0", "nested": b"[" * 10**5, "empty": b""}


def test_an_unreadable_record_hides_no_run_stops_none_and_prevents_deletion(
    cloze: Cloze, folder: Path
) -> None:
    cloze("vocabulary", "try.toml")
    broken = folder / "runs" / "broken" / "run.json"
    broken.parent.mkdir()
    for content in UNREADABLE.values():
        broken.write_bytes(content)
        listed = cloze("runs", "--json")
        assert [run["run"] for run in json.loads(listed.stdout)["runs"]] == ["try"]
        assert "broken/run.json: not a run's record" in listed.stderr
        assert cloze("gc").returncode == 0
        deleting = cloze("gc", "--delete")
        assert "broken/run.json: not a run's record" in error_line(deleting.stderr)
        assert "until then nothing is deleted" in deleting.stderr
        assert cloze("plan", "try.toml").returncode == 0
    again = cloze("vocabulary", "try.toml", "--set", "name=broken")
    assert "not a run's record" in again.stderr
    assert json.loads(broken.read_bytes())["stages"]["vocabulary"]["state"] == "reused"
    (folder / "runs" / "try" / "stages" / "odd.json").write_text("{")
    assert "odd.json: not JSON" in error_line(cloze("gc", "--delete").stderr)
