"""The summary of a run, gathered from its artifacts.

In:  the report's stage table: an artifact for each stage of the run, and the encoder, if it came
     finished. Any stage may be missing: then its part of the report is.
Out: `Summary`.
"""

from collections.abc import Mapping
from typing import Any

from artifacts.config import parse
from artifacts.stage import StageTable
from artifacts.store import Artifact, open_artifact
from flows.config import ReportStage
from flows.report.form.summary import Summary
from flows.report.gather.corpus import gather_corpus, gather_examples
from flows.report.gather.scores import gather_language_model, gather_sentences, gather_tasks
from flows.report.gather.steps import configuration, gather_step, read_run_record
from flows.report.gather.training import (
    gather_encoder,
    gather_given_encoder,
    gather_pretraining,
)

SCORES = "scores.json"
SENTENCES = "masked_sentences.json"
SECONDS = "seconds-"
"""Records of a launch's workers begin with it."""

GIVEN = "encoder"
"""Role of an encoder that no stage of the run has made; it may be no artifact of ours."""


def gather(table: StageTable) -> Summary:
    """Read everything."""
    config = parse(ReportStage, table.config, source="stage report")
    report = config.report
    inputs = {role: ref.path for role, ref in table.inputs.items() if ref.path}
    given = inputs.pop(GIVEN, "")
    found = {stage: open_artifact(path) for stage, path in inputs.items()}
    manifests = {role: artifact.manifest for role, artifact in found.items()}
    record = read_run_record(table)
    return Summary(
        name=config.name,
        title=report.title or config.name,
        note=report.note,
        show_text=report.show_text,
        steps=tuple(gather_step(manifest, record) for manifest in manifests.values()),
        configuration=configuration(manifests, record, name=config.name, report=report),
        **_data(found, show_text=report.show_text),
        **(_given(found, given) if given else _training(found)),
        **_scores(found, config),
    )


def _data(found: Mapping[str, Artifact], *, show_text: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if "tokens" in found:
        facts["corpus"] = gather_corpus(found["tokens"], show_text=show_text)
    if "examples" in found:
        facts["examples"] = gather_examples(found["examples"].manifest)
    return facts


def _training(found: Mapping[str, Artifact]) -> dict[str, Any]:
    if "pretrain" not in found:
        return {}
    pretrain = found["pretrain"]
    return {"encoder": gather_encoder(pretrain), "pretraining": gather_pretraining(pretrain)}


def _given(found: Mapping[str, Artifact], directory: str) -> dict[str, Any]:
    scores = found["evaluate"].read_json(SCORES) if "evaluate" in found else {}
    return {"encoder": gather_given_encoder(directory, parameters=scores.get("parameters"))}


def _scores(found: Mapping[str, Artifact], config: ReportStage) -> dict[str, Any]:
    if "evaluate" not in found:
        return {}
    evaluated = found["evaluate"]
    scores = evaluated.read_json(SCORES)
    seconds = _seconds(found["finetune"]) if "finetune" in found else {}
    facts = {
        "language_model": gather_language_model(
            scores, learnt_next_sentences=_learnt_next_sentences(found)
        ),
        "tasks": gather_tasks(scores, seconds=seconds, show_text=config.report.show_text),
        "glue_average": scores.get("glue_average"),
    }
    if SENTENCES in {entry.name for entry in evaluated.manifest.files}:
        facts["sentences"] = gather_sentences(evaluated.read_json(SENTENCES), config.report)
    return facts


def _learnt_next_sentences(found: Mapping[str, Artifact]) -> bool:
    """Whether the encoder was trained to tell next sentences, as far as is known."""
    if "pretrain" not in found:
        return True
    return bool(found["pretrain"].manifest.config["pretrain"]["next_sentence_loss"])


def _seconds(finetuned: Artifact) -> dict[str, float]:
    """What every fit took, whichever worker did it."""
    names = [e.name for e in finetuned.manifest.records if e.name.startswith(SECONDS)]
    return {fit: spent for name in names for fit, spent in finetuned.read_json(name).items()}
