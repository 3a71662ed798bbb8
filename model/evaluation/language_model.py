"""The language model beside its baselines: on masked tokens of held-out text, and in sentences.

In:  the examples, whose held-out splits are read, and the training tokens; the encoder before and
     after training.
Out: losses in nats and top-1 accuracies, for every model on exactly the same masked tokens; the
     most probable tokens of every model for sentences with a [MASK], configured or from the corpus.

A run without configured sentences takes some from its held-out text, regardless of how well a model
fills them: the first sentences of suitable length in each held-out document, in the order of their
digests, each with a word masked by a counter-based random number.
"""

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cloze.artifacts.arrays import entropy
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import Progress
from cloze.artifacts.results import (
    GENERAL,
    HELDOUT,
    TRAIN,
    Guesses,
    LanguageModelScore,
    MaskedSentence,
)
from cloze.artifacts.rng import address
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, open_artifact
from cloze.artifacts.tokenizer import MASK, SubwordTokenizer
from cloze.model.config import EvaluateStage
from cloze.model.data.batch import NO_NEXT_SENTENCE, Example, pack_sequences, ragged_indices
from cloze.model.data.documents import document_files, token_batches, training_frequencies
from cloze.model.data.micro_batches import pack_examples
from cloze.model.data.order import LengthOrder
from cloze.model.data.shards import Examples, ExampleShards, select
from cloze.model.data.targets import NextToken
from cloze.model.encoder.models import PretrainingModel
from cloze.model.evaluation.ngram import (
    NOTHING,
    NgramModel,
    read_training_tokens,
)
from cloze.model.hugging_face.changed_vocabulary import with_vocabulary
from cloze.model.hugging_face.model_files import EncoderFiles, read_encoder_files
from cloze.model.tasks.features import around_masks, batches_by_length, tokens_at_once
from cloze.model.training.distributed import World

# M masked tokens, V vocabulary, N sentences

Int64 = NDArray[np.int64]
Ids = NDArray[np.integer]

SENTENCES = 8
DOCUMENTS = 64
"""Held-out documents to take sentences from."""
FEWEST_WORDS, MOST_WORDS = 6, 24
"""Including punctuation marks."""
MOST_TOKENS = 48
"""The smallest encoders have 64 positions."""
SHORTEST_WORD = 4
"""In letters, of which a Hangul syllable counts as two and an ideograph as four. Shorter words are
mostly articles and prepositions, which any baseline predicts."""

_NO_SPACE = re.compile(r" ([.,;:!?)\]%’،؛؟۔।»”])|(?<=[«„]) ")
"""No space is written before these characters, or after some; the tokenizer splits them off."""

_IDEOGRAPH = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003347f"
_WIDE = rf"[\u3000-\u303f\uff00-\uff60{_IDEOGRAPH}]"
_NO_SPACE_BESIDE_IDEOGRAPHS = re.compile(
    rf"(?<={_WIDE}) (?={_WIDE}|\[MASK\])|(?<=\[MASK\]) (?={_WIDE})"
)
_IDEOGRAPHS, _HANGUL = re.compile(f"[{_IDEOGRAPH}]"), re.compile("[\uac00-\ud7a3]")


@dataclass(frozen=True)
class MaskedTokens:
    """The masked tokens of some examples, as input to the n-gram baseline."""

    left: Int64
    """[M] visible left neighbour; `NOTHING` for a special token."""

    right: Int64
    """[M] visible right neighbour."""

    words: Int64
    """[M] the original ids."""


@dataclass(frozen=True)
class HeldOut:
    """Held-out examples of one split and length."""

    split: str
    max_seq_length: int
    examples: Examples
    masked: MaskedTokens


class Quality(NamedTuple):
    """Means over masked tokens, and over examples with a next-sentence label."""

    mlm_loss: float
    mlm_accuracy: float
    next_sentence_accuracy: float | None = None


@dataclass(frozen=True)
class Encoders:
    """The encoders to compare."""

    pretrained: PretrainingModel
    random: PretrainingModel
    initial: PretrainingModel | None = None
    """The initial checkpoint of pre-training, if it can fill masks."""
    next_token: NextToken | None = None
    """How the encoder predicts masked tokens if it is a unidirectional language model."""

    def qualities(self, part: HeldOut, world: World) -> dict[str, Quality]:
        """By name of the encoder, on examples that the ranks of `world` share."""
        # All predict the same tokens; a unidirectional one sees only one side of the text.
        examples = self.next_token.at_masked(part.examples) if self.next_token else part.examples
        models = {"pretrained": self.pretrained, "initial": self.initial, "random": self.random}
        return {
            name: evaluate_encoder(model, examples, world)
            for name, model in models.items()
            if model
        }


