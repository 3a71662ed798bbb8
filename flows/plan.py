"""The plan of a run: made once, then shown, checked, estimated and executed.

In:  the configurations of a run and a machine; the contents outside the run that its stages read;
     the store. Nothing is written, started or removed.
Out: `Plan`: the stages in order, the stage table of each that can start, and which would be reused.
     A stage that would run is compared with the nearest artifact of the same stage in the store:
     the one that differs in the fewest fields.

All contents outside the run are digested when the plan is made, also those that only a later stage
reads, and a stage is executed with these digests: `confirm` refuses contents that have changed. Of
later stages that is all that is known; their inputs, and thereby their tables and keys, are there
when the earlier stages have finished (`finish`).
"""

import json
import resource
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

from pydantic import JsonValue

from cloze.artifacts.config import Config, flat
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import is_local, located
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, Store
from cloze.artifacts.tokenizer import SubwordTokenizer, read_vocabulary
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.expected import Announced, ExpectedTime, expected_times
from cloze.flows.external_inputs import Digests
from cloze.flows.inventory import Found, look_up, store_entries
from cloze.flows.stages import Stage, chain, keyed_config, stage_table, up_to
from cloze.flows.workspace import ADAPTED, record_path, workspace
from cloze.pipeline.config.engines import check_engine, refuse_placeholders

INPUT = "input "
"""Prefix of facts that are digests of inputs."""

NEVER_MADE = "no earlier artifact of this stage"

ABSENT = "absent"

SHOWN_CHARACTERS = 40
"""Longer values are truncated in reasons."""

LEAST_ADDRESS_SPACE = 4 << 30
"""Bytes. With 2 GiB Beam cannot start all its threads, and those that did start wait for the rest;
3 GiB suffice for preparation."""


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
    device: Literal["cpu", "cuda"] = "cpu"
    """What would compute it."""
    precision: str = ""
    """The precision of a stage that trains or evaluates encoders."""


Facts = Mapping[str, JsonValue]
"""Everything that enters a key, flat: `examples.copies` → 10, `input tokens` → a digest."""


