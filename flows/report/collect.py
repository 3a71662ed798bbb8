"""The summary of a run, collected from its artifacts.

In:  the report's stage table: an artifact for each stage of the run, and the encoder, if it came
     finished. Any stage may be missing: then its part of the report is.
Out: `Summary`. Without `show_text` no text leaves this module: no sentence, prediction or error.
"""

import os
import statistics
from collections.abc import Mapping

from pydantic import JsonValue

from artifacts import filesystem
from artifacts.config import parse
from artifacts.errors import UsageError
from artifacts.manifest import Manifest
from artifacts.results import LanguageModelScore, MaskedSentences, Scores
from artifacts.stage import StageTable
from artifacts.store import Artifact, open_artifact
from artifacts.summary import FilledSentence, Predictions, Step, Summary
from flows.config import ReportConfig, ReportStage, RunConfig
from flows.record import RunRecord, read_record_file
from flows.report.collect_corpus import collect_corpus, collect_examples
from flows.report.collect_training import (
    collect_encoder,
    collect_finished_encoder,
    collect_pretraining,
)
from model.config import FAMILY_PRESETS, SIZE_NAMES

SCORES = "scores.json"
SENTENCES = "masked_sentences.json"

SECONDS = "seconds-"
"""Prefix of the records in which workers of a launch say what each trial took."""

FINISHED_ENCODER = "encoder"
"""Role of an encoder that no stage of the run has made; it may be no artifact of ours."""

ALTERNATIVES = "|"

TEXT_FIELDS = {"evaluate": "masked_sentences", "report": "answers"}
"""Fields of the configuration that hold text."""

NO_NEXT_SENTENCES = {
    "next_sentence_examples": 0,
    "next_sentence_accuracy": None,
    "next_sentence_majority": None,
}


def collect(table: StageTable) -> Summary:
    """Read everything."""
    config = parse(ReportStage, table.config, source="stage report")
    report = config.report
    inputs = {role: ref.path for role, ref in table.inputs.items() if ref.path}
    finished = inputs.pop(FINISHED_ENCODER, "")
    found = {stage: open_artifact(path) for stage, path in inputs.items()}
    manifests = {role: artifact.manifest for role, artifact in found.items()}
    evaluated, pretrain = found.get("evaluate"), found.get("pretrain")
    scores = Scores.model_validate(evaluated.read_json(SCORES)) if evaluated else None
    record_path = table.machine.get("record")  # absent for a stage that is run by hand
    record = None
    if record_path and filesystem.exists(record_path):
        record = read_record_file(record_path)
    encoder = collect_encoder(pretrain) if pretrain else None
    if finished:
        parameters = scores.parameters if scores else None
        encoder = collect_finished_encoder(finished, parameters=parameters)
    return Summary(
        name=config.name,
        title=report.title or config.name,
        note=report.note,
        show_text=report.show_text,
        encoder=encoder,
        corpus=(
            collect_corpus(found["tokens"], show_text=report.show_text)
            if "tokens" in found
            else None
        ),
        examples=collect_examples(manifests["examples"]) if "examples" in found else (),
        pretraining=collect_pretraining(pretrain) if pretrain else None,
        language_model=_language_model(scores, pretrain) if scores else (),
        sentences=_sentences(evaluated, report) if evaluated else (),
        tasks=tuple(
            task if report.show_text else task.model_copy(update={"errors": ()})
            for task in (scores.tasks if scores else ())
        ),
        trial_seconds=_trial_seconds(scores, found.get("finetune")) if scores else {},
        glue_average=scores.glue_average if scores else None,
        steps=tuple(_step(manifest, record) for manifest in manifests.values()),
        configuration=configuration(manifests, record, name=config.name, report=report),
    )


def _language_model(scores: Scores, pretrain: Artifact | None) -> tuple[LanguageModelScore, ...]:
    """Held-out quality: the headline split first, then by name and length.

    Answers about next sentences mean nothing where the encoder was not trained to give them.
    """
    found = list(scores.language_model)
    if pretrain and not pretrain.manifest.config["pretrain"]["next_sentence_loss"]:
        found = [model.model_copy(update=NO_NEXT_SENTENCES) for model in found]
    return tuple(sorted(found, key=lambda m: (not m.headline, m.split, m.max_seq_length)))