@dataclass(frozen=True)
class CountModel:
    """The n-gram baseline, of one process, as it fills much memory."""

    ngram: NgramModel
    unigram_entropy: float


class HeldOutResults(NamedTuple):
    """What an encoder predicts on held-out text; empty without a corpus."""

    scores: tuple[LanguageModelScore, ...] = ()
    sentences: tuple[MaskedSentence, ...] = ()


def evaluate_language_model(
    table: StageTable,
    stage: EvaluateStage,
    encoder: EncoderFiles,
    progress: Progress,
    *,
    world: World,
) -> HeldOutResults:
    """Scores on held-out text, and predictions for masked sentences; the first rank has both.

    The other ranks compute their share of the encoders' losses, and return nothing. Sentences are
    the configured ones, else drawn from the held-out text. Everything is computed in fp32, even on
    GPUs, since scores are compared between machines.
    """
    config, tokenizer = stage.evaluate, encoder.tokenizer
    examples = _suited_examples(config.heldout_examples or table.input_path("examples"), tokenizer)
    next_token = None
    if encoder.objective == "next_token":
        next_token = NextToken.of(encoder.config.attention_direction)
        if config.masked_sentences:
            raise UsageError(
                "evaluate.masked_sentences: this encoder was pre-trained to predict next tokens, "
                "without [MASK]; leave them out"
            )
    parts = held_out(
        examples,
        special_ids=tokenizer.special_ids,
        limit=config.examples,
        mask_id=tokenizer.mask_id if config.all_masked else None,
    )
    # any seed, but not that of the encoder's own initialisation
    random_seed = address(stage.seed, "random encoder") >> 2
    encoders = Encoders(
        pretrained=encoder.pretraining_model(pretrained=True, seed=0).to(world.device),
        initial=None if next_token else _initial_model(table, encoder, world.device),
        random=encoder.pretraining_model(pretrained=False, seed=random_seed).to(world.device),
        next_token=next_token,
    )
    qualities = [encoders.qualities(part, world) for part in parts]
    if not world.is_first:
        return HeldOutResults()
    progress.advance(1, "held-out loss")
    tokens = open_artifact(table.input_path("tokens"))
    frequencies = training_frequencies(tokens)
    sentences = tuple(MaskedSentence(sentence=text, guesses=()) for text in config.masked_sentences)
    if not sentences and next_token is None:  # a next-token encoder fills no masks
        sentences = heldout_sentences(tokens, tokenizer, seed=stage.seed)
    texts = [sentence.sentence for sentence in sentences]
    contexts = [(part.masked.left, part.masked.right) for part in parts]
    # The counts need only the contexts that will be asked for, which saves most of their memory.
    ngram = NgramModel(
        read_training_tokens(tokens, limit=config.count_model_tokens),
        frequencies,
        contexts=[*contexts, sentence_neighbours(texts, tokenizer)],
    )
    counted = CountModel(ngram, unigram_entropy=entropy(frequencies))
    scores = tuple(
        score_held_out(part, found, counted, parts)
        for part, found in zip(parts, qualities, strict=True)
    )
    progress.advance(1, "n-gram baseline")
    sentences = fill_sentences(sentences, encoders, ngram, tokenizer, count=config.guesses)
    progress.advance(1, "masked sentences")
    return HeldOutResults(scores, sentences)


def _suited_examples(directory: str, tokenizer: SubwordTokenizer) -> Artifact:
    """The held-out examples, refused if another tokenizer made them: their ids mean other words."""
    examples = open_artifact(directory)
    digest = examples.manifest.statistics.get("tokenizer_digest")
    if digest is not None and digest != tokenizer.digest:
        raise UsageError(
            f"{examples.directory}: made with tokenizer {str(digest)[:12]}, the encoder has "
            f"{tokenizer.digest[:12]}; evaluate with the examples it was trained on, or prepare "
            "them again"
        )
    return examples


