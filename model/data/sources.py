"""Batches of an examples artifact, for training and for held-out evaluation.

In:  the examples artifact, the stage's configuration, the share of this rank.
Out: the examples' tokenizer, checked; `BatchSource`s.
"""

import numpy as np
from numpy.typing import NDArray

from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.results import HELDOUT
from cloze.artifacts.store import Artifact
from cloze.artifacts.tokenizer import SubwordTokenizer, read_tokenizer_json
from cloze.model.config import PhaseConfig, PretrainStage
from cloze.model.data.micro_batches import BatchSource, CostModel, Share
from cloze.model.data.order import BatchAddress, Curriculum, LengthOrder
from cloze.model.data.shards import ExampleShards
from cloze.model.data.targets import DynamicMasking, next_token

EVALUATION_BATCH = 256
"""Held-out examples per batch; results do not depend on it beyond rounding."""

SAMPLE = 20_000
"""Examples used to estimate the distribution of masked tokens."""


def suited_tokenizer(artifact: Artifact, stage: PretrainStage) -> SubwordTokenizer:
    """The tokenizer that the examples were made with; both suit the encoder's shape."""
    tokenizer = read_tokenizer_json(artifact.path("tokenizer.json"))
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
    return tokenizer


def training_source(
    artifact: Artifact, tokenizer: SubwordTokenizer, stage: PretrainStage, *, share: Share
) -> BatchSource:
    """The training batches of the run."""
    recipe = stage.pretrain
    lengths = sorted({phase.max_seq_length for phase in recipe.phases})
    shards = {
        length: ExampleShards(artifact, split="train", max_seq_length=length) for length in lengths
    }
    # Order and dynamic masks are keyed by artifact and seed alone: whoever repeats the run, on any
    # number of machines, reads the same batches.
    purpose = f"{artifact.digest}/{stage.seed}"
    # The batch size grows at the beginning of the run, that is, at the first phase's length.
    first_sizes = {recipe.phases[0].max_seq_length: recipe.growing_batches()}
    orders = {
        length: LengthOrder(
            length, found.rows, recipe.batch_size, purpose, first_sizes.get(length, ())
        )
        for length, found in shards.items()
    }
    dynamic = recipe.masks == "dynamic"
    return BatchSource(
        curriculum=Curriculum(recipe.steps, recipe.phases, orders),
        shards=shards,
        share=share,
        cost=CostModel.of(stage.encoder, tokenizer.size),
        cls_sep=(tokenizer.cls_id, tokenizer.sep_id),
        masking=DynamicMasking.of(artifact, tokenizer) if dynamic else None,
        next_token=next_token(artifact, stage),
        purpose=purpose,
    )


def heldout_sources(
    artifact: Artifact, tokenizer: SubwordTokenizer, stage: PretrainStage, *, share: Share
) -> dict[int, BatchSource]:
    """For each length, a fixed sample of the held-out split, as `curriculum.steps` batches.

    The sample depends only on the artifact's digest, so it is the same for every seed and recipe.
    Lengths without held-out examples are left out.
    """
    sources = {}
    if not any(e.statistics.get("split") == HELDOUT for e in artifact.manifest.files):
        return {}
    for length in {phase.max_seq_length for phase in stage.pretrain.phases}:
        shards = ExampleShards(artifact, split=HELDOUT, max_seq_length=length)
        # one copy is enough: every text once, with one set of masks
        first_copy = shards.rows[:1]
        wanted = min(stage.pretrain.evaluation_examples, sum(first_copy[0]))
        if not wanted:
            continue
        # Keyed by a constant instead of the run's seed, so that runs are compared on the same
        # sample.
        whole, rest = divmod(wanted, EVALUATION_BATCH)
        sizes = (EVALUATION_BATCH,) * whole + (rest,) * (rest > 0)
        order = LengthOrder(length, first_copy, sizes[0], "evaluation", sizes)
        phase = PhaseConfig(max_seq_length=length, share=1.0)
        sources[length] = BatchSource(
            curriculum=Curriculum(len(sizes), (phase,), {length: order}),
            shards={length: shards},
            share=share,
            cost=CostModel.of(stage.encoder, tokenizer.size),
            cls_sep=(tokenizer.cls_id, tokenizer.sep_id),
            # No `masking` here: the stored masks, the same for every run, also if it trains with
            # dynamic ones.
            next_token=next_token(artifact, stage),
        )
    return sources


def masked_token_counts(source: BatchSource) -> NDArray[np.int64]:
    """How often each word-piece is masked in a sample of the training examples.

    Masked positions are drawn uniformly, so their tokens are a sample of the text's.
    """
    length = source.curriculum.batch(0).max_seq_length
    order = source.curriculum.lengths[length]
    # An address need not be one of the run's batches: this is the beginning of epoch 0.
    sample = BatchAddress(length, 0, 0, min(SAMPLE, sum(order.rows[0])))
    shards, rows = order.locate(sample)
    ids = source.shards[length].gather(0, shards, rows).masked_lm_ids
    return np.bincount(ids)
