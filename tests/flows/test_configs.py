from pathlib import Path

import pytest

from cloze.artifacts.config import override, parse, read_toml
from cloze.artifacts.errors import UsageError
from cloze.flows.config import RunConfig
from cloze.model import hardware
from cloze.options import Target
from cloze.pipeline.config.settings import SourceConfig
from tests.conftest import PROJECT

CONFIGS = sorted((PROJECT / "configs").glob("*.toml"))


def read(path: Path) -> RunConfig:
    return parse(RunConfig, read_toml(path), source=path)


@pytest.fixture
def avx2(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without bf16 products."""
    monkeypatch.setattr(hardware, "has_gpu", lambda: False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")


@pytest.mark.usefixtures("avx2")
def test_the_demo_is_narrower_and_longer_on_a_processor_without_bf16() -> None:
    demo = read(PROJECT / "configs" / "demo.toml")
    assert (demo.encoder.hidden_size, demo.encoder.num_hidden_layers) == (128, 2)
    assert demo.pretrain.steps == 8000
    assert demo.pretrain.optimizer.name == "muon", "other settings of the table are kept"


def test_the_demo_has_its_full_width_where_there_is_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "has_gpu", lambda: True)
    demo = read(PROJECT / "configs" / "demo.toml")
    assert (demo.encoder.hidden_size, demo.pretrain.steps) == (256, 7000)


@pytest.mark.usefixtures("avx2")
def test_a_setting_on_the_command_line_beats_that_of_the_processor() -> None:
    run, _ = Target(set=["pretrain.steps=77"]).read(PROJECT / "configs" / "demo.toml")
    assert (run.pretrain.steps, run.encoder.hidden_size) == (77, 128)


def test_a_processor_of_an_unknown_kind_is_refused() -> None:
    table = {"name": "x", "processors": {"int4": {"seed": 1}}}
    with pytest.raises(UsageError, match="has int4, expected tables named bf16 or fp32"):
        parse(RunConfig, table, source="run.toml")


def of_training(config: RunConfig) -> set[str]:
    return {name for source in sources(config) if not source.heldout for name in source.packages}


def sources(config: RunConfig) -> tuple[SourceConfig, ...]:
    return config.corpus.sources if config.corpus else ()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_is_valid_and_named_like_its_file(path: Path) -> None:
    assert read(path).name == path.stem


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_lengths_that_are_trained_on_are_made_and_fit_the_encoder(path: Path) -> None:
    config = read(path)
    made = set(config.examples.max_seq_lengths)
    assert {phase.max_seq_length for phase in config.pretrain.phases} == made
    assert max(made) <= config.encoder.max_position_embeddings
    for task in config.finetune.tasks:
        assert task.max_seq_length <= config.encoder.max_position_embeddings


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_packages_that_are_tested_on_are_not_trained_on(path: Path) -> None:
    config = read(path)
    heldout = {name for source in sources(config) if source.heldout for name in source.packages}
    assert not heldout & of_training(config)
    if config.labels:
        assert set(config.labels.test_packages) <= heldout
        assert not set(config.labels.packages) & heldout


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_masked_sentences_have_exactly_one_mask(path: Path) -> None:
    for sentence in read(path).evaluate.masked_sentences:
        assert sentence.count("[MASK]") == 1


def test_the_paper_is_what_remains_when_the_corpus_is_taken_away() -> None:
    config = read(PROJECT / "configs" / "wikipedia_books.toml")
    defaults = RunConfig(name="defaults", corpus=config.corpus)
    assert config.pretrain == defaults.pretrain
    assert config.encoder == defaults.encoder
    assert config.vocabulary == defaults.vocabulary
    assert config.examples == defaults.examples


def test_a_folder_of_text_is_given_by_one_setting() -> None:
    path = PROJECT / "configs" / "text_folder.toml"
    table = override(read_toml(path), ["corpus.sources.0.path='/texts'"])
    assert parse(RunConfig, table, source=path).corpus.sources[0].path == "/texts"


def test_every_package_of_the_default_corpus_is_pinned() -> None:
    extras = read_toml(PROJECT / "pyproject.toml")["project"]["optional-dependencies"]
    lines = [line for extra in ("pipeline", "model", "flows", "demo") for line in extras[extra]]
    pinned = {line.partition("==")[0] for line in lines if "==" in line}
    config = read(PROJECT / "configs" / "demo.toml")
    packages = {name for source in config.corpus.sources for name in source.packages}
    # torch's build depends on the machine; the constraints file pins its version
    assert packages - pinned == {"torch"}
    demo = {line.partition("==")[0] for line in extras["demo"]}
    assert demo <= packages, "an extra that is not read is downloaded for nothing"
