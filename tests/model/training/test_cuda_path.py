"""The GPU code path on a simulated device (tests/model/strict_cuda.py).

Every configuration trains, the host synchronises once per step, and nothing is copied from pageable
memory. If there is a GPU, tests of training results also run on the real one (`gpu`).
"""

import gc
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.utils.config import get_timers_config
from deepspeed.utils.timer import ThroughputTimer
from torch import Tensor
from torch.nn import functional

from cloze.artifacts.errors import UsageError
from cloze.artifacts.store import Artifact
from cloze.model.config import PretrainStage, TrainingMachine
from cloze.model.data.batch import PackedBatch, Shape
from cloze.model.data.micro_batches import Share, StepBatch, on_device, prefetch
from cloze.model.data.sources import heldout_sources, training_source
from cloze.model.encoder.losses import masked_lm_loss
from cloze.model.encoder.models import Encoder, PretrainingModel
from cloze.model.encoder.operations import grouped_attention, residual
from cloze.model.encoder.operations.dropout import DeviceNoise, Draws, Noise
from cloze.model.encoder.precision import FP8_CAPABILITY, computed_in
from cloze.model.training import cuda_graphs
from cloze.model.training.checkpoints import Checkpoints, HostCopies
from cloze.model.training.cuda_graphs import StepGraphs, require_graphs
from cloze.model.training.distributed import World
from cloze.model.training.engine import Replicated
from cloze.model.training.health import Alarms, Stop, Watchdog
from cloze.model.training.loop import Trainer
from cloze.model.training.optimizer import AdamW, Schedule
from cloze.model.training.pretrain import compiles, gpu_token_budget, has_compiler
from cloze.model.training.sharded import engine_configuration
from cloze.model.training.telemetry import Curve, Telemetry
from tests.model.strict_cuda import CUDA, CudaTensor, Refused, StrictCuda, strict_cuda
from tests.model.training.training_fixtures import ENCODER, TOKENIZER, examples_artifact

DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODERN = {
    "encoder": {"family": "modern", "hidden_act": "gelu", "local_attention": 8},
    "next_sentence_loss": False,
}
NARROW_HEADS = {"encoder": {"hidden_size": 40, "num_attention_heads": 4}}
"""CUDA's kernels need multiples of 8."""

FORMS: dict[str, dict[str, Any]] = {
    "bert": {},
    "modern": MODERN,
    "heads of 10 values": NARROW_HEADS,
}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return examples_artifact(tmp_path_factory.mktemp("examples"))


@pytest.fixture(scope="module")
def running_text(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return examples_artifact(tmp_path_factory.mktemp("running"), mask_share=0.0)


@pytest.fixture
def cuda() -> Iterator[StrictCuda]:
    with strict_cuda() as device:
        yield device


@pytest.fixture(
    params=[
        "strict",
        pytest.param(
            "real",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
            ],
        ),
    ]
)
def gpu(request: pytest.FixtureRequest) -> Iterator[StrictCuda | None]:
    """The simulated device; None for the real one, whose sums have no fixed order."""
    if request.param == "real":
        yield None
        return
    with strict_cuda() as device:
        yield device


def _stage(**changes: Any) -> PretrainStage:
    encoder = {**ENCODER, "hidden_act": "gelu_tanh", **changes.pop("encoder", {})}
    recipe = {
        "steps": 4,
        "batch_size": 8,
        "phases": [{"max_seq_length": 32, "share": 1.0}],
        "optimizer": {"learning_rate": 2e-3, "warmup_steps": 1, **changes.pop("optimizer", {})},
        "evaluation_examples": 16,
        "precision": "bf16",  # as on a GPU, whatever the CPU supports
        **changes,
    }
    return PretrainStage.model_validate({"seed": 7, "encoder": encoder, "pretrain": recipe})


