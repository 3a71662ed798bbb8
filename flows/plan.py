"""The plan of a run: which stages would be reused, which would run, and why.

In:  a run's configuration and a workspace; nothing is written, started or removed.
Out: one `PlannedStage` per stage. A stage that would run is compared with the nearest artifact of
     the same stage in the store: the one that differs in the fewest fields.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import JsonValue

from cloze.artifacts.config import Config, flat
from cloze.artifacts.store import Artifact, Store
from cloze.flows.config import RunConfig
from cloze.flows.inventory import look_up, store_entries
from cloze.flows.stages import Stage, chain, keyed_config, stage_table, up_to
from cloze.flows.workspace import Workspace

INPUT = "input "
"""Prefix of facts that are digests of inputs."""

NEVER_MADE = "no earlier artifact of this stage"

ABSENT = "absent"

SHOWN_CHARACTERS = 40
"""Longer values are truncated in reasons."""


class PlannedStage(Config):
    """The plan for one stage."""

    stage: str
    """Name of the stage."""
    action: Literal["reuse", "run"]
    """Whether its artifact exists or has to be made."""
    reasons: tuple[str, ...] = ()
    """Why it would run; empty for a stage that is reused."""
    digest: str = ""
    """Content digest of the artifact that would be reused."""
    directory: str = ""
    """Directory of that artifact."""


Facts = Mapping[str, JsonValue]
"""Everything that enters a key, flat: `examples.copies` → 10, `input tokens` → a digest."""


def plan(
    run: RunConfig, *, workspace: Workspace, wanted: Sequence[str] = ()
) -> tuple[PlannedStage, ...]:
    """What `cloze run` would do now with each stage, or with `wanted` and its dependencies."""
    finished: dict[str, Artifact] = {}
    planned, store = [], workspace.store
    for stage in up_to(chain(run), wanted) if wanted else chain(run):
        missing = [name for name in dict.fromkeys(stage.inputs.values()) if name not in finished]
        if missing:
            # inputs that are yet to be made have no digest, so only the configuration is compared
            changes = _changes(stage, None, store=store)
            reasons = (f"new {', '.join(missing)}", *changes)
        else:
            table = stage_table(stage, finished, store=store, machine={})
            found = look_up(table)
            if made := found.artifact:
                finished[stage.name] = made
                reused = {"digest": made.digest, "directory": made.directory}
                planned.append(PlannedStage(stage=stage.name, action="reuse", **reused))
                continue
            digests = {role: reference.digest for role, reference in table.inputs.items()}
            changes = _changes(stage, digests, store=store)
            reasons = (found.damage,) if found.damage else changes or (NEVER_MADE,)
        planned.append(PlannedStage(stage=stage.name, action="run", reasons=reasons))
    return tuple(planned)


def differences(old: Facts, new: Facts) -> tuple[str, ...]:
    """How `new` differs from `old`, one sentence for each difference."""
    shown_old, shown_new = _shown(old), _shown(new)
    return tuple(
        f"{name}: {shown_old.get(name, ABSENT)} → {shown_new.get(name, ABSENT)}"
        for name in {**old, **new}
        if (name in old) != (name in new) or old.get(name) != new.get(name)
    )


def _changes(stage: Stage, digests: Mapping[str, str] | None, *, store: Store) -> tuple[str, ...]:
    """How `stage` differs from its nearest artifact; empty if there is none at all.

    Inputs are only compared if their `digests` are known.
    """
    wanted = _facts(stage.config.format_version, keyed_config(stage), digests or {})
    candidates = []
    for entry in store_entries(store, stage=stage.name):
        if made := entry.manifest:
            inputs = {} if digests is None else made.inputs
            facts = _facts(made.format_version, made.config, inputs)
            candidates.append(differences(facts, wanted))
    return min(candidates, key=len, default=())


def _facts(version: int, config: Mapping[str, JsonValue], inputs: Mapping[str, str]) -> Facts:
    digests = {f"{INPUT}{role}": digest[:12] for role, digest in inputs.items()}
    return {"format_version": version, **digests, **flat(config)}


def _shown(facts: Facts) -> dict[str, str]:
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in facts.items()}
    return {
        name: text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
        for name, text in texts.items()
    }