class Plan:
    """A run, or the `wanted` stages of it with their dependencies, on a machine."""

    def __init__(
        self,
        run: RunConfig,
        machine: MachineConfig,
        *,
        wanted: Sequence[str] = (),
        digests: Digests | None = None,
    ) -> None:
        refuse_placeholders(
            {"workspace": machine.workspace}, source="in the machine file or with --workspace"
        )
        self.run = machine.decided(run)
        self.machine = machine
        self.space = workspace(machine.workspace)
        stages = chain(self.run)
        # The whole chain is always built, since a stage's inputs are stages, wanted or not; of
        # these, the ones that nothing wanted depends on are only named.
        executed = up_to(stages, wanted) if wanted else stages
        self.stages = {stage.name: stage for stage in executed}
        self.others = [stage for stage in stages if stage.name not in self.stages]
        """Further stages of the run, which are not executed."""
        self.announced = Announced(())
        """The times that the user was told, if any."""
        self.finished: dict[str, Artifact] = {}
        """Artifacts by stage: at first those that would be reused."""
        self._digests = digests or Digests()
        self._found: dict[str, Found] = {}
        for stage in executed:
            # All files are digested here, before any stage runs: what the keys are made of is what
            # was there when the run was planned, and `confirm` refuses later changes.
            for content in stage.contents():
                self._digests.of(content)
        # In order: a stage is ready once those before it have been found.
        for name, stage in self.stages.items():
            if self.is_ready(stage):
                self._found[name] = found = look_up(self.table(stage))
                if found.artifact:
                    self.finish(name, found.artifact)
        self.to_run = tuple(name for name in self.stages if name not in self.finished)
        """The stages whose artifacts have to be made."""

    def is_ready(self, stage: Stage) -> bool:
        """Whether all its inputs are finished."""
        return self.finished.keys() >= {*stage.inputs.values()}

    def table(self, stage: Stage) -> StageTable:
        """The stage table of `stage`, which must be ready."""
        if stage.name == "report":
            machine = {"record": record_path(self.space, self.run.name)}
            if ADAPTED in self.finished:  # decided after an earlier execution of the run
                stage = replace(stage, inputs={**stage.inputs, ADAPTED: ADAPTED})
        elif stage.is_pipeline:
            machine = self.machine.pipeline.model_dump(mode="json")
        else:
            machine = self.machine.training.model_dump(mode="json")
        if machine.get("checkpoints") == "" and not is_local(self.space.root):
            # checkpoints cannot be kept on an object store, so they go beside the logs
            machine["checkpoints"] = str(self.space.local / "checkpoints")
        store, digests = self.space.store, self._digests
        return stage_table(stage, self.finished, store=store, machine=machine, digests=digests)

    def confirm(self, stage: Stage) -> None:
        """Refuse to run `stage` if contents outside the run have changed since planning."""
        for content in stage.contents():
            self._digests.confirm(content)

    def finish(self, name: str, artifact: Artifact) -> None:
        """Enter the artifact of a stage, which is an input of later ones."""
        self.finished[name] = artifact

    def check(self, options: Sequence[str] = ()) -> None:
        """Refuse what one of the stages to run would refuse later, perhaps after hours.

        Contradictions within a configuration are refused when it is parsed; these are between run,
        machine, the `options` for its engine, and the files that they name.
        """
        if not self.to_run:
            return
        allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
        if resource.RLIM_INFINITY != allowed < LEAST_ADDRESS_SPACE:
            raise UsageError(
                f"ulimit -v allows {allowed / 1e9:.1f} GB of address space, of which threads "
                f"reserve more than they use; set it to {LEAST_ADDRESS_SPACE >> 10} (kB) or more, "
                "or unlimited"
            )
        engine = [stage for stage in self.stages.values() if stage.is_pipeline]
        # Only what will run is checked: an engine's options do not matter for finished artifacts.
        if engine := [stage for stage in engine if stage.name in self.to_run]:
            check_engine(
                self.machine.pipeline,
                options,
                workspace=self.machine.workspace,
                files={place: path for stage in engine for place, path in stage.files().items()},
            )
        if "vocabulary" in self.to_run:
            # Raises if it cannot be read.
            self.given_vocabulary()
        if "pretrain" in self.to_run:
            self.machine.training.check_recipe(self.run.pretrain)

    def given_vocabulary(self) -> SubwordTokenizer | None:
        """The tokenizer in `vocabulary.path`; None if that names no file on this machine."""
        config = self.run.vocabulary
        if not config.path or not is_local(config.path):
            return None
        try:
            found = read_vocabulary(
                located(config.path),
                lowercase=config.lowercase,
                strip_accents=config.strip_accents,
            )
            # Refused here rather than after reading the corpus, where none can be added.
            return found.with_words(()) if config.words else found
        except (UsageError, OSError) as error:
            raise UsageError(
                f"vocabulary.path = {config.path}: {error}; expected BERT's vocab.txt or "
                "tokenizer.json"
            ) from None

    def expected(self, *, rate: float | None = None) -> list[ExpectedTime]:
        """How long each stage to run will take on this machine.

        `rate`: FLOP/s to assume of its processor instead of measuring, which takes seconds.
        """
        if not self.to_run:
            return []
        return expected_times(self.run, self.machine, self.to_run, space=self.space, rate=rate)

    @cached_property
    def steps(self) -> tuple[PlannedStage, ...]:
        """What would be done with each stage, and why; for people, since it reads the store."""
        return tuple(self._step(stage) for stage in self.stages.values())

    def _step(self, stage: Stage) -> PlannedStage:
        name, found = stage.name, self._found.get(stage.name)
        where = {"device": self.machine.device(name), "precision": self.run.precision(name)}
        # Stages without an encoder compute on processors.
        if not where["precision"]:
            where["device"] = "cpu"
        if found is None:
            # inputs that are yet to be made have no digest, so only the configuration is compared
            missing = [made for made in dict.fromkeys(stage.inputs.values()) if made in self.to_run]
            changes = _changes(stage, None, store=self.space.store)
            reasons = (f"new {', '.join(missing)}", *changes)
        elif made := found.artifact:
            reused = {"digest": made.digest, "directory": made.directory}
            return PlannedStage(stage=name, action="reuse", **reused, **where)
        elif found.damage:
            reasons = (found.damage,)
        else:
            inputs = self.table(stage).inputs
            digests = {role: reference.digest for role, reference in inputs.items()}
            reasons = _changes(stage, digests, store=self.space.store) or (NEVER_MADE,)
        return PlannedStage(stage=name, action="run", reasons=reasons, **where)


def differences(old: Facts, new: Facts) -> tuple[str, ...]:
    """How `new` differs from `old`, one sentence for each difference.

    A whole table that only one of them has, such as another task, is a single difference.
    """
    shown_old, shown_new = _shown(old), _shown(new)
    found: dict[str, list[str]] = {}
    for name in {**old, **new}:
        if name not in old:
            found.setdefault(_outermost(name, old), []).append(name)
        elif name not in new:
            found.setdefault(_outermost(name, new), []).append(name)
        elif old[name] != new[name]:
            found[name] = [name]

    def shown(texts: Mapping[str, str], names: list[str]) -> str:
        if names[0] not in texts:
            return ABSENT
        return texts[names[0]] if len(names) == 1 else f"{len(names)} settings"

    return tuple(
        f"{names[0] if len(names) == 1 else place}: {shown(shown_old, names)} → "
        f"{shown(shown_new, names)}"
        for place, names in found.items()
    )


def _outermost(name: str, others: Facts) -> str:
    """The largest table around the setting `name` in which `others` have none."""
    parts = name.split(".")
    depths = range(1, len(parts))
    places = (".".join(parts[:depth]) for depth in depths)
    known = {".".join(other.split(".")[:depth]) for other in others for depth in depths}
    return next((place for place in places if place not in known), name)


def _changes(stage: Stage, digests: Mapping[str, str] | None, *, store: Store) -> tuple[str, ...]:
    """How `stage` differs from its nearest artifact; empty if there is none at all.

    Inputs are only compared if their `digests` are known.
    """
    wanted = _facts(stage.config.format_version, keyed_config(stage), digests or {})
    # Of all artifacts of this stage, the one that the fewest facts tell from what is wanted: most
    # likely what its user has in mind.
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
