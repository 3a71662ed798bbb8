"""The chain: which stages a run has, and what each of them is given.

In:  a run's configuration; then, stage by stage, the artifacts finished so far.
Out: for each stage its part of the configuration, its inputs, and at last its `StageTable`.

Adding a stage is one function here and one line in `chain`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from artifacts.config import StageConfig, assign
from artifacts.errors import UsageError
from artifacts.filesystem import is_local
from artifacts.stage import InputRef, StageTable
from artifacts.store import Artifact, Store
from flows.config import ReportStage, RunConfig
from flows.external_inputs import Outside, digest_of_model, located
from model.config import (
    DATASETS_PREFIX,
    EvaluateStage,
    FinetuneStage,
    PretrainStage,
    TaskConfig,
)
from pipeline.config import (
    CorpusConfig,
    ExamplesStage,
    LabelsConfig,
    LabelsStage,
    TokensStage,
    UnwantedStage,
    VocabularyStage,
)

PREPARE = ("vocabulary", "tokens", "examples")
"""The stages that turn documents into examples."""


@dataclass(frozen=True)
class Stage:
    """One stage of a run, before its inputs exist."""

    config: StageConfig
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Role to the stage whose artifact plays it."""
    outside: Mapping[str, Outside] = field(default_factory=dict)
    """Role to data from outside."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Role to the directory of a finished model from outside, which is an input like any other."""

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.config.stage


def chain(run: RunConfig) -> tuple[Stage, ...]:
    """The stages of `run` in an order in which each finds its inputs finished."""
    stages = _training(run, run.corpus) if run.corpus else []
    if run.finetune.tasks:
        stages += [_labels(run.labels, seed=run.seed)] if run.labels else []
        stages += [_finetune(run)]
    stages.append(_evaluate(run))
    return (*stages, _report(run, stages))


def up_to(stages: tuple[Stage, ...], wanted: tuple[str, ...]) -> tuple[Stage, ...]:
    """Those of `stages` that are wanted or that a wanted one needs, in order."""
    needed = set(wanted)
    for stage in reversed(stages):
        if stage.name in needed:
            needed.update(stage.inputs.values())
    missing = needed - {stage.name for stage in stages}
    if missing:
        raise UsageError(
            f"this configuration has no stage {', '.join(sorted(missing))}; "
            f"it has {', '.join(stage.name for stage in stages)}"
        )
    return tuple(stage for stage in stages if stage.name in needed)


def stage_table(
    stage: Stage, finished: Mapping[str, Artifact], *, store: Store, machine: Mapping[str, Any]
) -> StageTable:
    """The table of `stage`, whose inputs are among the `finished` artifacts (by stage name)."""
    inputs = {
        role: InputRef(digest=finished[source].digest, path=finished[source].directory)
        for role, source in stage.inputs.items()
    }
    given = {
        role: InputRef(digest=digest_of_model(directory, place=role), path=located(directory))
        for role, directory in stage.given.items()
    }
    outside = {role: InputRef(digest=data.digest()) for role, data in stage.outside.items()}
    table = _table(stage, inputs={**inputs, **given, **outside}, machine=machine)
    return table.model_copy(update={"output": store.directory(stage.name, table.key)})


def keyed_config(stage: Stage) -> dict[str, Any]:
    """The part of the key that is known before any input is."""
    return _table(stage, inputs={}, machine={}).keyed_config


def _table(
    stage: Stage, *, inputs: Mapping[str, InputRef], machine: Mapping[str, Any]
) -> StageTable:
    """A table without a place for its output."""
    return StageTable(
        stage=stage.name,
        format_version=stage.config.format_version,
        config=_with_absolute_paths(stage),
        inputs=dict(inputs),
        outside={place: role for role, data in stage.outside.items() for place in data.places},
        output="",
        machine=dict(machine),
    )


def _with_absolute_paths(stage: Stage) -> dict[str, Any]:
    """The stage's configuration; a program finds its data whatever folder it is started in."""
    config = stage.config.model_dump(mode="json")
    for data in stage.outside.values():
        for place, location in data.places.items():
            config = assign(config, place, located(location))
    return config


def _training(run: RunConfig, corpus: CorpusConfig) -> list[Stage]:
    """From documents to an encoder."""
    return [
        *([_unwanted(run, corpus)] if run.unwanted.wanted else []),
        *(_vocabulary(run, corpus), _tokens(run, corpus), _examples(run), _pretrain(run)),
    ]


def _unwanted(run: RunConfig, corpus: CorpusConfig) -> Stage:
    config = UnwantedStage(
        seed=run.seed, corpus=corpus, cleaning=run.cleaning, unwanted=run.unwanted
    )
    overlap = run.unwanted.overlap
    sets = enumerate(overlap.paths if overlap else ())
    files = {f"unwanted.overlap.paths.{index}": path for index, path in sets}
    evaluation = {"evaluation sets": Outside(files=files)} if files else {}
    return Stage(config, outside={**_documents(run, corpus), **evaluation})


def _drop_list(run: RunConfig) -> dict[str, str]:
    """The drop list, if this run makes one, as an input."""
    return {"drop_list": "unwanted"} if run.unwanted.wanted else {}


