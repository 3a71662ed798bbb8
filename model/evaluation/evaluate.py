"""Stage evaluate: what the encoder is worth, beside what it must beat.

In:  the encoder; where it was trained on a corpus, held-out examples and the training tokens; where
     it was fine-tuned, the fits.
Out: `scores.json` (artifacts/results.py has its schema) and `masked_sentences.json`.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from artifacts.config import parse
from artifacts.errors import UsageError
from artifacts.program import run_program
from artifacts.progress import Progress
from artifacts.results import (
    LanguageModelScore,
    MaskedSentence,
    MaskedSentences,
    Scores,
    Trials,
)
from artifacts.rng import address
from artifacts.stage import StageTable
from artifacts.store import Artifact, commit, open_artifact, put_json
from model.config import EvaluateConfig, EvaluateStage, TrainingMachine
from model.data.shards import Examples, ExampleShards
from model.encoder.batch import NO_NEXT_SENTENCE
from model.encoder.pretraining import PretrainingModel
from model.evaluation.language_model import (
    Cloze,
    cloze_of,
    entropy,
    judge_counts,
    judge_encoder,
    judge_unigram,
    majority_share,
    read_examples,
)
from model.evaluation.masked_sentences import (
    guess_with_counts,
    guess_with_encoder,
    masked_ids,
    neighbours,
    side_by_side,
)
from model.evaluation.ngram import CountModel
from model.evaluation.task_scores import glue_average, task_scores
from model.evaluation.training_tokens import TRAIN_SPLIT, read_training_tokens, training_frequencies
from model.finetune.initial_encoder import InitialEncoder, read_initial_encoder
from model.training.environment import threads_per_rank

DOCUMENT_SPLIT = "heldout"


@dataclass(frozen=True)
class HeldOut:
    """Held-out examples of one split and length."""

    split: str
    max_seq_length: int
    examples: Examples
    cloze: Cloze


@dataclass(frozen=True)
class Judges:
    """Everyone who is judged."""

    ours: PretrainingModel
    random: PretrainingModel
    counts: CountModel
    unigram_entropy: float


@dataclass(frozen=True)
class Reading:
    """What an encoder makes of text of its corpus that it has not seen; nothing without one."""

    language_model: tuple[LanguageModelScore, ...] = ()
    sentences: tuple[MaskedSentence, ...] = ()


def evaluate(table: StageTable, engine_options: list[str]) -> Artifact:
    """Run the stage."""
    stage = parse(EvaluateStage, table.config, source="stage table")
    machine = parse(TrainingMachine, table.machine, source="stage table, machine")
    torch.set_num_threads(threads_per_rank(machine))
    beginning = read_initial_encoder(table.input_path("encoder"))
    has_corpus = "examples" in table.inputs
    progress = Progress("evaluate", total=4 if has_corpus else 1, unit="parts", interval=0.0)
    reading = _reading(table, stage, beginning, progress) if has_corpus else Reading()
    fits = _fits(table)
    tasks = task_scores(fits, beginning.config, published=stage.published)
    scores = Scores(
        parameters=beginning.parameter_count,
        language_model=reading.language_model,
        tasks=tasks,
        glue_average=glue_average(fits, tasks),
    )
    progress.advance(1, "task scores")
    return _finish(table, scores, MaskedSentences(sentences=reading.sentences))


def _reading(
    table: StageTable, stage: EvaluateStage, beginning: InitialEncoder, progress: Progress
) -> Reading:
    """Judge the encoder on held-out text, and let it fill the gaps of the sentences."""
    examples = open_artifact(table.input_path("examples"))
    _require_same_tokenizer(examples, beginning)
    parts = held_out(examples, beginning, limit=stage.evaluate.examples)
    tokens = open_artifact(table.input_path("tokens"))
    counts = _count_model(tokens, parts, beginning, stage.evaluate)
    progress.advance(1, "count model")
    judges = Judges(
        ours=beginning.pretraining_model(pretrained=True, seed=0),
        random=beginning.pretraining_model(
            pretrained=False, seed=address(stage.seed, "random encoder") >> 2
        ),
        counts=counts,
        unigram_entropy=entropy(training_frequencies(tokens)),
    )
    language_model = tuple(_language_model(part, judges, parts) for part in parts)
    progress.advance(1, "held-out loss")
    sentences = _sentences(stage.evaluate, judges, beginning)
    progress.advance(1, "masked sentences")
    return Reading(language_model, sentences)


def held_out(examples: Artifact, beginning: InitialEncoder, *, limit: int) -> list[HeldOut]:
    """Every split but the training one, at every length."""
    kinds = {
        (str(entry.statistics["split"]), int(entry.statistics["max_seq_length"]))
        for entry in examples.manifest.files
        if "max_seq_length" in entry.statistics and (entry.rows is None or entry.rows > 0)
    }
    found = []
    for split, length in sorted(kinds):
        if split != TRAIN_SPLIT:
            shards = ExampleShards(examples, split=split, max_seq_length=length)
            read = read_examples(shards, limit=limit)
            if len(read):
                cloze = cloze_of(read, beginning.tokenizer.special_ids)
                found.append(HeldOut(split, length, read, cloze))
    return found


def _require_same_tokenizer(examples: Artifact, beginning: InitialEncoder) -> None:
    theirs = examples.manifest.statistics.get("tokenizer_digest")
    ours = beginning.tokenizer.digest
    if theirs is not None and theirs != ours:
        raise UsageError(
            f"{examples.directory}: made with tokenizer {str(theirs)[:12]}, the encoder has "
            f"{ours[:12]}; evaluate with the examples it was trained on, or prepare them again"
        )


def _count_model(
    tokens: Artifact, parts: list[HeldOut], beginning: InitialEncoder, config: EvaluateConfig
) -> CountModel:
    tokenizer = beginning.tokenizer
    stream = read_training_tokens(tokens, limit=config.count_model_tokens)
    frequencies = training_frequencies(tokens)
    shown = [
        neighbours(*masked_ids(sentence, tokenizer), tokenizer)
        for sentence in config.masked_sentences
    ]
    ours = np.array(shown, np.int64).reshape(-1, 2)
    left = np.concatenate([*(part.cloze.left for part in parts), ours[:, 0]])
    right = np.concatenate([*(part.cloze.right for part in parts), ours[:, 1]])
    pairs = np.unique(left * tokenizer.size + right)
    return CountModel(stream, frequencies, pairs=pairs)


def _language_model(part: HeldOut, judges: Judges, parts: list[HeldOut]) -> LanguageModelScore:
    ours = judge_encoder(judges.ours, part.examples)
    counts = judge_counts(judges.counts, part.cloze)
    unigram = judge_unigram(judges.counts.unigram_V, part.cloze)
    labels = part.examples.next_sentence_labels
    return LanguageModelScore(
        split=part.split,
        headline=_is_headline(part, parts),
        max_seq_length=part.max_seq_length,
        examples=len(part.examples),
        masked_tokens=len(part.cloze.words),
        mlm_loss=ours.mlm_loss,
        mlm_accuracy=ours.mlm_accuracy,
        mlm_perplexity=math.exp(min(ours.mlm_loss, 700.0)),
        random_mlm_loss=judge_encoder(judges.random, part.examples).mlm_loss,
        unigram_entropy=judges.unigram_entropy,
        unigram_loss=unigram.mlm_loss,
        unigram_accuracy=unigram.mlm_accuracy,
        count_model_loss=counts.mlm_loss,
        count_model_accuracy=counts.mlm_accuracy,
        next_sentence_examples=int((labels != NO_NEXT_SENTENCE).sum()),
        next_sentence_accuracy=ours.next_sentence_accuracy,
        next_sentence_majority=majority_share(labels),
    )


def _is_headline(part: HeldOut, parts: list[HeldOut]) -> bool:
    """A whole held-out source leads, at the shortest length; documents where there is none."""
    sources = [other for other in parts if other.split != DOCUMENT_SPLIT] or parts
    first = min(sources, key=lambda other: (other.max_seq_length, other.split))
    return (part.split, part.max_seq_length) == (first.split, first.max_seq_length)


def _sentences(
    config: EvaluateConfig, judges: Judges, beginning: InitialEncoder
) -> tuple[MaskedSentence, ...]:
    sentences, tokenizer = config.masked_sentences, beginning.tokenizer
    if not sentences:
        return ()
    random = guess_with_encoder(sentences, judges.random, tokenizer, count=config.guesses)
    return side_by_side(
        sentences,
        [
            [guess.model_copy(update={"system": "random"}) for guess in random],
            guess_with_counts(sentences, judges.counts, tokenizer, count=config.guesses),
            guess_with_encoder(sentences, judges.ours, tokenizer, count=config.guesses),
        ],
    )


def _fits(table: StageTable) -> Trials:
    """All fits; none where nothing was fine-tuned."""
    if "finetune" not in table.inputs:
        return Trials(tasks=(), fits=())
    return Trials.model_validate(open_artifact(table.input_path("finetune")).read_json("fits.json"))


def _finish(table: StageTable, scores: Scores, sentences: MaskedSentences) -> Artifact:
    files = [
        put_json(table.output, scores.model_dump(mode="json"), name="scores.json"),
        put_json(table.output, sentences.model_dump(mode="json"), name="masked_sentences.json"),
    ]
    return commit(table, files)


if __name__ == "__main__":
    run_program(evaluate)
