"""From a stage table to the parts of a run: examples, order, model, matrix rate.

In:  the stage's configuration, the machine, the examples artifact.
Out: the curriculum and batch sources, checked against each other before anything is trained.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch

from artifacts.digests import cache_directory
from artifacts.errors import IntegrityError, UsageError
from artifacts.store import Artifact
from artifacts.tokenizer import WordPieceTokenizer, read_tokenizer_json
from model.config import PhaseConfig, PretrainStage, TrainingMachine
from model.data.dynamic_masking import DynamicMasking
from model.data.micro_batches import BatchSource, CostModel, Share
from model.data.order import Curriculum, LengthOrder
from model.data.shards import ExampleShards
from model.encoder.pretraining import PretrainingModel
from model.hugging_face.encoder_files import EncoderFiles, read_encoder_files
from model.hugging_face.layout import from_hugging_face, hugging_face_name
from model.training.alarms import entropy
from model.training.distributed import World

HELDOUT = "heldout"

CPU_TOKEN_BUDGET = 4096
GPU_TOKEN_BUDGET = 65536

EVALUATION_BATCH = 256
"""Held-out examples that are cut together; no result depends on it beyond rounding."""


NOT_IN_THE_WEIGHTS = {
    "preset",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
}
"""What may change between an encoder and the run that begins from it."""


@dataclass(frozen=True)
class Inputs:
    """The examples and what they were made with."""

    artifact: Artifact
    tokenizer: WordPieceTokenizer
    cache: str

    def shards(self, split: str, max_seq_length: int) -> ExampleShards:
        """The shards of one split and length."""
        return ExampleShards(
            self.artifact, split=split, max_seq_length=max_seq_length, cache=self.cache
        )


def read_inputs(artifact: Artifact, stage: PretrainStage) -> Inputs:
    """The examples' artifact, its tokenizer beside it, checked against the encoder's shape."""
    cache = str(cache_directory().parent / "artifacts" / artifact.digest)
    local = artifact.stage_files(cache, ["tokenizer.json", "vocab.txt"])
    tokenizer = read_tokenizer_json(local.path("tokenizer.json"))
    promised = artifact.manifest.statistics
    if tokenizer.digest != promised["tokenizer_digest"]:
        raise IntegrityError(
            f"{artifact.directory}: tokenizer.json is {tokenizer.digest[:12]}, the examples were "
            f"made with {promised['tokenizer_digest'][:12]}; run the examples stage again"
        )
    longest = max(phase.max_seq_length for phase in stage.pretrain.phases)
    if longest > stage.encoder.max_position_embeddings:
        raise UsageError(
            f"pretrain.phases asks for {longest} tokens, the encoder has "
            f"{stage.encoder.max_position_embeddings} positions; "
            f"set encoder.max_position_embeddings = {longest}"
        )
    return Inputs(artifact, tokenizer, cache)


def training_source(
    inputs: Inputs, stage: PretrainStage, *, machine: TrainingMachine, world: World
) -> BatchSource:
    """The batches of the run."""
    recipe = stage.pretrain
    lengths = sorted({phase.max_seq_length for phase in recipe.phases})
    shards = {length: inputs.shards("train", length) for length in lengths}
    purpose = f"{inputs.artifact.digest}/{stage.seed}"
    orders = {
        length: LengthOrder(length, found.rows, recipe.batch_size, purpose)
        for length, found in shards.items()
    }
    return BatchSource(
        curriculum=Curriculum(recipe.steps, recipe.phases, orders),
        shards=shards,
        share=_share(machine, world),
        cost=CostModel.of(stage.encoder, inputs.tokenizer.size),
        cls_sep=(inputs.tokenizer.cls_id, inputs.tokenizer.sep_id),
        masking=(
            DynamicMasking.of(inputs.artifact, inputs.tokenizer)
            if recipe.masks == "dynamic"
            else None
        ),
        purpose=purpose,
    )


def evaluation_source(
    inputs: Inputs, stage: PretrainStage, *, split: str, max_seq_length: int, share: Share
) -> BatchSource | None:
    """A fixed sample of a held-out split, `batches_in(source)` of them; None without the split.

    The sample is drawn by the artifact's digest alone: the same for every seed and recipe.
    """
    if not any(e.statistics.get("split") == split for e in inputs.artifact.manifest.files):
        return None
    shards = inputs.shards(split, max_seq_length)
    first_copy = (shards.rows[0],)
    wanted = min(stage.pretrain.evaluation_examples, sum(first_copy[0]))
    if not wanted:
        return None
    order = LengthOrder(max_seq_length, first_copy, min(EVALUATION_BATCH, wanted), "evaluation")
    phase = PhaseConfig(max_seq_length=max_seq_length, share=1.0)
    return BatchSource(
        curriculum=Curriculum(wanted // order.batch_size, (phase,), {max_seq_length: order}),
        shards={max_seq_length: shards},
        share=share,
        cost=CostModel.of(stage.encoder, inputs.tokenizer.size),
        cls_sep=(inputs.tokenizer.cls_id, inputs.tokenizer.sep_id),
    )


def new_model(
    stage: PretrainStage, machine: TrainingMachine, *, tokenizer: WordPieceTokenizer
) -> PretrainingModel:
    """The model, its weights drawn from the run's seed, or those of `pretrain.init`."""
    torch.manual_seed(stage.seed)
    model = PretrainingModel(
        stage.encoder,
        tokenizer.size,
        attention=machine.attention,
        checkpoint_activations=machine.checkpoint_activations,
    )
    if stage.pretrain.init:
        _begin_from(model, read_encoder_files(stage.pretrain.init), stage, tokenizer)
    if machine.compile_layers:
        model.encoder.compile_layers()
    return model


