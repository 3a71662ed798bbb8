"""What a run would do: which stages are reused, which run, and why.

In:  a run's configuration and a workspace; nothing is written, started or removed.
Out: one `PlannedStage` per stage. A stage that would run is compared with the nearest artifact of
     the same stage that is there: the one that differs in the fewest fields.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from artifacts.config import Config
from artifacts.manifest import Manifest
from artifacts.stage import StageTable
from artifacts.store import Artifact, Store
from flows.config import RunConfig
from flows.ensure import look_up
from flows.inventory import shelves_of
from flows.stages import Stage, chain, keyed_config, stage_table
from flows.workspace import Workspace

INPUT = "input "
"""Beginning of the names of facts that are digests of inputs."""

MISSING = object()

NEVER_MADE = "nothing like it has been made here yet"

SHOWN_CHARACTERS = 40
"""A value longer than this is cut in a reason."""


class PlannedStage(Config):
    """What would happen to one stage."""

    stage: str
    """The stage."""
    action: Literal["reuse", "run"]
    """Whether its artifact is there already."""
    reasons: tuple[str, ...]
    """Why it would run; empty for a stage that is reused."""
    digest: str = ""
    """Content digest of the artifact that would be reused."""
    directory: str = ""
    """Where it lies."""


Facts = dict[str, Any]
"""Everything a key is made of, flat: `examples.copies` → 10, `input tokens` → a digest."""


def plan(run: RunConfig, *, workspace: Workspace) -> tuple[PlannedStage, ...]:
    """What `cloze run` would do now, stage by stage."""
    finished: dict[str, Artifact] = {}
    return tuple(_planned(stage, finished, store=workspace.store) for stage in chain(run))


def differences(old: Facts, new: Facts) -> tuple[str, ...]:
    """What is different in `new`, one sentence for each."""
    return tuple(
        f"{name}: {_shown(old, name)} → {_shown(new, name)}"
        for name in {**old, **new}
        if old.get(name, MISSING) != new.get(name, MISSING)
    )


def _planned(stage: Stage, finished: dict[str, Artifact], *, store: Store) -> PlannedStage:
    """Plan one stage; if its artifact is there it joins the `finished` ones."""
    anew = [source for source in dict.fromkeys(stage.inputs.values()) if source not in finished]
    if anew:
        waits = (f"new {', '.join(anew)}",)
        facts = _facts(stage.config.format_version, keyed_config(stage), {})
        changes = _changes(stage.name, facts, store=store, inputs=False)
        return _to_run(stage, (*waits, *changes))
    table = stage_table(stage, finished, store=store, machine={})
    found = look_up(table)
    if found.artifact is None:
        changes = _changes(stage.name, _facts_of_table(table), store=store, inputs=True)
        return _to_run(stage, (found.damage,) if found.damage else changes or (NEVER_MADE,))
    finished[stage.name] = found.artifact
    return PlannedStage(
        stage=stage.name,
        action="reuse",
        reasons=(),
        digest=found.artifact.digest,
        directory=found.artifact.directory,
    )


def _to_run(stage: Stage, reasons: tuple[str, ...]) -> PlannedStage:
    return PlannedStage(stage=stage.name, action="run", reasons=reasons)


def _changes(stage: str, facts: Facts, *, store: Store, inputs: bool) -> tuple[str, ...]:
    """How `facts` differ from the nearest artifact; empty if there is none at all.

    Without `inputs` only the configuration is compared: the inputs are not known yet.
    """
    candidates = [
        _facts_of_manifest(shelf.manifest)
        for shelf in shelves_of(stage, store=store)
        if shelf.manifest
    ]
    if not inputs:
        candidates = [_without_inputs(candidate) for candidate in candidates]
    return min((differences(candidate, facts) for candidate in candidates), key=len, default=())


def _facts_of_manifest(manifest: Manifest) -> Facts:
    return _facts(manifest.format_version, manifest.config, manifest.inputs)


def _facts_of_table(table: StageTable) -> Facts:
    digests = {role: reference.digest for role, reference in table.inputs.items()}
    return _facts(table.format_version, table.keyed_config, digests)


def _facts(format_version: int, config: Mapping[str, Any], inputs: Mapping[str, str]) -> Facts:
    return {
        "format_version": format_version,
        **{f"{INPUT}{role}": digest[:12] for role, digest in inputs.items()},
        **flat(config),
    }


def _without_inputs(facts: Facts) -> Facts:
    return {name: value for name, value in facts.items() if not name.startswith(INPUT)}


def flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """A nested table as dotted places and plain values."""
    return dict(_leaves("", table))


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping | list) and value:
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, child in items:
            yield from _leaves(f"{place}.{name}" if place else str(name), child)
    else:
        yield place, value


def _shown(facts: Facts, name: str) -> str:
    if name not in facts:
        return "absent"
    text = json.dumps(facts[name], ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