def _initial_model(
    table: StageTable, encoder: EncoderFiles, device: torch.device
) -> PretrainingModel | None:
    """The initial checkpoint of pre-training, if there was one and it can fill masks."""
    if "init" not in table.inputs:
        return None
    initial = read_encoder_files(table.input_path("init"))
    initial = initial.reaching(encoder.config.max_position_embeddings)
    if not initial.fills_masks:
        return None
    # Both predict the tokens of the same examples, which may have words that were added.
    initial = with_vocabulary(initial, encoder.tokenizer)
    return initial.pretraining_model(pretrained=True, seed=0).to(device)


def held_out(
    examples: Artifact, *, special_ids: frozenset[int], limit: int, mask_id: int | None = None
) -> list[HeldOut]:
    """Every split but train, at every length, with at most `limit` examples each.

    `mask_id`, if given, replaces every predicted token, whatever the examples have there.
    """
    kinds = {
        (str(entry.statistics["split"]), int(entry.statistics["max_seq_length"]))
        for entry in examples.manifest.files
        if "max_seq_length" in entry.statistics and (entry.rows is None or entry.rows > 0)
    }
    found = []
    for split, length in sorted(kinds):
        if split == TRAIN:
            continue
        shards = ExampleShards(examples, split=split, max_seq_length=length)
        if not sum(shards.rows[0]):
            continue
        if shards.source_names:
            # Rows are grouped by source, of which the first ones would miss some.
            order = LengthOrder(length, shards.rows[:1], 1, "evaluation")
            _, shard, row = order.locate(order.first_examples(limit))
        else:
            # The first examples of copy 0: buckets are assigned by hash, so this is a fair sample.
            counts = np.minimum(np.array(shards.rows[0]), limit)
            shard, row = np.repeat(np.arange(len(counts)), counts), ragged_indices(0, counts)
        read = shards.gather(0, shard[:limit], row[:limit])
        if mask_id is not None:
            input_ids = read.input_ids.copy()
            input_ids[read.masked_places] = mask_id
            read = replace(read, input_ids=input_ids)
        if len(read):
            found.append(HeldOut(split, length, read, masked_tokens(read, special_ids)))
    return found


def masked_tokens(examples: Examples, special_ids: frozenset[int]) -> MaskedTokens:
    """Neighbours and labels of every masked token."""
    places = examples.masked_places
    ids = examples.input_ids.astype(np.int64)
    # Special tokens say nothing to an n-gram model, [MASK] included.
    visible = np.where(np.isin(ids, sorted(special_ids)), NOTHING, ids)
    # The first position is [CLS] and the last one [SEP], so a masked token has two neighbours.
    words = examples.masked_lm_ids.astype(np.int64)
    return MaskedTokens(visible[places - 1], visible[places + 1], words)


def evaluate_ngram(model: NgramModel, masked: MaskedTokens) -> Quality:
    """Loss and accuracy of the n-gram baseline on these tokens."""
    loss, hits = 0.0, 0
    for part, probabilities in model.chunks(masked.left, masked.right):
        words = masked.words[part]
        loss -= float(np.log(probabilities[np.arange(len(words)), words]).sum(dtype=np.float64))
        hits += int((probabilities.argmax(-1) == words).sum())
    return Quality(loss / len(masked.words), hits / len(masked.words))


def evaluate_unigram(unigram_V: NDArray[np.float32], masked: MaskedTokens) -> Quality:
    """Loss and accuracy of the unigram distribution on these tokens."""
    probabilities = unigram_V[masked.words].astype(np.float64)
    return Quality(
        float(-np.log(probabilities).mean()), float((masked.words == unigram_V.argmax()).mean())
    )


@torch.inference_mode()
def evaluate_encoder(model: PretrainingModel, examples: Examples, world: World) -> Quality:
    """Losses and accuracies of the encoder with its pre-training heads, the same on all ranks.

    Ranks share the batches, and all add up the same numbers in the same order.
    """
    model.eval()
    budget = tokens_at_once(world.device)
    batches = list(batches_by_length(examples.lengths, token_budget=budget))
    # One row per batch and not one sum per rank: float addition is not associative, and a sum of
    # sums would change with the number of ranks. Rows that are zero on all ranks but one add
    # exactly.
    by_batch = torch.zeros(len(batches), 3, dtype=torch.float64, device=world.device)
    for number in range(world.rank, len(batches), world.ranks):
        found = model(pack_examples(select(examples, batches[number])).to(world.device))
        scores = (found.masked_lm_loss, found.masked_lm_correct, found.next_sentence_correct)
        by_batch[number] = torch.stack([score.double() for score in scores])
    sums: list[float] = world.sum_tensor(by_batch).cumsum(0)[-1].tolist()  # one after another
    masked = int(examples.masked_counts.sum())
    pairs = int((examples.next_sentence_labels != NO_NEXT_SENTENCE).sum())
    return Quality(sums[0] / masked, sums[1] / masked, sums[2] / pairs if pairs else None)


