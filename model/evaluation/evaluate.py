"""Stage evaluate: scores of the encoder and of the baselines it must beat.

In:  the encoder. If it was pre-trained on a corpus: held-out examples, the training tokens, and the
     initial checkpoint if there was one. If it was fine-tuned: the trials.
Out: `scores.json` and `masked_sentences.json` (schema: artifacts/results.py).
"""

import torch

from artifacts.config import parse
from artifacts.errors import UsageError
from artifacts.progress import Progress
from artifacts.results import (
    LanguageModelScore,
    MaskedSentence,
    MaskedSentences,
    Scores,
    Trials,
)
from artifacts.rng import address
from artifacts.runtime.program import run_program
from artifacts.stage import StageTable
from artifacts.store import Artifact, commit, open_artifact, put_json
from model.config import EvaluateStage, TrainingMachine
from model.data.targets import NextToken
from model.encoder.models import PretrainingModel
from model.evaluation.language_model import LanguageModels, held_out, score_held_out
from model.evaluation.masked_sentences import (
    fill_sentences,
    heldout_sentences,
    sentence_neighbours,
)
from model.evaluation.ngram import NgramModel, read_training_tokens, training_frequencies
from model.evaluation.scores import glue_average, task_scores
from model.hugging_face.model_files import EncoderFiles, read_encoder_files
from model.training.distributed import training_device
from model.training.health import entropy
from model.training.start import restart_prepared, threads_per_rank
from model.training.waiting import patient_threads


def evaluate(table: StageTable, engine_options: list[str]) -> Artifact:
    """Run the stage."""
    stage = parse(EvaluateStage, table.config, source="stage table")
    machine = parse(TrainingMachine, table.machine, source="stage table, machine")
    threads = threads_per_rank(machine)
    torch.set_num_threads(threads)
    device = training_device(machine.device)
    encoder = read_encoder_files(table.input_path("encoder"))
    has_corpus = "examples" in table.inputs
    progress = Progress("evaluate", total=4 if has_corpus else 1, unit="parts", interval=0.0)
    with patient_threads(threads):
        language_model, sentences = (
            _evaluate_language_model(table, stage, encoder, progress, device=device)
            if has_corpus
            else ((), ())
        )
    trials = Trials(tasks=(), fits=())
    if "finetune" in table.inputs:
        found = open_artifact(table.input_path("finetune")).read_json("fits.json")
        trials = Trials.model_validate(found)
    tasks = task_scores(trials, encoder.config, published=stage.published)
    progress.advance(1, "task scores")
    scores = Scores(
        parameters=encoder.parameter_count,
        language_model=language_model,
        tasks=tasks,
        glue_average=glue_average(trials, tasks),
    )
    filled = MaskedSentences(sentences=sentences)
    files = [
        put_json(table.output, scores.model_dump(mode="json"), name="scores.json"),
        put_json(
            table.output,
            filled.model_dump(mode="json", exclude_defaults=True),
            name="masked_sentences.json",
        ),
    ]
    return commit(table, files)


def _evaluate_language_model(
    table: StageTable,
    stage: EvaluateStage,
    encoder: EncoderFiles,
    progress: Progress,
    *,
    device: torch.device,
) -> tuple[tuple[LanguageModelScore, ...], tuple[MaskedSentence, ...]]:
    """Scores on held-out text, and predictions for masked sentences.

    Sentences are the configured ones, else drawn from the held-out text. Everything is computed in
    fp32, even on GPUs, since scores are compared between machines.
    """
    config, tokenizer = stage.evaluate, encoder.tokenizer
    examples = open_artifact(config.heldout_examples or table.input_path("examples"))
    digest = examples.manifest.statistics.get("tokenizer_digest")
    if digest is not None and digest != tokenizer.digest:
        raise UsageError(
            f"{examples.directory}: made with tokenizer {str(digest)[:12]}, the encoder has "
            f"{tokenizer.digest[:12]}; evaluate with the examples it was trained on, or prepare "
            "them again"
        )
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
    tokens = open_artifact(table.input_path("tokens"))
    frequencies = training_frequencies(tokens)
    sentences = tuple(MaskedSentence(sentence=text, guesses=()) for text in config.masked_sentences)
    if not sentences and next_token is None:  # a next-token encoder fills no masks
        sentences = heldout_sentences(tokens, tokenizer, seed=stage.seed)
    texts = [sentence.sentence for sentence in sentences]
    contexts = [(part.masked.left, part.masked.right) for part in parts]
    random_seed = address(stage.seed, "random encoder") >> 2
    models = LanguageModels(
        pretrained=encoder.pretraining_model(pretrained=True, seed=0).to(device),
        initial=None if next_token else _initial_model(table, encoder, device),
        random=encoder.pretraining_model(pretrained=False, seed=random_seed).to(device),
        ngram=NgramModel(
            read_training_tokens(tokens, limit=config.count_model_tokens),
            frequencies,
            contexts=[*contexts, sentence_neighbours(texts, tokenizer)],
        ),
        unigram_entropy=entropy(frequencies),
        next_token=next_token,
    )
    progress.advance(1, "n-gram baseline")
    scores = tuple(score_held_out(part, models, parts) for part in parts)
    progress.advance(1, "held-out loss")
    sentences = fill_sentences(sentences, models, tokenizer, count=config.guesses)
    progress.advance(1, "masked sentences")
    return scores, sentences


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
    return initial.pretraining_model(pretrained=True, seed=0).to(device)


if __name__ == "__main__":
    restart_prepared()
    run_program(evaluate)