def _trial_seconds(scores: Scores, finetuned: Artifact | None) -> dict[str, dict[str, float]]:
    """Median time of a trial by task and system, whichever workers ran them."""
    seconds: dict[str, float] = {}
    for entry in finetuned.manifest.records if finetuned else ():
        if finetuned and entry.name.startswith(SECONDS):
            seconds |= finetuned.read_json(entry.name)
    medians: dict[str, dict[str, float]] = {}
    for task in scores.tasks:
        for system in task.systems:
            prefix = f"fits/{task.name}-{system.name}-"
            taken = [spent for name, spent in seconds.items() if name.startswith(prefix)]
            if taken:
                medians.setdefault(task.name, {})[system.name] = statistics.median(taken)
    return medians


def _sentences(evaluated: Artifact, report: ReportConfig) -> tuple[FilledSentence, ...]:
    """Every sentence with its predictions.

    Judged by `report.answers`, if there are any, or by the word that stood in held-out text.
    """
    if SENTENCES not in {entry.name for entry in evaluated.manifest.files}:
        return ()
    sentences = MaskedSentences.model_validate(evaluated.read_json(SENTENCES)).sentences
    if report.answers and len(report.answers) != len(sentences):
        raise UsageError(
            f"report.answers has {len(report.answers)} entries, but evaluate.masked_sentences "
            f"has {len(sentences)}; give one for each sentence, in the same order"
        )
    filled = []
    for place, entry in enumerate(sentences):
        answers: tuple[str, ...] = (entry.answer.lower(),) if entry.answer else ()
        if report.answers:
            answers = tuple(report.answers[place].lower().split(ALTERNATIVES))
        guesses = []
        for guess in entry.guesses:
            right = (rank for rank, word in enumerate(guess.words) if word.lower() in answers)
            correct = next(right, None)
            text = {"words": guess.words, "probabilities": guess.probabilities}
            shown = text if report.show_text else {}
            guesses.append(Predictions(system=guess.system, correct=correct, **shown))
        filled.append(
            FilledSentence(
                sentence=entry.sentence if report.show_text else "",
                answers=answers if report.show_text else (),
                judged=bool(answers),
                guesses=tuple(guesses),
            )
        )
    return tuple(filled)


def _step(manifest: Manifest, record: RunRecord | None) -> Step:
    """One artifact, and what it took if the record knows."""
    made = record.stages.get(manifest.stage) if record else None
    made = made if made and made.key == manifest.key else None
    rows = [entry.rows for entry in manifest.files if entry.rows is not None]
    argv = list(made.argv) if made else []
    for place, word in enumerate(argv):  # without the folders that only this machine has
        if os.path.isabs(word) and not os.path.relpath(word).startswith(".."):
            argv[place] = os.path.relpath(word)
    return Step(
        stage=manifest.stage,
        digest=manifest.digest,
        key=manifest.key,
        inputs=manifest.inputs,
        files=len(manifest.files),
        bytes=sum(entry.size for entry in manifest.files),
        rows=sum(rows) if rows else None,
        finished_at=manifest.execution.get("finished_at", ""),
        versions=manifest.versions,
        seconds=made.seconds if made else None,
        peak_memory=made.peak_memory if made else None,
        argv=tuple(argv),
    )


def configuration(
    manifests: Mapping[str, Manifest], record: RunRecord | None, *, name: str, report: ReportConfig
) -> dict[str, JsonValue]:
    """The run's tables without what has its default value, in the order of a configuration.

    Without a record it is put together from what the stages were given.
    """
    if record:
        run = RunConfig.model_validate(record.config)
        tables = run.model_dump(mode="json", exclude_defaults=True)
    else:
        parts = {key: value for one in manifests.values() for key, value in one.config.items()}
        known = {key: value for key, value in parts.items() if key in RunConfig.model_fields}
        tables = {
            **known,
            "name": name,
            "report": report.model_dump(mode="json", exclude_defaults=True),
        }
    # a preset says its sizes; only those that depart from it stay
    encoder = dict(tables.get("encoder", {}))
    presets = FAMILY_PRESETS[encoder.get("family", "bert")]
    preset = presets.get(encoder.get("preset", "base") or "", ())
    for size_name, size in zip(SIZE_NAMES, preset, strict=False):
        if encoder.get(size_name) == size:
            del encoder[size_name]
    tables["encoder"] = encoder
    for table, field in TEXT_FIELDS.items() if not report.show_text else ():
        tables[table] = {k: v for k, v in tables.get(table, {}).items() if k != field}
    return {key: tables[key] for key in RunConfig.model_fields if tables.get(key) not in ({}, None)}