def score_held_out(
    part: HeldOut, encoders: Mapping[str, Quality], counted: CountModel, parts: list[HeldOut]
) -> LanguageModelScore:
    """Scores of every model on one of the held-out `parts`; those of `encoders` are given."""
    # The headline is a source held out entirely, at the shortest length, else held-out documents.
    corpus = [other for other in parts if other.split != GENERAL] or parts
    sources = [other for other in corpus if other.split != HELDOUT] or corpus
    first = min(sources, key=lambda other: (other.max_seq_length, other.split))
    pretrained, initial = encoders["pretrained"], encoders.get("initial")
    ngram = evaluate_ngram(counted.ngram, part.masked)
    unigram = evaluate_unigram(counted.ngram.unigram_V, part.masked)
    labels = part.examples.next_sentence_labels
    return LanguageModelScore(
        split=part.split,
        headline=(part.split, part.max_seq_length) == (first.split, first.max_seq_length),
        max_seq_length=part.max_seq_length,
        examples=len(part.examples),
        masked_tokens=len(part.masked.words),
        mlm_loss=pretrained.mlm_loss,
        mlm_accuracy=pretrained.mlm_accuracy,
        # e^700 is nearly the largest float.
        mlm_perplexity=math.exp(min(pretrained.mlm_loss, 700.0)),
        initial_mlm_loss=initial.mlm_loss if initial else None,
        initial_mlm_accuracy=initial.mlm_accuracy if initial else None,
        random_mlm_loss=encoders["random"].mlm_loss,
        unigram_entropy=counted.unigram_entropy,
        unigram_loss=unigram.mlm_loss,
        unigram_accuracy=unigram.mlm_accuracy,
        count_model_loss=ngram.mlm_loss,
        count_model_accuracy=ngram.mlm_accuracy,
        next_sentence_examples=int((labels != NO_NEXT_SENTENCE).sum()),
        next_sentence_accuracy=pretrained.next_sentence_accuracy,
        next_sentence_majority=majority_share(labels),
    )


def majority_share(labels: Int64) -> float | None:
    """Share of the more frequent next-sentence label; None if no example has one."""
    present = labels[labels != NO_NEXT_SENTENCE]
    return float(np.bincount(present).max() / len(present)) if len(present) else None


def heldout_sentences(
    tokens: Artifact, tokenizer: SubwordTokenizer, *, seed: int
) -> tuple[MaskedSentence, ...]:
    """Up to `SENTENCES` sentences of the first held-out split, without predictions yet.

    Empty if nothing is held out.
    """
    by_document = [
        list(islice(_sentences(digest, sentences, tokenizer, seed=seed), SENTENCES))
        for digest, sentences in islice(_documents(tokens), DOCUMENTS)
    ]
    # One sentence of every document in turn, so that no long document supplies them all.
    in_turn = (found for of_each in zip_longest(*by_document) for found in of_each if found)
    return tuple(islice(in_turn, SENTENCES))


def _documents(tokens: Artifact) -> Iterator[tuple[str, list[Ids]]]:
    """Digest and sentences of documents in the first held-out split, in the order of buckets."""
    others = (TRAIN, GENERAL)
    held = [(split, entry) for split, entry in document_files(tokens) if split not in others]
    # The first split by name; GENERAL is text of another kind.
    first = min((split for split, entry in held if entry.rows), default="")
    for entry in (entry for split, entry in held if split == first):
        for batch in token_batches(tokens, entry.name):
            for row in batch.slice(0, DOCUMENTS).to_pylist():
                ends = np.cumsum(row["sentence_lengths"])[:-1]
                yield row["document_digest"].hex(), np.split(np.array(row["token_ids"]), ends)


