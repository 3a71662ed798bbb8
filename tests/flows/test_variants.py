"""Seeds and sweeps: their runs, and the artifacts that these share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tomli_w
from pydantic import JsonValue

from cloze.artifacts.digests import digest_of
from cloze.artifacts.errors import UsageError
from cloze.command import exit_code
from cloze.flows.config import RunConfig
from cloze.flows.stages import chain, keyed_config
from cloze.flows.variants import (
    changed,
    filtered_otherwise,
    masked_otherwise,
    require_held_out_sources,
    variants,
)
from cloze.flows.workspace import read_record, run_artifact, workspace
from tests.pipeline.corpora import letters_tokenizer

RUN = RunConfig.model_validate(
    {"name": "base", "corpus": {"sources": [{"reader": "text", "path": "/texts"}]}}
)


def test_without_seeds_and_sweeps_the_run_is_itself() -> None:
    (only,) = variants(RUN, seeds=(), sweeps=())
    assert (only.title, only.runs) == ("", (RUN,))


def test_seeds_train_again_on_the_same_data() -> None:
    (variant,) = variants(RUN, seeds=(0, 1), sweeps=())
    assert [run.name for run in variant.runs] == ["base-seed-0", "base-seed-1"]
    first, second = ({s.name: keyed_config(s) for s in chain(run)} for run in variant.runs)
    same = [name for name in first if first[name] == second[name]]
    assert {"vocabulary", "tokens", "examples"} <= set(same)
    assert "pretrain" not in same


def test_every_combination_of_swept_values_is_a_variant_of_its_own() -> None:
    rates = "pretrain.optimizer.learning_rate=1e-3,2e-3"
    found = variants(RUN, seeds=(7,), sweeps=(rates, "encoder.preset=tiny,mini"))
    assert [variant.title for variant in found] == [
        f"learning_rate={rate}, preset={preset}"
        for rate in (0.001, 0.002)
        for preset in ("tiny", "mini")
    ]
    assert len({run.name for variant in found for run in variant.runs}) == 4
    assert found[3].runs[0].pretrain.optimizer.learning_rate == 2e-3
    assert found[3].runs[0].encoder.preset == "mini"


@pytest.mark.parametrize("sweep", ["pretrain.steps", "=1,2", "pretrain.steps="])
def test_a_sweep_without_place_or_values_is_refused(sweep: str) -> None:
    with pytest.raises(UsageError, match="expected KEY=VALUE,VALUE"):
        variants(RUN, seeds=(), sweeps=(sweep,))


@pytest.mark.parametrize(
    ("seeds", "sweeps"),
    [((0, 0), ()), ((), ("pretrain.steps=5,5",)), ((), ("report.title=a.b,a-b",))],
)
def test_nothing_is_counted_twice(seeds: tuple[int, ...], sweeps: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="two variants would be named base-"):
        variants(RUN, seeds=seeds, sweeps=sweeps)


def test_seeds_of_a_run_that_pretrains_nothing_are_refused() -> None:
    run = RunConfig.model_validate(
        {
            "name": "tasks",
            "finetune": {
                "encoder": "minilm",
                "tasks": [{"name": "t", "kind": "classification", "train": "t.csv"}],
            },
        }
    )
    with pytest.raises(UsageError, match=r"set finetune\.seeds instead"):
        variants(run, seeds=(0,), sweeps=())


class Printed(NamedTuple):
    """What a command has printed."""

    out: str
    err: str


Command = Callable[..., Printed]


@pytest.fixture
def command(
    run_table: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> Command:
    """`cloze run` of the run, with other values of some settings; what it has printed."""

    def again(*options: str, **settings: Any) -> Printed:
        file = tmp_path / "run.toml"
        file.write_text(tomli_w.dumps({**run_table, **settings}))
        runs = str(tmp_path / "runs")
        assert (
            exit_code(["run", str(file), "--workspace", runs, "--without-prefect", *options]) == 0
        )
        return Printed(*capfd.readouterr())

    return again


def test_the_command_runs_every_seed_and_shares_the_data(
    inline: Callable[..., None],
    command: Command,
    tmp_path: Path,
) -> None:
    (variant,) = json.loads(command("--seeds", "0", "1", "--json").out)["variants"]
    assert variant["variant"] == "try"
    assert variant["runs"] == ["try-seed-0", "try-seed-1"]
    first, second = (
        read_record(workspace(str(tmp_path / "runs")), name).stages for name in variant["runs"]
    )
    assert {first[stage].state for stage in first} == {"made"}
    reused = {stage for stage, found in second.items() if found.state == "reused"}
    assert reused == {"vocabulary", "tokens", "examples", "labels"}

    # the same command finds everything made, and writes its table for a paper
    lines = command("--seeds", "0", "1", "--format", "latex").out.splitlines()
    assert lines[:3] == [r"\begin{tabular}{lr}", r"\toprule", r" & try \\"]
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]


def test_variants_with_other_masks_are_judged_on_the_same_held_out_ones(
    inline: Callable[..., None],
    command: Command,
    tmp_path: Path,
) -> None:
    shares = "examples.masking.masked_lm_prob=0.1,0.2"
    said = command("--sweep", shares, "--json")
    few, many = (one["runs"][0] for one in json.loads(said.out)["variants"])
    assert f"held-out examples: those of {few} for all variants" in said.err

    space = workspace(str(tmp_path / "runs"))
    first, second = (
        run_artifact(space, name, stage="evaluate").manifest.inputs for name in (few, many)
    )
    assert second["examples"] != first["examples"]
    assert second["heldout"] == digest_of([first["examples"]])
    assert "heldout" not in first

    # asked for again, nothing is made; asked for by hand, it is what was asked for
    command("--sweep", shares, "--json")
    assert {found.state for found in read_record(space, many).stages.values()} == {"reused"}
    own = run_artifact(space, many, stage="examples").directory
    chosen = ("--set", f"evaluate.heldout_examples={own}")
    assert "for all variants" not in command("--sweep", shares, *chosen).err
    for name in (few, many):
        inputs = run_artifact(space, name, stage="evaluate").manifest.inputs
        assert inputs["heldout"] == digest_of([second["examples"]])


@pytest.mark.parametrize(
    ("place", "value", "is_shared"),
    [
        ("examples.masking.masked_lm_prob", 0.3, True),
        ("examples.copies", 3, True),
        (
            "examples.max_seq_lengths",
            [64, 128, 512],
            False,
        ),  # an encoder may have too few positions
        ("vocabulary.size", 2048, False),  # the same words are other tokens
        ("seed", 7, False),  # other documents are held out
        ("pretrain.steps", 7, False),  # nothing to share: they are the same
    ],
)
def test_held_out_masks_are_shared_where_they_are_of_the_same_tokens(
    place: str, value: JsonValue, is_shared: bool
) -> None:
    other = changed(RUN, "other", {place: value}, source="other")
    assert masked_otherwise(RUN, other) is is_shared


def test_variants_with_other_filters_are_judged_on_text_that_no_filter_has_chosen(
    inline: Callable[..., None],
    command: Command,
    tmp_path: Path,
) -> None:
    # the stand-in for the vocabulary makes none
    (tmp_path / "vocab.txt").write_text(letters_tokenizer().vocab_txt())
    filters = ("--sweep", "cleaning.min_words=2,3", "--seeds", "0", "1")
    vocabulary = {"path": str(tmp_path / "vocab.txt")}
    said = command(*filters, "--json", vocabulary=vocabulary)
    assert "try-unfiltered makes the vocabulary and the held-out examples" in said.err
    assert "for equal time set pretrain.minutes" in said.err

    space = workspace(str(tmp_path / "runs"))
    whole = run_artifact(space, "try-unfiltered", stage="examples")
    assert read_record(space, "try-unfiltered").config["cleaning"]["min_words"] == 0
    trained = set()
    for name in (run for one in json.loads(said.out)["variants"] for run in one["runs"]):
        made = run_artifact(space, name, stage="evaluate").manifest.inputs
        assert made["heldout"] == digest_of([whole.digest])
        trained.add(made["examples"])
    assert len(trained) == 2 and whole.digest not in trained


@pytest.mark.parametrize(
    ("place", "value", "is_filter"),
    [
        ("cleaning.presets", ["gopher"], True),
        ("dedup.near_duplicates", {}, True),
        ("corpus.sources.0.boilerplate", {}, True),
        ("corpus.sources.0.weight", 3, True),
        ("corpus.heldout_share", 0.2, False),
        ("vocabulary.size", 2048, False),
        ("seed", 7, False),
        ("pretrain.steps", 7, False),
        ("examples.copies", 3, False),
    ],
)
def test_filters_and_weights_make_variants_that_share_held_out_text(
    place: str, value: JsonValue, is_filter: bool
) -> None:
    other = changed(RUN, "other", {place: value}, source="other")
    assert filtered_otherwise(RUN, other) is is_filter


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("cleaning.remove_citations", True),
        ("cleaning.mask", ["mail"]),
        ("corpus.sources.0.boilerplate", {}),
        ("corpus.sources.0.cleaning", {"presets": ["c4"]}),
    ],
)
def test_a_filter_that_changes_text_needs_a_source_that_is_held_out_whole(
    place: str, value: JsonValue
) -> None:
    other = changed(RUN, "other", {place: value}, source="other")
    with pytest.raises(UsageError, match=r"variant other changes lines of corpus\.sources\.0"):
        require_held_out_sources([RUN, other])
    held_out = {"reader": "text", "path": "/held_out", "heldout": "good"}
    assert other.corpus
    sources = [source.model_dump(mode="json") for source in other.corpus.sources]
    places = {"corpus.heldout_share": 0.0, "corpus.sources": [*sources, held_out]}
    require_held_out_sources([changed(other, "other", places, source="other")])


def test_another_threshold_rescores_nothing_and_makes_other_tokens() -> None:
    quality = {"quality": {"labelled": "labelled.jsonl"}}
    every, best, better = (
        {
            stage.name: (keyed_config(stage), dict(stage.inputs))
            for stage in chain(changed(RUN, "scored", {**quality, **keep}, source="scored"))
        }
        for keep in ({}, {"cleaning.keep": "best 50%"}, {"cleaning.keep": ">= 0.6"})
    )
    assert every["scores"] == best["scores"] == better["scores"]
    assert "scores" not in every["tokens"][1]
    for stage in ("vocabulary", "tokens"):
        assert best[stage][1]["scores"] == "scores"
        assert best[stage][0] != better[stage][0]


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"cleaning.keep": "best 50%"}, "nothing scores documents; add"),
        ({"cleaning.keep": "best 150%"}, "expected a share above 0% and up to 100%"),
        ({"cleaning.scores": "/scores"}, r"no effect without cleaning\.keep"),
        (
            {"cleaning.scores": "/scores", "quality": {"labelled": "labelled.jsonl"}},
            "makes others; remove one",
        ),
    ],
)
def test_scores_and_what_keeps_documents_belong_together(
    places: dict[str, JsonValue], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        changed(RUN, "scored", places, source="scored")
