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
from cloze.model.config import PhaseConfig, PretrainConfig, PretrainStage
from cloze.model.data.micro_batches import BatchSource, CostModel, Share
from cloze.model.data.order import (
    Curriculum,
    Deal,
    LengthOrder,
    MixedOrder,
    Order,
    phase_ends,
)
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
    orders: dict[int, Order] = {}
    for length, found in shards.items():
        whole = LengthOrder(
            length, found.rows, recipe.batch_size, purpose, first_sizes.get(length, ())
        )
        orders[length] = mixed(whole, found, recipe) if found.source_names else whole
    if recipe.mixes and not next(iter(shards.values())).source_names:
        raise UsageError(
            f"pretrain has a mixture, but the examples in {artifact.directory} are not told apart "
            "by source; give every source of the corpus a name, and make them again"
        )
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


def mixed(whole: LengthOrder, shards: ExampleShards, recipe: PretrainConfig) -> MixedOrder:
    """The order of `whole`, with the examples of each phase mixed as the recipe says."""
    tokens = shards.source_tokens
    names = [name for name, count in tokens.items() if count]
    sources, lengths = [], []
    for name in names:
        rows, begins = shards.of_source(name)
        purpose = f"{whole.purpose}/{name}"
        order = LengthOrder(whole.max_seq_length, rows, whole.batch_size, purpose, begins=begins)
        sources.append(order)
        lengths.append(tokens[name] / sum(map(sum, rows)))
    deals: list[tuple[int, Deal]] = []
    first = begin = 0
    for phase, end in zip(recipe.phases, phase_ends(recipe.steps, recipe.phases), strict=True):
        if phase.max_seq_length == whole.max_seq_length:
            shares = recipe.shares(phase, tokens)
            # Shares are of tokens; a source with short examples gives more of them.
            of_examples = [shares[name] / mean for name, mean in zip(names, lengths, strict=True)]
            deals.append((first, Deal.of(of_examples)))
            first += recipe.sequences(begin, end)
        begin = end
    return MixedOrder(
        max_seq_length=whole.max_seq_length,
        names=tuple(names),
        sources=tuple(sources),
        batch_size=whole.batch_size,
        deals=tuple(deals),
        first_sizes=whole.first_sizes,
    )


def heldout_sources(
    artifact: Artifact,
    tokenizer: SubwordTokenizer,
    stage: PretrainStage,
    *,
    share: Share,
    name: str = "",
) -> dict[int, BatchSource]:
    """For each length, a fixed sample of the held-out split, as `curriculum.steps` batches.

    The sample depends only on the artifact's digest, so it is the same for every seed and recipe.
    Lengths without held-out examples are left out. name: of one source only.
    """
    sources = {}
    if not any(e.statistics.get("split") == HELDOUT for e in artifact.manifest.files):
        return {}
    for length in {phase.max_seq_length for phase in stage.pretrain.phases}:
        shards = ExampleShards(artifact, split=HELDOUT, max_seq_length=length)
        rows, begins = shards.of_source(name) if name else (shards.rows, ())
        # one copy is enough: every text once, with one set of masks
        first_copy = rows[:1]
        wanted = min(stage.pretrain.evaluation_examples, sum(first_copy[0]))
        if not wanted:
            continue
        # Keyed by a constant instead of the run's seed, so that runs are compared on the same
        # sample.
        whole, rest = divmod(wanted, EVALUATION_BATCH)
        sizes = (EVALUATION_BATCH,) * whole + (rest,) * (rest > 0)
        order = LengthOrder(length, first_copy, sizes[0], "evaluation", sizes, begins[:1])
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


def heldout_by_source(
    artifact: Artifact, tokenizer: SubwordTokenizer, stage: PretrainStage, *, share: Share
) -> dict[str, dict[int, BatchSource]]:
    """`heldout_sources` of each source by name, among which evaluation examples are divided."""
    names = artifact.manifest.statistics.get("sources", ())
    each = max(stage.pretrain.evaluation_examples // max(len(names), 1), 1)
    recipe = stage.pretrain.model_copy(update={"evaluation_examples": each})
    divided = stage.model_copy(update={"pretrain": recipe})
    return {
        name: heldout_sources(artifact, tokenizer, divided, share=share, name=name)
        for name in names
    }


def mixed_names(source: BatchSource) -> tuple[str, ...]:
    """The names of the sources that are mixed; empty if they are not."""
    order = next(iter(source.curriculum.lengths.values()))
    return order.names if isinstance(order, MixedOrder) else ()


def mixed_epochs(source: BatchSource) -> dict[str, float]:
    """How often the run reads each source, over all sequence lengths; empty without a mixture."""
    epochs: dict[str, float] = dict.fromkeys(mixed_names(source), 0.0)
    for length, order in source.curriculum.lengths.items():
        if isinstance(order, MixedOrder):
            read = order.before(source.curriculum.examples(length)).tolist()
            for name, count, own in zip(order.names, read, order.sources, strict=True):
                epochs[name] += count / (sum(map(sum, own.rows)) / own.copies)
    return epochs


def masked_token_counts(source: BatchSource) -> NDArray[np.int64]:
    """How often each word-piece is masked in a sample of the training examples.

    Masked positions are drawn uniformly, so their tokens are a sample of the text's.
    """
    length = source.curriculum.batch(0).max_seq_length
    order = source.curriculum.lengths[length]
    # An address need not be one of the run's batches.
    places = order.locate(order.first_examples(SAMPLE))
    ids = source.shards[length].gather(*places).masked_lm_ids
    return np.bincount(ids)
