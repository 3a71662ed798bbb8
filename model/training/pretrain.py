"""The stage examples → encoder, as a program.

In:  a stage table (`python -P -m cloze.model.training.pretrain --config TABLE`, or the same module
     under DeepSpeed's launcher).
Out: the artifact `pretrain`: weights with Hugging Face's names, config.json, the tokenizer, the
     loss curve; or a checkpoint from which the same command resumes.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from pydantic import JsonValue
from safetensors.torch import save
from torch import Tensor

from cloze.artifacts import filesystem
from cloze.artifacts.arrays import entropy
from cloze.artifacts.config import parse
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import say
from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import (
    Artifact,
    commit,
    open_artifact,
    open_input,
    put_bytes,
    put_json,
)
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.config import (
    EncoderConfig,
    PretrainConfig,
    PretrainStage,
    TrainingMachine,
    repetition,
)
from cloze.model.data.micro_batches import BatchSource, Share
from cloze.model.data.sources import (
    heldout_by_source,
    heldout_sources,
    masked_token_counts,
    mixed_epochs,
    mixed_names,
    suited_tokenizer,
    training_source,
)
from cloze.model.data.word_vectors import read_word_vectors
from cloze.model.encoder.models import TRUNCATED, Encoder, PretrainingModel
from cloze.model.encoder.operations.attention import backend_name
from cloze.model.encoder.operations.products import matrix_rate
from cloze.model.encoder.precision import computed_in, require_fp8
from cloze.model.hugging_face.changed_vocabulary import with_vocabulary
from cloze.model.hugging_face.layout import hugging_face_config, special_ids, to_hugging_face
from cloze.model.hugging_face.model_files import EncoderFiles, read_encoder_files
from cloze.model.hugging_face.source import refuse_another_shape, refuse_another_tokenizer
from cloze.model.inference.export import contents
from cloze.model.training.checkpoints import (
    Checkpoints,
    FaultHook,
    Identity,
    Milestones,
    ParameterState,
    SavedRun,
    no_fault,
    resume,
)
from cloze.model.training.continuation import (
    Continuation,
    continuation_of,
    finished_state,
    keep_final_state,
)
from cloze.model.training.cuda_graphs import StepGraphs, require_graphs
from cloze.model.training.distributed import World, join_world
from cloze.model.training.engine import Engine, Replicated
from cloze.model.training.health import Alarms, Deadline, Stop, Watchdog
from cloze.model.training.loop import Trainer
from cloze.model.training.optimizer import Schedule
from cloze.model.training.sharded import Sharded
from cloze.model.training.start import restart_prepared, threads_per_rank
from cloze.model.training.telemetry import Curve, Telemetry, metrics_log, start_trackers
from cloze.model.training.waiting import patient_threads

CPU_TOKEN_BUDGET, LARGE_CPU_TOKEN_BUDGET = 8192, 4096
"""Tokens per micro-batch for encoders up to `SMALL`, and for larger ones, whose activations would
take gigabytes more. Rounding weights and accumulating gradients happens once per micro-batch: at
4,096 tokens, a tenth of BERT-base's step."""

SMALL = 12 * 768
"""Layers times width of BERT-base."""

GPU_TOKEN_BUDGET = 65536
"""Larger micro-batches are no faster."""

GPU_MEMORY_SHARE = 0.85
"""Share of the free memory to use; the rest allows for fragmentation and libraries."""

BYTES_PER_PARAMETER = {"fp32": 4 + 8 + 4, "bf16": 4 + 8 + 4 + 2 + 2, "fp8": 4 + 8 + 4 + 2 + 2}
"""Masters, moments and gradients in fp32; otherwise also weights and their gradients in bf16."""

MASKED_SHARE = 6
"""Assumed tokens per masked token; at 15 % masked there are 6.7."""

WORD_VECTORS = "word_vectors"
"""Role of the static vectors among the inputs."""

