"""Several ranks: the same losses however a batch is split, the same decisions on all of them."""

import json
import os
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cloze.artifacts.store import Artifact, open_artifact
from tests.model.training.training_fixtures import examples_artifact, losses, run_ranks, stage_table

DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return examples_artifact(tmp_path_factory.mktemp("examples"))


@pytest.fixture(scope="module")
def whole_batches(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Copies whose size is a multiple of eight.

    In `examples`, a copy's last batch is one example with two masked tokens, and the loss of a
    token carries 0.001 nats of bfloat16 rounding error.
    """
    directory = tmp_path_factory.mktemp("whole")
    return examples_artifact(directory, rows=((40, 32), (24, 24)))


def _table(directory: Path, name: str, examples: Artifact, **changes: Any) -> dict[str, Any]:
    (directory / name).mkdir(exist_ok=True)
    return {"table": str(stage_table(directory / name, examples, **changes))}


def _sliced(
    directory: Path, examples: Artifact, grid: list[tuple[str, int, int]], rate: float = 2e-3
) -> list[Any]:
    return [
        _table(
            directory, f"{precision}-{zero}-{budget}", examples,
            encoder=DRY, precision=precision, optimizer={"learning_rate": rate},
            machine={"zero_stage": zero, "token_budget": budget, "checkpoint_every": 1000},
        )
        for precision, zero, budget in grid
    ]  # fmt: skip


def _widest(directory: Path, reference: list[float]) -> float:
    curves = [losses(path) for path in directory.iterdir()]
    return max(abs(a - b) for curve in curves for a, b in zip(reference, curve, strict=True))


def _reference(
    directory: Path, examples: Artifact, precision: str, rate: float = 2e-3
) -> list[float]:
    directory.mkdir()
    run_ranks(1, _sliced(directory, examples, [(precision, 0, 4096)], rate))
    return losses(next(directory.iterdir()))


def test_two_ranks_equal_one(examples: Artifact, tmp_path: Path) -> None:
    reference = _reference(tmp_path / "one", examples, "fp32")
    (grid := tmp_path / "two").mkdir()
    run_ranks(2, _sliced(grid, examples, [("fp32", 0, 4096), ("fp32", 2, 64)]))
    assert _widest(grid, reference) < 1e-5


@pytest.mark.slow
def test_two_ranks_agree_on_every_decision(examples: Artifact, tmp_path: Path) -> None:
    (asked := tmp_path / "asked").mkdir()
    nan = {"site": "after_forward", "step": 4, "rank": 0, "do": "nan"}
    alone = _table(tmp_path, "nan alone", examples, steps=8, encoder=DRY)
    run_ranks(1, [{**alone, "strike": nan}])
    nan["rank"] = 1
    stop = {"site": "after_backward", "step": 11, "rank": 1, "do": "terminate"}
    stopped = _table(asked, "stopped", examples)
    wishes = [
        {**_table(asked, "nan", examples, steps=8, encoder=DRY), "strike": nan},
        _table(asked, "golden", examples),
        {**stopped, "strike": stop},
        stopped,
    ]
    ranks = run_ranks(2, wishes)
    assert [end["end"] for end in ranks[0].ends] == ["done"] * 2 + ["Terminated", "done"]
    assert [end["end"] for end in ranks[1].ends] == ["done"] * 2 + ["Terminated", "done"]
    skipped, expected = losses(asked / "nan"), losses(tmp_path / "nan alone")
    assert len(skipped) == len(expected) == 7, "one step was skipped, on both ranks"
    assert max(abs(a - b) for a, b in zip(skipped, expected, strict=True)) < 1e-5
    assert "resuming from step 12" in ranks[0].stderr
    golden, after = (open_artifact(str(asked / n / "out")) for n in ("golden", "stopped"))
    assert golden.digest == after.digest, "bit for bit, with dropout"


@pytest.mark.slow
def test_sharded_ranks_skip_a_gradient_that_is_not_finite_in_fp32_as_well(
    examples: Artifact, tmp_path: Path
) -> None:
    nan = {"site": "after_forward", "step": 4, "do": "nan"}
    alone = _table(tmp_path, "alone", examples, steps=8, encoder=DRY)
    run_ranks(1, [{**alone, "strike": {**nan, "rank": 0}}])
    wishes = []
    for stage in (1, 2, 3):
        machine = {"zero_stage": stage}
        table = _table(tmp_path, str(stage), examples, steps=8, encoder=DRY, machine=machine)
        wishes.append({**table, "strike": {**nan, "rank": 1}})
    ranks = run_ranks(2, wishes)
    assert [[end["end"] for end in rank.ends] for rank in ranks] == [["done"] * 3] * 2
    expected = losses(tmp_path / "alone")
    assert len(expected) == 7, "one of eight steps was skipped"
    for stage in (1, 2, 3):
        # Had the step been applied, all later losses would be NaN.
        assert losses(tmp_path / str(stage)) == pytest.approx(expected, abs=1e-5), stage


def test_ranks_with_different_examples_are_refused_and_named(
    examples: Artifact, tmp_path: Path
) -> None:
    others = examples_artifact(tmp_path / "others", seed=1)
    for rank, given in enumerate((examples, others)):
        _table(tmp_path, f"rank {rank}", given)
    wish = {"table": str(tmp_path / "rank {rank}" / "table.json")}
    for ours, ended in enumerate(run_ranks(2, [wish])):
        ((end, message),) = (tuple(said.values()) for said in ended.ends)
        assert end == "IntegrityError"
        assert re.search(
            rf"rank {1 - ours} has stage table \w+, rank {ours} has \w+; give", message
        )
        assert not list(tmp_path.glob("*/out/*"))


def test_the_lock_of_a_killed_build_is_not_waited_for_on_a_processor(
    examples: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    lock = tmp_path / "extensions" / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    (ended,) = run_ranks(1, [_table(tmp_path, "run", examples, steps=2)])
    assert [end["end"] for end in ended.ends] == ["done"], ended.stderr


ALL_CUTS = "CLOZE_ALL_CUTS" in os.environ
"""`make cuts` covers every pair of rank count and precision, and of ZeRO stage and token budget."""

RECIPES = [("fp32", 2e-3, 1e-5), ("bf16", 1e-4, 1e-3), ("bf16", 2e-3, 5e-3)]
"""Precision, learning rate, and tolerance of the losses."""

FEW_RUNS = [
    (1, *RECIPES[0]),
    (3, *RECIPES[0]),
    (2, *RECIPES[2]),
    pytest.param(2, *RECIPES[0], marks=pytest.mark.long),
    pytest.param(2, *RECIPES[1], marks=pytest.mark.long),
]
FEW_PAIRS = [(0, 40), (1, 4096), (1, 40), (2, 100), (3, 4096), (3, 40)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "precision", "rate", "bound"),
    [(ranks, *recipe) for ranks in (1, 2, 3) for recipe in RECIPES] if ALL_CUTS else FEW_RUNS,
)
def test_no_cut_changes_the_losses(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    ranks: int,
    precision: str,
    rate: float,
    bound: float,
) -> None:
    examples = request.getfixturevalue("examples" if precision == "fp32" else "whole_batches")
    reference = _reference(tmp_path / "one", examples, precision, rate)
    grid = tmp_path / "grid"
    grid.mkdir()
    pairs = list(product((0, 1, 2, 3), (4096, 100, 40))) if ALL_CUTS else FEW_PAIRS
    cuts = [(precision, zero, budget) for zero, budget in pairs]
    found = run_ranks(ranks, _sliced(grid, examples, cuts, rate))
    assert all([end["end"] for end in rank.ends] == ["done"] * len(cuts) for rank in found)
    assert _widest(grid, reference) < bound


@pytest.mark.slow
def test_what_measures_whole_tensors_learns_the_same_where_zero_slices_them(
    examples: Artifact, tmp_path: Path
) -> None:
    def wish(name: str, precision: str, zero: int) -> dict[str, Any]:
        folder = tmp_path / f"{name} {precision}"
        folder.mkdir(exist_ok=True)
        return _table(
            folder, f"zero {zero}", examples, encoder=DRY, steps=12, precision=precision,
            optimizer={"name": name, "bias_correction": name != "lamb"},
            machine={"zero_stage": zero, "checkpoint_every": 1000},
        )  # fmt: skip

    lamb = [wish("lamb", "fp32", zero) for zero in (0, 1, 3, 3)]
    lamb[2]["strike"] = {"site": "after_step", "step": 6, "rank": 0, "do": "terminate"}
    stable = [wish("stable_adamw", "fp32", zero) for zero in (0, 2)]
    found = run_ranks(2, [*lamb, *stable, wish("lamb", "bf16", 0), wish("lamb", "bf16", 1)])
    expected = ["done", "done", "Terminated", *["done"] * 5]
    assert all([end["end"] for end in rank.ends] == expected for rank in found), found[0].stderr
    for folder in tmp_path.iterdir():
        whole = losses(folder / "zero 0")
        assert whole[0] - whole[-1] > 0.01
        assert _widest(folder, whole) < (1e-5 if "fp32" in folder.name else 5e-3)


@pytest.mark.slow
def test_ranks_come_and_go_and_the_order_of_the_examples_stays(
    examples: Artifact, tmp_path: Path
) -> None:
    reference = _reference(tmp_path / "one", examples, "fp32")
    moving = tmp_path / "moving"
    moving.mkdir()
    for ranks, step, zero in ((2, 6, 1), (1, 11, 0), (3, 17, 2), (2, 99, 3)):
        struck = {"site": "after_step", "step": step, "rank": 0, "do": "terminate"}
        machine = {"zero_stage": zero, "checkpoint_every": 1000}
        wish = _table(moving, "run", examples, encoder=DRY, machine=machine)
        run_ranks(ranks, [{**wish, "strike": struck}])
    assert _widest(moving, reference) < 1e-5


@pytest.mark.slow
def test_two_ranks_read_a_mixture_as_one_does(tmp_path: Path) -> None:
    sources = {"wiki": 64, "guides": 16}
    examples = examples_artifact(tmp_path / "mixed", sources=sources, heldout=16)
    phases = [
        {"max_seq_length": 32, "share": 0.5, "mixture": {"guides": 0.2}},
        {"max_seq_length": 32, "share": 0.5, "mixture": {"guides": 0.7}},
    ]
    for ranks in (1, 2):
        run_ranks(ranks, [_table(tmp_path, str(ranks), examples, encoder=DRY, phases=phases)])

    def read(ranks: str) -> list[dict[str, float]]:
        curve = open_artifact(str(tmp_path / ranks / "out")).read_bytes("curve.jsonl")
        points = map(json.loads, curve.splitlines())
        return [point["source_tokens"] for point in points if "source_tokens" in point]

    assert read("1") == read("2")
    assert len(read("1")) == 20
    assert losses(tmp_path / "1") == pytest.approx(losses(tmp_path / "2"), abs=1e-4)