def _vocabulary(run: RunConfig, corpus: CorpusConfig) -> Stage:
    config = VocabularyStage(
        seed=run.seed, corpus=corpus, cleaning=run.cleaning, vocabulary=run.vocabulary
    )
    given = {"vocabulary": Outside(files={"vocabulary.path": run.vocabulary.path})}
    outside = {**_documents(run, corpus), **(given if run.vocabulary.path else {})}
    return Stage(config, inputs=_drop_list(run), outside=outside)


def _tokens(run: RunConfig, corpus: CorpusConfig) -> Stage:
    config = TokensStage(seed=run.seed, corpus=corpus, cleaning=run.cleaning)
    inputs = {"vocabulary": "vocabulary", **_drop_list(run)}
    return Stage(config, inputs=inputs, outside=_documents(run, corpus))


def _examples(run: RunConfig) -> Stage:
    config = ExamplesStage(seed=run.seed, examples=run.examples)
    return Stage(config, inputs={"tokens": "tokens"})


def _pretrain(run: RunConfig) -> Stage:
    config = PretrainStage(seed=run.seed, encoder=run.encoder, pretrain=run.pretrain)
    init = {"init": Outside(models={"pretrain.init": run.pretrain.init})}
    return Stage(config, inputs={"examples": "examples"}, outside=init if run.pretrain.init else {})


def _labels(labels: LabelsConfig, *, seed: int) -> Stage:
    packages = {
        "labels.packages": labels.packages,
        "labels.test_packages": labels.test_packages,
    }
    return Stage(
        LabelsStage(seed=seed, labels=labels),
        outside={"packages": Outside(packages=packages)},
    )


def _finetune(run: RunConfig) -> Stage:
    labels = {"labels": "labels"} if run.labels else {}
    data = {
        f"task {task.name}": _task_data(task, f"finetune.tasks.{index}")
        for index, task in enumerate(run.finetune.tasks)
    }
    second = Outside(models={"finetune.second_encoder": run.finetune.second_encoder})
    encoders = {"second_encoder": second} if run.finetune.second_encoder else {}
    return Stage(
        FinetuneStage(finetune=run.finetune),  # dumped as the stage knows it, which is less
        inputs={**_encoder(run), **labels},
        given=_given(run),
        outside={**{role: given for role, given in data.items() if given.places}, **encoders},
    )


def _task_data(task: TaskConfig, place: str) -> Outside:
    """The files that a task names; those of the labels stage are no outside data.

    A Hugging Face data set is no file: its name stays in the configuration and with it in the key.
    """
    named = {part: getattr(task, part) for part in ("train", "dev", "test")}
    named.update({f"more.{name}": path for name, path in task.more.items()})
    files = {
        f"{place}.{part}": path
        for part, path in named.items()
        if path and not path.startswith(DATASETS_PREFIX)
    }
    folders = {f"{place}.folder": task.folder} if task.folder else {}
    needed = (f"{place}.train", f"{place}.dev")
    lacking = {  # GLUE is often kept without its unlabelled test files
        name: path
        for name, path in files.items()
        if task.glue and name not in needed and _is_absent(path)
    }
    present = {name: path for name, path in files.items() if name not in lacking}
    return Outside(files=present, folders={**folders, **lacking})


def _is_absent(path: str) -> bool:
    """Whether a local file that may be left out is left out."""
    return is_local(path) and not os.path.exists(located(path))


def _evaluate(run: RunConfig) -> Stage:
    text = {"examples": "examples", "tokens": "tokens"} if run.corpus else {}
    finetune = {"finetune": "finetune"} if run.finetune.tasks else {}
    published = {task.name: task.published for task in run.finetune.tasks if task.published}
    return Stage(
        EvaluateStage(seed=run.seed, evaluate=run.evaluate, published=published),
        inputs={**_encoder(run), **text, **finetune},
        given=_given(run),
    )


def _report(run: RunConfig, stages: list[Stage]) -> Stage:
    config = ReportStage(name=run.name, report=run.report)
    return Stage(config, inputs={stage.name: stage.name for stage in stages}, given=_given(run))


def _encoder(run: RunConfig) -> dict[str, str]:
    """The encoder, if this run trains one, as an input."""
    return {"encoder": "pretrain"} if run.corpus else {}


def _given(run: RunConfig) -> dict[str, str]:
    """The encoder, if it came finished."""
    return {"encoder": run.finetune.encoder} if run.finetune.encoder else {}


def _documents(run: RunConfig, corpus: CorpusConfig) -> dict[str, Outside]:
    """The corpus and the list of documents dropped from it."""
    sources = list(enumerate(corpus.sources))
    documents = Outside(
        files={
            f"corpus.sources.{index}.path": source.path for index, source in sources if source.path
        },
        packages={
            f"corpus.sources.{index}.packages": source.packages
            for index, source in sources
            if source.packages
        },
    )
    drop_list = run.cleaning.drop_list
    dropped = {"drop_list": Outside(artifacts={"cleaning.drop_list": drop_list})}
    return {"corpus": documents, **(dropped if drop_list else {})}