def _begin_from(
    model: PretrainingModel,
    files: EncoderFiles,
    stage: PretrainStage,
    tokenizer: WordPieceTokenizer,
) -> None:
    """Take over all weights there are; heads that are missing stay as they were drawn."""
    where = stage.pretrain.init
    if files.tokenizer.digest != tokenizer.digest:
        raise UsageError(
            f"{where}: its tokenizer is {files.tokenizer.digest[:12]}, the examples were made "
            f"with {tokenizer.digest[:12]}; set vocabulary.path to its vocab.txt"
        )
    ours, theirs = stage.encoder.model_dump(), files.config.model_dump()
    fixed = sorted(set(ours) - NOT_IN_THE_WEIGHTS)
    changed = [
        f"{name}: it has {theirs[name]}, wanted {ours[name]}"
        for name in fixed
        if theirs[name] != ours[name]
    ]
    if changed:
        raise UsageError(f"{where}: another shape ({'; '.join(changed)}); set [encoder] to its own")
    present = [n for n in model.state_dict() if hugging_face_name(n) not in files.missing]
    model.load_state_dict(from_hugging_face(files.tensors, present), strict=False)


def unigram_entropy(source: BatchSource, *, vocabulary_size: int) -> float:
    """Entropy in nats of the masked tokens in a first sample of the training examples.

    Masked places are drawn evenly, so their tokens are a sample of the text's.
    """
    batch = source.curriculum.batch(0)
    order = source.curriculum.lengths[batch.max_seq_length].epoch(0)
    shards, rows = order.locate(0, min(20_000, sum(order.shard_rows)))
    ids = source.shards[batch.max_seq_length].gather(0, shards, rows).masked_lm_ids
    return entropy(np.bincount(ids, minlength=vocabulary_size))


def matrix_rate(device: torch.device, *, precision: torch.dtype, seconds: float = 0.2) -> float:
    """FLOP/s of square matrix products on this rank, the best of a few."""
    size = 8192 if device.type == "cuda" else 1024
    left = torch.randn(size, size, device=device).to(precision)
    best, until = 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        started = time.perf_counter()
        float((left @ left)[0, 0])  # reading a number waits for the device
        best = max(best, 2.0 * size**3 / (time.perf_counter() - started))
    return best


def _share(machine: TrainingMachine, world: World) -> Share:
    chosen = GPU_TOKEN_BUDGET if world.device.type == "cuda" else CPU_TOKEN_BUDGET
    return Share(world.rank, world.ranks, machine.token_budget or chosen)
