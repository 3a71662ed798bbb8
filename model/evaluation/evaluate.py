"""Stage evaluate: scores of the encoder and of the baselines it must beat.

In:  the encoder. If it was pre-trained on a corpus: held-out examples, the training tokens, and the
     initial checkpoint if there was one. If it was fine-tuned: the trials.
Out: `scores.json` and `masked_sentences.json` (schema: artifacts/results.py).
"""

import torch

from artifacts.config import parse
from artifacts.progress import Progress
from artifacts.results import MaskedSentences, Scores, Trials
from artifacts.runtime.program import run_program
from artifacts.stage import StageTable
from artifacts.store import Artifact, commit, open_artifact, put_json
from model.config import EvaluateStage, TrainingMachine
from model.evaluation.language_model import evaluate_language_model
from model.evaluation.scores import glue_average, task_scores
from model.hugging_face.model_files import read_encoder_files
from model.training.distributed import training_device
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
            evaluate_language_model(table, stage, encoder, progress, device=device)
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


if __name__ == "__main__":
    restart_prepared()
    run_program(evaluate)