HEADS = ("masked_lm", "next_sentence")
"""Parts of the model that many encoders come without."""

CLEARLY_SLOWER = 0.8
"""Warn if the chosen precision's matrix products run below this share of the other's rate."""


def make_encoder(table: StageTable, options: list[str], *, fault: FaultHook = no_fault) -> Artifact:
    """Train, or resume training, and commit the artifact. `fault` is for tests."""
    stage = parse(PretrainStage, table.config, source="stage table")
    machine = parse(TrainingMachine, table.machine, source="stage table, machine")
    # Refuse what cannot work before anything is read or computed.
    machine.check_recipe(stage.pretrain)
    threads, timeout = threads_per_rank(machine), machine.hang_timeout
    world = join_world(threads=threads, timeout=timeout, device=machine.device)
    if stage.pretrain.precision == "fp8":
        require_fp8(world.device)
    if machine.cuda_graphs:
        require_graphs(stage, machine, world)
    deadline = deadline_of(stage)
    with patient_threads(threads), Watchdog(world.rank, timeout, fault) as watchdog:
        examples = open_artifact(table.input_path("examples"))
        tokenizer = suited_tokenizer(examples, stage)
        # Nodes with different copies of the inputs would train on different batches, without any
        # error.
        world.require_agreement({"stage table": table.key, "examples": examples.digest})
        start = starting_point(table, machine, world=world, fault=fault)
        with (
            Stop().listening() as stop,
            metrics_log(start.metrics, done=start.done) if world.is_first else nullcontext() as log,
        ):
            share = share_of(stage, machine, vocabulary_size=tokenizer.size, world=world)
            source = training_source(examples, tokenizer, stage, share=share)
            if world.is_first:
                warn_of_recipe(stage.pretrain, source)
            engine = start_engine(stage, machine, tokenizer, start, world=world)
            trainer = Trainer(
                stage=stage,
                machine=machine,
                identity=start.identity,
                vocabulary_size=tokenizer.size,
                world=world,
                engine=engine,
                graphs=StepGraphs(engine) if machine.cuda_graphs else None,
                source=source,
                heldout_sources=heldout_sources(examples, tokenizer, stage, share=source.share),
                heldout_by_source=heldout_by_source(examples, tokenizer, stage, share=source.share),
                checkpoints=start.checkpoints,
                telemetry=telemetry_of(table, stage, machine, world=world, log=log),
                # The first rank alone warns.
                alarms=Alarms(entropy(masked_token_counts(source)) if world.is_first else 0.0),
                watchdog=watchdog,
                stop=stop,
                curve=Curve(stage.pretrain.steps, sources=mixed_names(source)),
                continuation=start.continuation,
                deadline=deadline,
                milestones=milestones_of(table, machine, stage, tokenizer),
            )
            if start.resumed is not None:
                trainer.restore(start.resumed.state)
            trainer.train()
            for tracker in trainer.telemetry.trackers:
                tracker.finish()
        finish(table, tokenizer, trainer, metrics=start.metrics)
    if not world.is_first:
        sys.exit(0)  # the first rank reports for all
    return open_artifact(table.output)


def finish(
    table: StageTable, tokenizer: SubwordTokenizer, trainer: Trainer, *, metrics: Path
) -> None:
    """Gather the weights, commit them on the first rank, and remove the checkpoints.

    `metrics`: the log of all steps, in the folder of the checkpoints. All ranks return together.
    """
    world = trainer.world
    # All ranks take part in gathering; only the first one keeps the weights.
    masters = {name: kept.master.cpu() for name, kept in trainer.engine.state() if world.is_first}
    if world.is_first:
        # The checkpoints go only after the artifact exists: until then they are the only copy.
        log = metrics.read_bytes()
        commit_encoder(table, tokenizer, trainer, masters=masters, metrics=log)
        shutil.rmtree(metrics.parent)
    world.barrier()