def _sentences(
    digest: str, sentences: list[Ids], tokenizer: SubwordTokenizer, *, seed: int
) -> Iterator[MaskedSentence]:
    """A document's sentences of suitable length, each with a word masked.

    With a tokenizer that does not mark where words begin, every token counts as a word.
    """
    for number, ids in enumerate(sentences):
        pieces = [tokenizer.vocabulary[index] for index in ids.tolist()]
        # Where words begin: no word-piece with ## follows; the end counts as a beginning.
        begins = [not piece.startswith("##") for piece in [*pieces, ""]]
        fits = FEWEST_WORDS < sum(begins) <= MOST_WORDS + 1 and len(pieces) <= MOST_TOKENS
        if not fits or tokenizer.unk_id in ids:
            continue
        words = [
            place
            for place, piece in enumerate(pieces)
            # Words of a single piece, so that one [MASK] stands for the whole word.
            if begins[place] and begins[place + 1] and _letters(piece) >= SHORTEST_WORD
        ]
        if not words:
            continue
        place = words[address(seed, digest, number, "gap") % len(words)]
        masked = " ".join([*pieces[:place], MASK, *pieces[place + 1 :]]).replace(" ##", "")
        text = _NO_SPACE_BESIDE_IDEOGRAPHS.sub("", _NO_SPACE.sub(r"\1", masked))
        yield MaskedSentence(sentence=text, guesses=(), answer=pieces[place])


def _letters(piece: str) -> int:
    """The length of a word; 0 for what is none."""
    # Vowel signs are marks, not letters.
    if not all(one.isalpha() or unicodedata.category(one)[0] == "M" for one in piece):
        return 0
    return len(piece) + 3 * len(_IDEOGRAPHS.findall(piece)) + len(_HANGUL.findall(piece))


def fill_sentences(
    sentences: Sequence[MaskedSentence],
    encoders: Encoders,
    ngram: NgramModel,
    tokenizer: SubwordTokenizer,
    *,
    count: int,
) -> tuple[MaskedSentence, ...]:
    """The sentences with the `count` most probable tokens of every model."""
    if not sentences:
        return ()
    texts = [sentence.sentence for sentence in sentences]
    rows_by_system = {
        "random": _encoder_rows(texts, encoders.random, tokenizer),
        "count": ngram.probabilities(*sentence_neighbours(texts, tokenizer)),
        "pretrained": _encoder_rows(texts, encoders.pretrained, tokenizer),
    }
    filled = []
    for number, sentence in enumerate(sentences):
        guesses = []
        for system, rows in rows_by_system.items():
            # Stable, so that the lower id comes first among equals: an untrained encoder has many.
            best = np.argsort(-rows[number], kind="stable")[:count]
            guesses.append(
                Guesses(
                    system=system,
                    words=tuple(tokenizer.vocabulary[index] for index in best.tolist()),
                    probabilities=tuple(float(rows[number][index]) for index in best),
                )
            )
        filled.append(sentence.model_copy(update={"guesses": tuple(guesses)}))
    return tuple(filled)


def sentence_neighbours(
    sentences: Sequence[str], tokenizer: SubwordTokenizer
) -> tuple[Int64, Int64]:
    """[N] ids to the left and right of each sentence's [MASK]; `NOTHING` for a special token."""
    pairs = []
    for ids, place in (_masked_ids(sentence, tokenizer) for sentence in sentences):
        seen = (ids[place - 1], ids[place + 1])
        pairs.append([NOTHING if one in tokenizer.special_ids else one for one in seen])
    left, right = np.array(pairs, np.int64).reshape(-1, 2).T
    return left, right


def _masked_ids(sentence: str, tokenizer: SubwordTokenizer) -> tuple[list[int], int]:
    """[CLS] sentence [SEP], and the position of its [MASK]."""
    if sentence.count(MASK) != 1:
        raise UsageError(
            f"evaluate.masked_sentences: {sentence!r} has {sentence.count(MASK)} [MASK], "
            "expected exactly one"
        )
    ids, (place,) = around_masks(tokenizer, sentence)
    return ids, place


@torch.inference_mode()
def _encoder_rows(
    sentences: Sequence[str], model: PretrainingModel, tokenizer: SubwordTokenizer
) -> NDArray[np.float32]:
    """[N, V] probabilities of an encoder at each [MASK]."""
    model.eval()
    masked = [_masked_ids(sentence, tokenizer) for sentence in sentences]
    batch = pack_sequences(
        [Example(input_ids=ids, masked_lm_positions=[place]) for ids, place in masked]
    )
    batch = batch.to(next(model.parameters()).device)
    logits = model.masked_lm_logits(model.encoder(batch), batch.masked_lm_positions)
    rows: NDArray[np.float32] = logits.float().softmax(-1).cpu().numpy()
    return rows
