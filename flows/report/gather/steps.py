"""Every step of the run: what it made, from what, how long it took, with which versions.

In:  the manifests, and the record of the run (`run.json`), if it was a flow that made them.
Out: `Step` by stage, and the configuration to repeat the run with.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

from artifacts import filesystem
from artifacts.manifest import Manifest
from artifacts.stage import StageTable
from flows.config import ReportConfig, RunConfig
from flows.record import RunRecord, StageRecord
from flows.report.form.summary import Step
from flows.report.gather.training import SIZES
from model.config import PRESETS


def read_run_record(table: StageTable) -> RunRecord | None:
    """The record that `machine.record` names; None for a stage that is run by hand."""
    path = table.machine.get("record")
    if not path or not filesystem.exists(path):
        return None
    return RunRecord.model_validate_json(filesystem.read_bytes(path))


def gather_step(manifest: Manifest, record: RunRecord | None) -> Step:
    """One artifact."""
    made = record.stages.get(manifest.stage) if record else None
    made = made if made and made.key == manifest.key else None
    rows = [entry.rows for entry in manifest.files if entry.rows is not None]
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
        **_effort(made),
    )


def configuration(
    manifests: Mapping[str, Manifest], record: RunRecord | None, *, name: str, report: ReportConfig
) -> dict[str, Any]:
    """The run's tables without what has its default value.

    Without a record it is put together from what the stages were given.
    """
    if record:
        tables = RunConfig.model_validate(record.config).model_dump(
            mode="json", exclude_defaults=True
        )
    else:
        parts = {key: value for one in manifests.values() for key, value in one.config.items()}
        known = {key: value for key, value in parts.items() if key in RunConfig.model_fields}
        tables = {**known, "name": name, "report": report.model_dump(exclude_defaults=True)}
    return _ordered(_without_text(_without_preset_sizes(tables), show_text=report.show_text))


def _effort(made: StageRecord | None) -> dict[str, Any]:
    if made is None:
        return {}
    return {
        "seconds": made.seconds,
        "peak_memory": made.peak_memory,
        "argv": tuple(_portable(word) for word in made.argv),
    }


def _portable(word: str) -> str:
    """An argument without the folders that only this machine has."""
    if word == sys.executable:
        return "python"
    inside = os.path.isabs(word) and not os.path.relpath(word).startswith("..")
    return os.path.relpath(word) if inside else word


def _without_preset_sizes(tables: dict[str, Any]) -> dict[str, Any]:
    """A preset says its sizes; only those that depart from it stay."""
    encoder = dict(tables.get("encoder", {}))
    preset = PRESETS.get(encoder.get("preset", "base") or "", ())
    for name, size in zip(SIZES, preset, strict=False):
        if encoder.get(name) == size:
            del encoder[name]
    return {**tables, "encoder": encoder}


def _without_text(tables: dict[str, Any], *, show_text: bool) -> dict[str, Any]:
    """Sentences in the configuration are text too."""
    if show_text:
        return tables
    hidden = {"evaluate": "masked_sentences", "report": "answers"}
    return {
        table: {key: value for key, value in entries.items() if key != hidden.get(table)}
        if isinstance(entries, Mapping)
        else entries
        for table, entries in tables.items()
    }


def _ordered(tables: dict[str, Any]) -> dict[str, Any]:
    """In the order in which a configuration is written; empty tables left out."""
    return {key: tables[key] for key in RunConfig.model_fields if tables.get(key) not in ({}, None)}