@dataclass(frozen=True)
class StartingPoint:
    """Where training begins: at a checkpoint, where the run that it continues ended, or at 0."""

    identity: Identity
    """What a checkpoint must have been made from."""
    checkpoints: Checkpoints
    metrics: Path
    """The log of all steps so far, in the folder of the checkpoints."""
    continuation: Continuation | None
    """Set if this run continues a finished one."""
    word_vectors: Artifact | None
    """Set if this run begins with static vectors as its word embeddings."""
    resumed: SavedRun | None
    """The state to go on from; None at step 0."""

    @property
    def done(self) -> int:
        """Steps made so far."""
        return self.resumed.state["step"] if self.resumed else 0


def starting_point(
    table: StageTable, machine: TrainingMachine, *, world: World, fault: FaultHook
) -> StartingPoint:
    """Find the run's latest checkpoint, or the final state of the run that it continues."""
    continuation = continuation_of(table)
    folder = checkpoint_folder(table, machine)
    checkpoints = Checkpoints(folder, machine.keep_checkpoints, fault)
    identity: Identity = {
        "config": table.keyed_config,
        "inputs": {role: given.digest for role, given in table.inputs.items()},
    }
    resumed = resume(checkpoints, world=world, identity=identity)
    metrics = folder / "metrics.jsonl"
    # A checkpoint of this run, if there is one, is further than the finished run it continues.
    if resumed is None and continuation:
        resumed = finished_state(table, metrics, world=world)
    vectors = open_input(table, WORD_VECTORS) if WORD_VECTORS in table.inputs else None
    return StartingPoint(identity, checkpoints, metrics, continuation, vectors, resumed)


def deadline_of(stage: PretrainStage) -> Deadline | None:
    """The time limit, from now on; None without one."""
    recipe = stage.pretrain
    # A forward pass takes a third of a step.
    evaluation = recipe.evaluation_examples / recipe.batch_size / 3
    return Deadline(60 * recipe.minutes, evaluation) if recipe.minutes else None


def checkpoint_folder(table: StageTable, machine: TrainingMachine) -> Path:
    """The run's checkpoint folder; within a configured one, each key has its own."""
    chosen = machine.checkpoints or table.output
    if not filesystem.is_local(chosen):
        raise UsageError(
            f"{chosen}: checkpoints need a local or shared file system; "
            "set training.checkpoints to a folder there"
        )
    # A configured folder may serve many runs.
    own = table.key[:16] if machine.checkpoints else ""
    folder = Path(filesystem.local_path(chosen)) / own / "checkpoints"
    if folder.is_symlink():  # in a workspace from a stranger it may lead anywhere
        raise UsageError(
            f"{folder}: a link, but checkpoints are removed there; remove the link, and set "
            "training.checkpoints to the folder in which they should be stored"
        )
    return folder


def milestones_of(
    table: StageTable, machine: TrainingMachine, stage: PretrainStage, tokenizer: SubwordTokenizer
) -> Milestones | None:
    """Where the run keeps encoders of some steps; each key has its own folder there."""
    if not machine.milestones:
        return None
    if not filesystem.is_local(machine.milestones):
        raise UsageError(
            f"{machine.milestones}: milestones need a local or shared file system; set "
            "training.milestones to a folder there"
        )
    objective = stage.pretrain.objective

    def files(weights: dict[str, Tensor]) -> Mapping[str, bytes]:
        return contents(EncoderFiles(stage.encoder, tokenizer, weights, objective=objective))

    folder = Path(filesystem.local_path(machine.milestones)) / table.key[:16]
    return Milestones(folder, stage.pretrain.steps, files)


def warn_of_recipe(recipe: PretrainConfig, source: BatchSource) -> None:
    """Warn of a rate that is never reached, and of what is read too often to gain by it."""
    read = (repetition(name, epochs) for name, epochs in mixed_epochs(source).items())
    for warning in filter(None, (recipe.unreached_rate, *read)):
        say(f"warning: pretrain: {warning}")


