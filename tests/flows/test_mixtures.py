"""Mixtures in a configuration: what they mean, what depends on them, what cannot be."""

from typing import Any

import pytest

from cloze.artifacts.config import parse
from cloze.artifacts.errors import UsageError
from cloze.flows.config import RunConfig
from cloze.flows.forecast import WORD_PIECES_PER_BYTE, expected_yield, forecast_mixture
from cloze.flows.stages import chain, keyed_config

PHASES = [
    {"max_seq_length": 128, "share": 0.9},
    {"max_seq_length": 512, "share": 0.1, "mixture": {"guides": 0.8, "wiki": 0.2}},
]


def run(*sources: dict[str, Any], **pretrain: Any) -> RunConfig:
    named = [
        {"reader": "text", "path": f"{number}.txt", **one} for number, one in enumerate(sources)
    ]
    table = {"name": "mixed", "corpus": {"sources": named}, "pretrain": pretrain}
    return parse(RunConfig, table, source="mixed.toml")


def configs(given: RunConfig) -> dict[str, Any]:
    return {stage.name: keyed_config(stage) for stage in chain(given)}


def test_only_training_depends_on_shares_and_only_examples_on_names() -> None:
    before = configs(run({"name": "wiki", "share": 0.3}, {"name": "guides"}))
    shares = configs(run({"name": "wiki", "share": 0.5}, {"name": "guides"}, phases=PHASES))
    assert {stage for stage in before if before[stage] != shares[stage]} == {"pretrain"}
    names = configs(run({"name": "encyclopedia", "share": 0.3}, {"name": "guides"}))
    changed = {stage for stage in before if before[stage] != names[stage]}
    assert changed == {"examples", "pretrain"}
    assert before["pretrain"]["pretrain"]["mixture"] == {"wiki": 0.3}
    assert before["examples"]["names"] == ["wiki", "guides"]


def test_a_source_without_a_name_is_prepared_as_ever() -> None:
    found = configs(run({}, {"heldout": "test"}))
    assert found["examples"]["names"] == []
    assert not found["tokens"]["keep_sources"]


@pytest.mark.parametrize(
    ("sources", "pretrain", "message"),
    [
        ([{"share": 0.3}], {}, "share without a name; name the source as well"),
        (
            [{"name": "a", "heldout": "test", "share": 0.3}, {"name": "b"}],
            {},
            "share of a source that is held out",
        ),
        (
            [{"name": "a", "weight": 2}],
            {},
            "weight = 2 is for sources without a name, and a has one; use share",
        ),
        ([{"name": "a"}, {}], {}, "sources.1 has no name, but others have"),
        (
            [{"name": "a", "share": 0.2}, {"name": "a", "share": 0.3}],
            {},
            "2 sources named a have a share",
        ),
        (
            [{"name": "a", "share": 0.7}, {"name": "b", "share": 0.5}],
            {},
            r"sum to 1.2 \(a 0.7, b 0.5\), expected at most 1",
        ),
        (
            [{"name": "a", "share": 0.7}, {"name": "b", "share": 0.2}],
            {},
            "sum to 0.9, and no other source is left",
        ),
        ([{"name": "a"}], {"mixture": {"b": 0.5}}, "names the source b; the sources are a"),
        (
            [{"name": "a"}, {"heldout": "test"}],
            {"mixture": {"test": 0.5}},
            "names the source test; the sources are a",
        ),
        ([{"name": "a", "share": 1.0}], {"mixture": {"a": 1.0}}, "are the same; give one of them"),
        ([{}], {"temperature": 0.5}, "they have none; give every source a name"),
        (
            [{"name": "a"}, {"name": "guides"}],
            {"phases": PHASES},
            "names the source wiki; the sources are a, guides",
        ),
        (
            [{"name": "a"}],
            {"mixture": {"a": 1.5}},
            "pretrain.mixture.a: .* less than or equal to 1",
        ),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused(
    sources: list[dict[str, Any]], pretrain: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(*sources, **pretrain)


def test_the_sources_of_pairs_are_not_mixed() -> None:
    table = {
        "name": "pairs",
        "pairs": {"sources": [{"reader": "text", "path": "a", "name": "a"}]},
        "finetune": {"encoder": "x", "tasks": [{"name": "retrieval", "kind": "retrieval"}]},
    }
    with pytest.raises(UsageError, match="only \\[\\[corpus.sources\\]\\] are mixed"):
        parse(RunConfig, table, source="pairs.toml")


def test_a_forecast_counts_epochs_over_phases() -> None:
    given = run(
        {"name": "wiki", "share": 0.75}, {"name": "guides"},
        steps=1000, batch_size=10, phases=PHASES,
    )  # fmt: skip
    tokens = {"wiki": 1e6 * WORD_PIECES_PER_BYTE, "guides": 1e5}
    wiki, guides = forecast_mixture(given, tokens)
    short, long = (expected_yield(length).mean_length for length in (128, 512))
    assert wiki.shares == pytest.approx((0.75, 0.2))
    assert guides.shares == pytest.approx((0.25, 0.8))
    assert guides.read == pytest.approx(0.25 * 9000 * short + 0.8 * 1000 * long)
    assert guides.epochs == pytest.approx(guides.read / 1e5)


def test_sources_of_one_name_are_one() -> None:
    given = run({"name": "de"}, {"name": "en"}, {"name": "de"}, temperature=0.5)
    assert given.corpus is not None
    assert given.corpus.trained_names == ["de", "en"]
    assert configs(given)["examples"]["names"] == ["de", "en", "de"]