def _trainer(
    artifact: Artifact, folder: Path, stage: PretrainStage, *, device: torch.device, **machine: Any
) -> Trainer:
    where = TrainingMachine(token_budget=120, **machine)
    world = World(0, 1, device)
    torch.manual_seed(stage.seed)
    encoder = Encoder(
        stage.encoder,
        TOKENIZER.size,
        attention=where.attention,
        checkpoint_activations=where.checkpoint_activations,
        fp8=stage.pretrain.precision == "fp8",
    )
    model = PretrainingModel(encoder).to(device)
    share = Share(0, 1, where.token_budget)
    engine = Replicated(
        computed_in(stage.pretrain.precision, model),
        world=world,
        schedule=Schedule(stage.pretrain.optimizer, stage.pretrain.steps),
        keeps_gradients=where.cuda_graphs,
    )
    return Trainer(
        stage=stage,
        machine=where,
        identity={"config": {}, "inputs": {}},
        vocabulary_size=TOKENIZER.size,
        world=world,
        engine=engine,
        graphs=StepGraphs(engine) if where.cuda_graphs else None,
        source=training_source(artifact, TOKENIZER, stage, share=share),
        heldout_sources=heldout_sources(artifact, TOKENIZER, stage, share=share),
        checkpoints=Checkpoints(folder, 2),
        telemetry=Telemetry(4, 1, 1e9, device),
        alarms=Alarms(5.0),
        watchdog=Watchdog(0, 600.0),
        stop=Stop(),
        curve=Curve(stage.pretrain.steps),
    )


LAUNCHES = {
    "bf16": 404,
    "bf16 without dropout": 364,
    "fp32": 502,
    "fp32 without dropout": 418,
    "exact gelu": 404,
    "left to right": 404,
    "right to left": 444,
    "next token": 404,
    "without next sentences": 404,
    "bias correction": 404,
    "lamb": 452,
    "muon": 456,
    "stable_adamw": 496,
    "fp8": 908,
    "bf16 as graphs": 45,
    "modern": 405,
    "modern fp32": 477,
    "modern muon": 509,
}
"""Kernel launches of a step of two micro-batches, eager unless graphs, of a two-layer encoder."""