def share_of(
    stage: PretrainStage, machine: TrainingMachine, *, vocabulary_size: int, world: World
) -> Share:
    """This rank's share of every batch, and its token budget."""
    longest = max(phase.max_seq_length for phase in stage.pretrain.phases)
    budget = machine.token_budget or max(cpu_token_budget(stage.encoder), longest)
    if world.device.type == "cuda" and not machine.token_budget:
        free, _ = torch.cuda.mem_get_info(world.device)
        chosen = gpu_token_budget(stage, machine, vocabulary_size=vocabulary_size, free_bytes=free)
        # ranks must agree, or they would plan different micro-batches
        budget = min(world.gather(chosen))
    return Share(world.rank, world.ranks, budget)


def cpu_token_budget(encoder: EncoderConfig) -> int:
    """Tokens per micro-batch on a CPU."""
    small = encoder.num_hidden_layers * encoder.hidden_size <= SMALL
    return CPU_TOKEN_BUDGET if small else LARGE_CPU_TOKEN_BUDGET


def gpu_token_budget(
    stage: PretrainStage, machine: TrainingMachine, *, vocabulary_size: int, free_bytes: int
) -> int:
    """Tokens of a micro-batch that fit on a GPU next to the model; a multiple of 1,024.

    For the backward pass, a layer saves 12 H + 2 I values per token (the inputs of its products and
    norms, query, key and value, both halves of GELU) and two masks of H bytes. Masked tokens, one
    in `MASKED_SHARE`, have logits and their gradient. The model takes `BYTES_PER_PARAMETER`, as at
    ZeRO 0.
    """
    encoder = stage.encoder
    width, inner = encoder.hidden_size, encoder.intermediate_size
    layers = encoder.num_hidden_layers
    size = 4 if stage.pretrain.precision == "fp32" else 2
    values = 12 * width + 2 * inner
    if encoder.family == "modern":  # rotated queries and keys, both halves of the gate
        values += 6 * width + 3 * inner
    layer = size * values + 2 * width
    kept = layer + layers * size * width if machine.checkpoint_activations else layers * layer
    per_prediction = 1 if stage.pretrain.objective == "next_token" else MASKED_SHARE
    token = kept + 2 * size * vocabulary_size / per_prediction
    rows = vocabulary_size + encoder.max_position_embeddings
    parameters = layers * encoder.layer_weights + rows * width
    share = GPU_MEMORY_SHARE / (2 if machine.cuda_graphs else 1)  # graphs have their own memory
    model = BYTES_PER_PARAMETER[stage.pretrain.precision] * parameters
    tokens = (share * free_bytes - model) / token
    longest = max(phase.max_seq_length for phase in stage.pretrain.phases)
    return max(longest, min(GPU_TOKEN_BUDGET, int(tokens) // 1024 * 1024))


def compiles(stage: PretrainStage, machine: TrainingMachine, device: torch.device) -> bool:
    """Whether to compile layers; `auto` does not with grouped attention, whose groups vary."""
    if machine.compile_layers != "auto":
        return machine.compile_layers
    dtype = torch.float32 if stage.pretrain.precision == "fp32" else torch.bfloat16
    backend = backend_name(machine.attention, device=device, dtype=dtype)
    return device.type == "cuda" and backend != "grouped" and has_compiler()


def has_compiler() -> bool:
    """Whether Triton can find the C compiler that it needs to compile layers."""
    return any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang")))


def telemetry_of(
    table: StageTable,
    stage: PretrainStage,
    machine: TrainingMachine,
    *,
    world: World,
    log: IO[str] | None,
) -> Telemetry:
    """The run's log. Every rank measures its rate of matrix products.

    A single CPU rank compares both precisions. FP8 is measured against bf16's rate, so that runs of
    both are comparable: its MFU may exceed 1.
    """
    dtypes = {"bf16": torch.bfloat16, "fp32": torch.float32}
    chosen = "fp32" if stage.pretrain.precision == "fp32" else "bf16"
    # `pop` leaves the other precision, for the comparison below.
    (rate,) = world.sum([matrix_rate(world.device, precision=dtypes.pop(chosen))])
    if world.device.type == "cpu" and world.ranks == 1:
        ((other, dtype),) = dtypes.items()
        times = rate / matrix_rate(world.device, precision=dtype, seconds=0.1)
        say(f"pretrain precision={chosen}, its matrix products run at {times:.1f} times {other}'s")
        if times < CLEARLY_SLOWER:
            say(f'warning: {other} would train faster here; set pretrain.precision = "{other}"')
    return Telemetry(
        steps=stage.pretrain.steps,
        log_every=machine.log_every,
        flops_per_second=rate,
        device=world.device,
        log=log,
        trackers=start_trackers(machine, table) if world.is_first else (),
    )


def start_engine(
    stage: PretrainStage,
    machine: TrainingMachine,
    tokenizer: SubwordTokenizer,
    start: StartingPoint,
    *,
    world: World,
) -> Engine:
    """The engine: initialised from the run's seed, warm-started, or resumed."""
    # The same initial weights on every rank, without sending them.
    torch.manual_seed(stage.seed)
    encoder = Encoder(
        stage.encoder,
        tokenizer.size,
        attention=machine.attention,
        checkpoint_activations=machine.checkpoint_activations,
        fp8=stage.pretrain.precision == "fp8",
    )
    model = PretrainingModel(encoder)
    if stage.pretrain.init:
        files = read_encoder_files(stage.pretrain.init)
        missing = warm_start(model, files, stage, tokenizer=tokenizer)
        if missing and world.is_first and start.resumed is None:
            lacks = " and no ".join(missing)
            say(f"warning: {stage.pretrain.init}: has no {lacks}; random ones begin")
    if start.word_vectors:
        begin_with(start.word_vectors, model, tokenizer)
    if compiles(stage, machine, world.device):
        model.encoder.compile_layers()
    state: dict[str, ParameterState] = {}
    resumed = start.resumed
    if resumed is not None:
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        state = dict(resumed.parameters(shapes, world=world))
        # Before DeepSpeed takes the model: its bf16 weights must be the rounded masters.
        model.load_state_dict({name: kept.master for name, kept in state.items()})
    # Initialised on the CPU before: the generator of a GPU would draw other weights for the same
    # seed.
    model.to(world.device)
    precision = stage.pretrain.precision
    rise_at = start.continuation.rise_at if start.continuation else 0
    schedule = Schedule(
        stage.pretrain.optimizer,
        stage.pretrain.steps,
        steps_before=rise_at,
        shortened=stage.pretrain.shortened,
    )
    engine: Engine
    if machine.zero_stage:
        engine = Sharded(
            model, world=world, schedule=schedule, machine=machine, precision=precision
        )
    else:
        engine = Replicated(
            computed_in(precision, model),
            world=world,
            schedule=schedule,
            keeps_gradients=machine.cuda_graphs,
        )
    if resumed is not None:
        engine.restore(state, updates=resumed.state["updates"])
    if world.is_first:
        computed = torch.float32 if precision == "fp32" else torch.bfloat16
        say(model.encoder.attention_facts(computed))
    return engine


def warm_start(
    model: PretrainingModel,
    files: EncoderFiles,
    stage: PretrainStage,
    *,
    tokenizer: SubwordTokenizer,
) -> list[str]:
    """Load the weights of an initial checkpoint; returns the parts it lacks, which stay random."""
    where = f"pretrain.init = {stage.pretrain.init}"
    if not tokenizer.extends(files.tokenizer):
        refuse_another_tokenizer(files.tokenizer.digest, tokenizer.digest, where=where)
    # Rows for tokens that the initial encoder lacks are means of its own pieces' rows.
    files = with_vocabulary(files, tokenizer)
    refuse_another_shape(files.config, stage.encoder, where=where)
    # strict=False: an encoder without the pre-training heads is welcome.
    missing = model.load_state_dict(files.parameters, strict=False).missing_keys
    parts = (key.removeprefix("encoder.").partition(".")[0] for key in missing)
    return [f"{part} head" if part in HEADS else part for part in dict.fromkeys(parts)]


def begin_with(
    word_vectors: Artifact, model: PretrainingModel, tokenizer: SubwordTokenizer
) -> None:
    """Replace the initial word embeddings by static vectors of the same standard deviation.

    Word-pieces that have no vector, such as [MASK], keep their random values.
    """
    made_with = word_vectors.manifest.statistics["tokenizer_digest"]
    if made_with != tokenizer.digest:
        where = f"{word_vectors.directory}: word vectors"
        refuse_another_tokenizer(made_with, tokenizer.digest, where=where)
    vectors = torch.from_numpy(read_word_vectors(word_vectors))
    words = model.encoder.embeddings.word_embeddings.weight
    if vectors.shape != words.shape:
        raise UsageError(
            f"{word_vectors.directory}: {vectors.shape[1]} numbers in a vector, but the encoder's "
            f"width is {words.shape[1]}; make them again with width = {words.shape[1]}"
        )
    found = vectors.any(1)
    deviation = TRUNCATED * model.encoder.config.initializer_range
    with torch.no_grad():
        words[found] = deviation * vectors[found]


def commit_encoder(
    table: StageTable,
    tokenizer: SubwordTokenizer,
    trainer: Trainer,
    *,
    masters: Mapping[str, Tensor],
    metrics: bytes,
) -> None:
    """Commit the encoder as an artifact that its Hugging Face class can read."""
    output = table.output
    encoder, objective = trainer.stage.encoder, trainer.stage.pretrain.objective
    # The fp32 masters, also where training computed in bf16: who rounds may do it again, nobody can
    # undo it.
    weights = save(to_hugging_face(masters, encoder.family), metadata={"format": "pt"})
    config = {
        **hugging_face_config(encoder, tokenizer.size, objective=objective),
        **special_ids(encoder.family, tokenizer),
    }
    files = [
        put_bytes(output, weights, name="model.safetensors"),
        put_json(output, config, name="config.json"),
        *(put_bytes(output, file, name=name) for name, file in tokenizer.files().items()),
        put_bytes(output, trainer.curve.json_lines(), name="curve.jsonl"),
    ]
    shortened: list[JsonValue] = [list(cut) for cut in trainer.engine.schedule.shortened]
    records = [put_bytes(output, metrics, name="metrics.jsonl")]
    if trainer.machine.keep_optimizer:
        records += keep_final_state(trainer.checkpoints.folder(trainer.step), output)
    commit(
        table,
        files,
        statistics={
            "tokenizer_digest": tokenizer.digest,
            "vocabulary_size": tokenizer.size,
            "parameters": sum(tensor.numel() for tensor in masters.values()),
            "updates": trainer.engine.updates,
            "heldout": trainer.heldout,
            **({"source_epochs": epochs} if (epochs := mixed_epochs(trainer.source)) else {}),
            **({"steps": trainer.step, "shortened": shortened} if shortened else {}),
            **({"continued": continued.statistics} if (continued := trainer.continuation) else {}),
        },
        records=records,
        execution={
            "device": trainer.world.device.type,
            "ranks": trainer.world.ranks,
            "zero_stage": trainer.machine.zero_stage,
            "training_seconds": round(trainer.telemetry.spent, 3),
            "checkpoint_seconds": round(trainer.checkpoints.seconds, 3),
        },
    )


if __name__ == "__main__":
    restart_prepared()
    run_program(make_encoder)