CONFIGURATIONS = {
    "bf16": {},
    "bf16 without dropout": {"encoder": DRY},
    "fp32": {"precision": "fp32"},
    "fp32 without dropout": {"precision": "fp32", "encoder": DRY},
    "exact gelu": {"encoder": {"hidden_act": "gelu"}},
    "left to right": {"encoder": {"attention_direction": "left_to_right"}},
    "right to left": {"encoder": {"attention_direction": "right_to_left"}},
    "next token": {
        "encoder": {"attention_direction": "left_to_right"},
        "objective": "next_token",
        "next_sentence_loss": False,
    },
    "without next sentences": {"next_sentence_loss": False},
    "bias correction": {"optimizer": {"bias_correction": True}},
    "lamb": {"optimizer": {"name": "lamb"}},
    "muon": {"optimizer": {"name": "muon"}},
    "stable_adamw": {"optimizer": {"name": "stable_adamw"}},
    "fp8": {"precision": "fp8"},
    "bf16 as graphs": {},
    "modern": MODERN,
    "modern fp32": {**MODERN, "precision": "fp32"},
    "modern muon": {**MODERN, "optimizer": {"name": "muon"}},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_host_waits_once_a_step_and_nothing_is_refused(
    name: str, artifact: Artifact, running_text: Artifact, tmp_path: Path, cuda: StrictCuda
) -> None:
    stage = _stage(**CONFIGURATIONS[name])
    examples = artifact if stage.pretrain.objective == "masked_lm" else running_text
    graphs = name.endswith("as graphs")
    trainer = _trainer(examples, tmp_path, stage, device=CUDA, cuda_graphs=graphs)
    source = on_device(trainer.source, CUDA)
    trainer.train_step(source(0), started=0.0, waited=0.0)  # creates the optimizer state
    batch = source(1)
    cuda.reset()
    trainer.train_step(batch, started=0.0, waited=0.0)
    assert len(cuda.reads) == 1, cuda.reads
    assert len(batch.micro_batches) == 2
    assert cuda.launches.total() == LAUNCHES[name]
    if "fp32" not in name:  # without FlashAttention, sequences are padded in groups
        assert cuda.pageable == []


@pytest.mark.parametrize("machine", [{"attention": "grouped"}, {"checkpoint_activations": True}])
def test_grouped_attention_and_checkpointed_activations_train(
    machine: dict[str, Any], artifact: Artifact, tmp_path: Path, cuda: StrictCuda
) -> None:
    trainer = _trainer(artifact, tmp_path, _stage(), device=CUDA, **machine)
    cuda.reset()
    trainer.train_step(on_device(trainer.source, CUDA)(0), started=0.0, waited=0.0)
    assert len(cuda.reads) == 1, cuda.reads


@pytest.mark.parametrize(
    ("changes", "precision"),
    [
        *((changes, precision) for changes in FORMS.values() for precision in ("fp32", "bf16")),
        ({}, "fp8"),
    ],
    ids=[*(f"{name} {kind}" for name in FORMS for kind in ("fp32", "bf16")), "bert fp8"],
)
def test_a_gpus_way_gives_the_cpus_losses(
    changes: dict[str, Any],
    precision: str,
    artifact: Artifact,
    tmp_path: Path,
    gpu: StrictCuda | None,
) -> None:
    if precision == "fp8" and gpu is None and torch.cuda.get_device_capability() < FP8_CAPABILITY:
        pytest.skip("a GPU without FP8")
    stage = _stage(
        **{**changes, "encoder": {**changes.get("encoder", {}), **DRY}, "precision": precision}
    )
    losses = []
    for device in (torch.device("cpu"), CUDA):
        trainer = _trainer(artifact, tmp_path, stage, device=device)
        source = on_device(trainer.source, device)
        for step in range(4):
            trainer.train_step(source(step), started=0.0, waited=0.0)
        losses.append([point["loss"] for point in trainer.curve.points])
    exact = 1e-5 if gpu else 1e-4
    assert losses[1] == pytest.approx(losses[0], rel=exact if precision == "fp32" else 3e-3)


def test_an_evaluation_waits_once(artifact: Artifact, tmp_path: Path, cuda: StrictCuda) -> None:
    trainer = _trainer(artifact, tmp_path, _stage(), device=CUDA)
    cuda.reset()
    trainer.evaluate(trainer.source(0))
    assert len(cuda.reads) == 1, cuda.reads


def test_training_and_evaluation_compute_in_the_sizes_of_few_buckets(
    artifact: Artifact, tmp_path: Path, cuda: StrictCuda
) -> None:
    stage = _stage(encoder=DRY)
    trainer = _trainer(artifact, tmp_path / "there", stage, device=CUDA)
    source = on_device(trainer.source, CUDA)
    trained: list[Shape] = []
    for step in range(4):
        batch = source(step)
        trained += [micro_batch.shape for micro_batch in batch.micro_batches]
        trainer.train_step(batch, started=0.0, waited=0.0)
    trainer.evaluate(trainer.source(0))
    (heldout,) = trainer.heldout_sources.values()
    evaluated = {
        micro_batch.bucketed().shape
        for number in range(heldout.curriculum.steps)
        for micro_batch in heldout(number).micro_batches
    }
    buckets = evaluated | set(trained)
    assert len(trained) > 2 * len(set(trained)), "most have been seen before"
    assert len(buckets) == len({bucket.tokens for bucket in buckets}), "one a rung of tokens"
    of_model = {size for p in trainer.engine.model.parameters() for size in p.shape}
    of_model |= {1, 3 * stage.encoder.hidden_size, -(-TOKENIZER.size // 64) * 64}
    of_batches = {size for bucket in buckets for size in bucket[:3]}
    assert cuda.sizes <= of_model | of_batches

    on_cpu = _trainer(artifact, tmp_path / "here", stage, device=torch.device("cpu"))
    on_cpu.engine.restore(HostCopies().take(trainer.engine.state()), updates=4)
    on_cpu.evaluate(on_cpu.source(0))
    assert trainer.heldout == pytest.approx(on_cpu.heldout, rel=3e-3)


@pytest.mark.parametrize(
    "changes",
    [{}, MODERN],
    ids=["bert", "modern"],
)
def test_replayed_graphs_learn_what_launched_kernels_do(
    changes: dict[str, Any], artifact: Artifact, tmp_path: Path, gpu: StrictCuda | None
) -> None:
    stage = _stage(**changes)
    states, curves, launches = [], [], []
    for graphs in (False, True):
        trainer = _trainer(artifact, tmp_path, stage, device=CUDA, cuda_graphs=graphs)
        source = on_device(trainer.source, CUDA)
        for step in range(3):
            if gpu:
                gpu.reset()
            trainer.train_step(source(step), started=0.0, waited=0.0)
        trainer.evaluate(trainer.source(0))
        launches.append(
            gpu.launches["graph"] if gpu else len(trainer.graphs._graphs) if trainer.graphs else 0
        )
        curves.append([point["loss"] for point in trainer.curve.points if "loss" in point])
        states.append({name: kept.master.cpu() for name, kept in trainer.engine.state()})
    assert launches[0] == 0 < launches[1]
    assert curves[1] == pytest.approx(curves[0], rel=1e-6 if gpu else 1e-3)
    if gpu:
        assert launches[1] == 2, "of a step's two micro-batches both"
        for name, expected in states[0].items():
            torch.testing.assert_close(states[1][name], expected, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("fault", ["seed", "batch"])
def test_a_graph_that_repeats_what_should_change_is_seen(
    fault: str,
    artifact: Artifact,
    tmp_path: Path,
    cuda: StrictCuda,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replay, curves = cuda_graphs._Graph.replay, []

    def of_the_captured_batch(
        graph: Any, batch: PackedBatch, *arguments: Any, **options: Any
    ) -> Any:
        return replay(graph, graph.batch, *arguments, **options)

    for graphs in (False, True):
        trainer = _trainer(artifact, tmp_path, _stage(), device=CUDA, cuda_graphs=graphs)
        source = on_device(trainer.source, CUDA)
        if graphs and fault == "seed":
            monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: torch.manual_seed(0))
        elif graphs:
            monkeypatch.setattr(cuda_graphs._Graph, "replay", of_the_captured_batch)
        for step in range(3):
            trainer.train_step(source(step), started=0.0, waited=0.0)
        curves.append([point["loss"] for point in trainer.curve.points])
    assert curves[1] != pytest.approx(curves[0], rel=1e-4)


def test_no_earlier_pass_is_alive_when_a_graph_is_captured(
    artifact: Artifact, tmp_path: Path, cuda: StrictCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A gradient is accumulated on the stream of the pass that first reached its parameter, as long
    # as anything of that pass is alive, and not on the captured stream: CUDA would reject that.
    alive: list[int] = []
    captured, held = torch.cuda.graph, []

    def passes() -> list[object]:
        return [one for one in gc.get_objects() if type(one).__name__ == "_RoundBackward"]

    def watched(*arguments: Any, **options: Any) -> Any:
        alive.append(sum(id(one) not in earlier for one in passes()))
        return captured(*arguments, **options)

    def holding(batch: PackedBatch, **options: Any) -> Any:
        held.append(forward(batch, **options))
        return held[-1]

    monkeypatch.setattr(torch.cuda, "graph", watched)
    trainer = _trainer(artifact, tmp_path, _stage(), device=CUDA, cuda_graphs=True)
    source, forward = on_device(trainer.source, CUDA), trainer.engine.forward
    gc.collect()
    others = passes()  # torch.compile keeps some of those it traced in earlier tests
    earlier = {id(one) for one in others}
    gc.disable()  # garbage that has not been collected is still alive when a graph is captured
    try:
        for step in range(3):
            trainer.train_step(source(step), started=0.0, waited=0.0)
        assert alive and not any(alive)
        trainer.graphs = StepGraphs(trainer.engine)
        monkeypatch.setattr(trainer.engine, "forward", holding)
        for step in range(3):
            trainer.train_step(source(step), started=0.0, waited=0.0)
        assert alive[-1], "what is held is seen"
    finally:
        gc.enable()


def test_a_skipped_step_leaves_graphs_and_their_gradients_intact(
    artifact: Artifact, tmp_path: Path, cuda: StrictCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = []
    for graphs in (False, True):
        trainer = _trainer(artifact, tmp_path, _stage(), device=CUDA, cuda_graphs=graphs)
        source = on_device(trainer.source, CUDA)
        for step in range(4):
            batch = source(step)
            spoilt = batch if step != 2 else replace(batch, masked=math.nan)
            trainer.train_step(spoilt, started=0.0, waited=0.0)
        assert trainer.engine.updates == 3
        losses.append([point["loss"] for point in trainer.curve.points])
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


@pytest.mark.parametrize(
    ("machine", "changes", "reason"),
    [
        ({"zero_stage": 1}, {}, "ZeRO"),
        ({"checkpoint_activations": True}, {}, "checkpoint_activations"),
        ({"attention": "grouped"}, {}, "grouped attention"),
        ({}, {"precision": "fp32"}, "grouped attention"),
        (
            {},
            {"encoder": {"layer_type": "lstm", "attention_direction": "left_to_right"}},
            "LSTM layers",
        ),
    ],
)
def test_graphs_are_refused_where_a_pass_is_not_the_same_every_time(
    machine: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    where = TrainingMachine.model_validate({"cuda_graphs": True, **machine})
    require_graphs(_stage(), TrainingMachine(cuda_graphs=True), World(0, 1, CUDA))
    with pytest.raises(UsageError, match=f"training.cuda_graphs .*{reason}.*leave it out"):
        require_graphs(_stage(**changes), where, World(0, 1, CUDA))
    for world in (World(0, 2, CUDA), World(0, 1, torch.device("cpu"))):
        with pytest.raises(UsageError, match="ranks|graphs are for GPUs"):
            require_graphs(_stage(), TrainingMachine(cuda_graphs=True), world)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "muon"])
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(
    optimizer: str,
    artifact: Artifact,
    tmp_path: Path,
    cuda: StrictCuda,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = _stage(optimizer={"name": optimizer})
    trainer = _trainer(artifact, tmp_path, stage, device=CUDA)
    trainer.train_step(trainer.source(0), started=0.0, waited=0.0)
    before = {name: kept.master.clone() for name, kept in trainer.engine.state()}
    backward = trainer.engine.backward
    monkeypatch.setattr(
        trainer.engine, "backward", lambda loss, last: backward(loss * torch.nan, last=last)
    )
    trainer.train_step(trainer.source(1), started=0.0, waited=0.0)
    assert (trainer.engine.updates, trainer.skipped_in_row) == (1, 1)
    for name, kept in trainer.engine.state():
        assert torch.equal(kept.master, before[name])
        assert kept.exp_avg.isfinite().all()


def test_a_saved_state_continues_on_a_gpu(
    artifact: Artifact, tmp_path: Path, gpu: StrictCuda | None
) -> None:
    stage = _stage()
    first = _trainer(artifact, tmp_path, stage, device=CUDA)
    first.train_step(first.source(0), started=0.0, waited=0.0)
    copies = HostCopies()
    saved = copies.take(first.engine.state())
    copies.wait()
    again = _trainer(artifact, tmp_path, stage, device=CUDA)
    again.engine.restore(saved, updates=1)
    for trainer in (first, again):
        trainer.train_step(trainer.source(1), started=0.0, waited=0.0)
    for (name, ours), (_, theirs) in zip(first.engine.state(), again.engine.state(), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0 if gpu else 5e-3, msg=name)


def test_a_save_does_not_wait_for_a_gpu_and_keeps_its_memory(
    artifact: Artifact, tmp_path: Path, cuda: StrictCuda
) -> None:
    trainer = _trainer(artifact, tmp_path, _stage(), device=CUDA)
    for step in range(2):
        trainer.train_step(trainer.source(step), started=0.0, waited=0.0)
        cuda.reset()
        trainer.save(evaluated=False)
        assert cuda.reads == cuda.pageable == []
        assert cuda.launches["copy to the host"] == 3 * len(list(trainer.engine.state()))
        trainer.checkpoints.wait()
    pieces = trainer.checkpoints._copies._pieces
    assert len(pieces) == 1
    assert pieces[0].untyped_storage().data_ptr() in cuda.pinned
    found = trainer.checkpoints.newest()
    assert found is not None
    assert found["step"] == 2
    saved = trainer.checkpoints.parameters(2)
    for name, kept in trainer.engine.state():
        assert all(map(torch.equal, saved[name], (part.cpu() for part in kept))), name


def test_a_thread_chooses_its_ranks_gpu_before_it_copies(
    artifact: Artifact, tmp_path: Path, cuda: StrictCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = _trainer(artifact, tmp_path, _stage(), device=CUDA)

    def empty(step: int) -> StepBatch:
        return replace(trainer.source(step), micro_batches=())

    def save() -> None:
        trainer.save(evaluated=False)
        trainer.checkpoints.wait()

    trainer.train_step(trainer.source(0), started=0.0, waited=0.0)
    assert len(list(prefetch(on_device(empty, CUDA), 0, 3))) == 3
    save()
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    with pytest.raises(Refused, match="without having chosen"):
        list(prefetch(on_device(empty, CUDA), 0, 3))
    fresh = Checkpoints(tmp_path / "fresh", 2)
    trainer.checkpoints = fresh
    with pytest.raises(Refused, match="without having chosen"):
        save()


def test_ranks_that_do_not_write_copy_nothing(
    artifact: Artifact, tmp_path: Path, cuda: StrictCuda
) -> None:
    trainer = _trainer(artifact, tmp_path, _stage(), device=CUDA)
    cuda.reset()
    trainer.checkpoints.save(trainer.engine.state(), {"step": 1}, writes=False)
    assert not cuda.launches["copy to the host"]
    assert not trainer.checkpoints.steps()


@pytest.mark.parametrize("vocabulary", [203, 256])
def test_on_a_gpu_the_products_see_an_even_vocabulary_and_the_result_is_the_same(
    vocabulary: int, cuda: StrictCuda
) -> None:
    torch.manual_seed(0)
    given = torch.randn(9, 32), torch.randn(vocabulary, 32), torch.randn(vocabulary)
    labels = torch.randint(vocabulary, (9,))
    results = []
    for device in ("cpu", CUDA):
        leaves = [tensor.to(device).requires_grad_() for tensor in given]
        loss, correct = masked_lm_loss(*leaves, labels.to(device))
        loss.backward()
        results.append([loss, correct, *(leaf.grad for leaf in leaves)])
    for ours, theirs in zip(*results, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(theirs.detach().cpu(), ours.detach(), rtol=1e-5, atol=1e-5)
    assert cuda.unaligned == []


def test_lengths_known_on_the_host_are_not_read_from_a_gpu(
    artifact: Artifact, tmp_path: Path, cuda: StrictCuda
) -> None:
    trainer = _trainer(artifact, tmp_path, _stage(), device=CUDA)
    batch: PackedBatch = trainer.source(0).micro_batches[0].to(CUDA)
    cuda.reset()
    assert batch.lengths.sum() == batch.tokens
    assert isinstance(batch.input_ids, CudaTensor)
    assert cuda.reads == []


def test_deepspeed_does_not_wait_for_the_device_to_measure_itself(cuda: StrictCuda) -> None:
    optimizer = _stage().pretrain.optimizer
    ours = engine_configuration(TrainingMachine(zero_stage=1), optimizer, precision="bf16")

    def reads(configuration: dict[str, Any]) -> int:
        cuda.reset()
        timer = ThroughputTimer(get_timers_config(configuration), batch_size=8)
        for _ in range(4):
            timer.start()
            timer.stop(global_step=True)
        return len(cuda.reads)

    assert reads(ours) == 0
    assert reads({**ours, "timers": {}}) > 0, "DeepSpeed's timer as it comes waits"


def test_one_rank_copies_no_gradient_to_reduce_it(
    artifact: Artifact, tmp_path: Path, cuda: StrictCuda
) -> None:
    trainer = _trainer(artifact, tmp_path, _stage(), device=CUDA)
    assert isinstance(trainer.engine, Replicated)
    assert trainer.engine._reduction is None


def test_the_device_refuses_what_was_wrong_before(
    artifact: Artifact, tmp_path: Path, cuda: StrictCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def norm_of_two_types(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return functional.layer_norm(x, weight.shape, weight.float(), bias.float(), eps)

    def drawn_on_the_cpu(*_: Any, probability: float, **__: Any) -> Draws:
        return Draws(100_000, 3277, 1.0, on_device=torch.zeros(100_000, dtype=torch.int16))

    def read_from_the_device(optimizer: AdamW, group: dict[str, Any]) -> int:
        return int(optimizer.state[group["params"][0]]["step"])

    trainer = _trainer(artifact, tmp_path, _stage(), device=CUDA, attention="grouped")
    source = on_device(trainer.source, CUDA)
    trainer.train_step(source(0), started=0.0, waited=0.0)
    for module, name, fault in (
        (residual, "layer_norm", norm_of_two_types),
        (grouped_attention, "dropout_draws", drawn_on_the_cpu),
    ):
        with monkeypatch.context() as seeded, pytest.raises(Refused):
            seeded.setattr(module, name, fault)
            trainer.train_step(source(1), started=0.0, waited=0.0)
    monkeypatch.setattr(AdamW, "_updates_done", read_from_the_device)
    cuda.reset()
    trainer.train_step(source(1), started=0.0, waited=0.0)
    assert len(cuda.reads) > 1


def test_every_layer_and_step_has_a_mask_of_its_own(
    artifact: Artifact, tmp_path: Path, cuda: StrictCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Tensor] = []

    def masks_of_two_steps(draw: Callable[..., Draws | None]) -> set[bytes]:
        def watched(*place: Any, **changes: Any) -> Draws | None:
            found = draw(*place, **changes)
            assert found is not None
            drawn.append(found.bits)
            return found

        monkeypatch.setattr(grouped_attention, "dropout_draws", watched)
        drawn.clear()
        for step in (0, 1):
            trainer.train_step(source(step), started=0.0, waited=0.0)
        return {bits.cpu().numpy()[:100].tobytes() for bits in drawn}

    def moved_from_the_cpu(
        noise: Noise, count: int, *, probability: float, device: torch.device
    ) -> Draws:
        bits = Draws(count, 0, 1.0, Noise(noise.address).stream).bits.to(device)
        return Draws(count, round(probability * 0x8000), 1 / (1 - probability), on_device=bits)

    trainer = _trainer(artifact, tmp_path, _stage(), device=CUDA, attention="grouped")
    source = on_device(trainer.source, CUDA)
    assert len(masks_of_two_steps(grouped_attention.dropout_draws)) == len(drawn) > 2
    assert len(masks_of_two_steps(moved_from_the_cpu)) == 1, "a GPU's noise has no address"
    with pytest.raises(RuntimeError, match="draw on the device"):
        _ = DeviceNoise().at(3).stream


@pytest.mark.parametrize(
    ("preset", "gigabytes", "tokens"),
    [("large", 139, 65_536), ("large", 24, 13_312), ("base", 24, 47_104), ("base", 1, 512)],
)
def test_a_gpus_memory_decides_how_many_tokens_are_computed_at_once(
    preset: str, gigabytes: int, tokens: int
) -> None:
    recipe = {"phases": [{"max_seq_length": 512, "share": 1.0}], "precision": "bf16"}
    stage = PretrainStage.model_validate(
        {"seed": 1, "encoder": {"preset": preset}, "pretrain": recipe}
    )
    free, machine = gigabytes << 30, TrainingMachine()
    found = gpu_token_budget(stage, machine, vocabulary_size=30_522, free_bytes=free)
    assert found == pytest.approx(tokens, abs=1024)
    again = machine.model_copy(update={"checkpoint_activations": True})
    assert gpu_token_budget(stage, again, vocabulary_size=30_522, free_bytes=free) >= found


def test_layers_are_compiled_only_where_there_is_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not has_compiler()
    (tmp_path / "gcc").touch(mode=0o755)
    assert has_compiler()


@pytest.mark.parametrize(
    ("precision", "machine", "device", "expected"),
    [
        ("bf16", {}, CUDA, True),
        ("fp32", {}, CUDA, False),
        ("bf16", {"attention": "grouped"}, CUDA, False),
        ("bf16", {}, torch.device("cpu"), False),
        ("fp32", {"compile_layers": True}, CUDA, True),
    ],
)
def test_layers_whose_attention_has_few_shapes_are_compiled(
    precision: str,
    machine: dict[str, Any],
    device: torch.device,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cloze.model.training.pretrain.has_compiler", lambda: True)
    where = TrainingMachine.model_validate(machine)
    assert compiles(_stage(precision=precision), where, device) == expected
