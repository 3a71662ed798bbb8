"""The chain of stages: the stages of a run, and the inputs of each.

In:  a run's configuration; then, for each stage, the artifacts finished so far.
Out: for each stage its part of the configuration and its inputs; later its `StageTable`.

To add a stage, add a `Stage` to `chain`.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from cloze.artifacts.config import StageConfig, assign
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import is_local, located
from cloze.artifacts.results import TASK_SPLITS
from cloze.artifacts.stage import InputRef, StageTable
from cloze.artifacts.store import Artifact, Store
from cloze.flows.config import ReportStage, RunConfig
from cloze.flows.external_inputs import Content, Digests, ExternalInput, given
from cloze.model.config import (
    DATASETS_PREFIX,
    DistillConfig,
    DistillStage,
    EvaluateStage,
    FinetuneStage,
    LessonsStage,
    NegativesConfig,
    NegativesStage,
    PretrainStage,
    TaskConfig,
    WordVectorsStage,
)
from cloze.pipeline.config.settings import (
    BoilerplateStage,
    CorpusConfig,
    DedupStage,
    ExamplesStage,
    LabelsStage,
    PairsStage,
    PipelineMachine,
    QualityConfig,
    ScoresStage,
    TokensStage,
    VocabularyStage,
)

PREPARE = ("vocabulary", "tokens", "examples")
"""The stages that turn documents into examples."""

EVALUATED = ("examples", "tokens", "finetune")
"""The stages whose artifacts the evaluation reads, besides the encoder, if the run has them."""


WITHOUT_LISTS = {"drop_list": "", "keep": "", "scores": ""}
"""Cleaning of documents of pairs: what lists the documents of the corpus does not apply to them."""


@dataclass(frozen=True)
class Stage:
    """One stage of a run, before its inputs exist. Roles without a location are left out."""

    config: StageConfig
    inputs: Mapping[str, str] = field(default_factory=dict)
    """The stage that makes the artifact of each role."""
    external: Mapping[str, ExternalInput] = field(default_factory=dict)
    """The external input of each role."""
    models: Mapping[str, str] = field(default_factory=dict)
    """The directory of each role's model, trained elsewhere."""

    def __post_init__(self) -> None:
        # The class is frozen; empty roles are dropped once, here, whatever the run leaves unset.
        object.__setattr__(self, "external", given(self.external))
        object.__setattr__(self, "models", given(self.models))

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.config.stage

    @property
    def is_pipeline(self) -> bool:
        """Whether Beam runs it."""
        return type(self.config).__module__ == PipelineMachine.__module__

    def files(self) -> dict[str, str]:
        """By field of the configuration: the files that its workers read."""
        return {
            place: path for data in self.external.values() for place, path in data.files.items()
        }

    def contents(self) -> Iterator[Content]:
        """Everything that it reads besides artifacts of its run."""
        yield from (Content(role, "model", place) for role, place in self.models.items())
        for data in self.external.values():
            yield from data.contents()


def chain(run: RunConfig) -> tuple[Stage, ...]:
    """The stages of `run`, each after those that make its inputs."""
    if run.distill:
        return _distilling(run, run.distill)
    encoder = {"encoder": "pretrain"} if run.corpus else {}
    stages = _pretraining(run, run.corpus) if run.corpus else []
    stages += _finetuning(run, encoder)
    made = [stage.name for stage in stages]
    reference = {task.name: task.published for task in run.finetune.tasks if task.published}
    heldout = {"evaluate.heldout_examples": run.evaluate.heldout_examples}
    evaluate = Stage(
        EvaluateStage(seed=run.seed, evaluate=run.evaluate, published=reference),
        inputs={**encoder, **{name: name for name in EVALUATED if name in made}},
        models={"encoder": run.finetune.encoder, "init": run.pretrain.init},
        external={"heldout": ExternalInput(artifacts=heldout)},
    )
    report = Stage(
        ReportStage(name=run.name, report=run.report),
        inputs={name: name for name in (*made, evaluate.name)},
        models={"encoder": run.finetune.encoder},
    )
    return (*stages, evaluate, report)


def up_to(stages: Sequence[Stage], wanted: Sequence[str]) -> tuple[Stage, ...]:
    """The `wanted` stages and those they depend on, in order."""
    needed = set(wanted)
    # Backwards, so that one pass finds dependencies of dependencies.
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
    stage: Stage,
    finished: Mapping[str, Artifact],
    *,
    store: Store,
    machine: Mapping[str, JsonValue],
    digests: Digests,
) -> StageTable:
    """The stage table of `stage`, whose inputs are among the `finished` artifacts by stage."""
    inputs = {
        role: InputRef(digest=finished[source].digest, path=finished[source].directory)
        for role, source in stage.inputs.items()
    }
    for role, directory in stage.models.items():
        digest = digests.of(Content(role, "model", directory))
        inputs[role] = InputRef(digest=digest, path=located(directory))
    for role, data in stage.external.items():
        inputs[role] = InputRef(digest=digests.of_input(data))
    # The folder's name is the key, which needs all the rest.
    table = _table(stage, inputs=inputs, machine=machine)
    return table.model_copy(update={"output": store.directory(stage.name, table.key)})


def keyed_config(stage: Stage) -> dict[str, JsonValue]:
    """The part of the key that comes from the configuration."""
    return _table(stage, inputs={}, machine={}).keyed_config


def _table(
    stage: Stage, *, inputs: Mapping[str, InputRef], machine: Mapping[str, JsonValue]
) -> StageTable:
    """A stage table without its output; paths are absolute, for any working directory."""
    config = stage.config.model_dump(mode="json")
    for data in stage.external.values():
        for place, location in data.places.items():
            config = assign(config, place, located(location))
    return StageTable(
        stage=stage.name,
        format_version=stage.config.format_version,
        config=config,
        inputs=dict(inputs),
        outside={place: role for role, data in stage.external.items() for place in data.places},
        output="",
        machine=dict(machine),
    )


def _pretraining(run: RunConfig, corpus: CorpusConfig) -> list[Stage]:
    """The stages from the corpus to the encoder."""
    others = {
        "drop_list": {"cleaning.drop_list": run.cleaning.drop_list},
        "scores": {"cleaning.scores": run.cleaning.scores},
    }
    lists_of_others = {role: ExternalInput(artifacts=place) for role, place in others.items()}
    documents = {**_cleaned_documents(run, corpus), **lists_of_others}
    # Only examples and training know sources by name, so that nothing else depends on a mixture.
    names, corpus = corpus.names, corpus.unnamed()
    common = {"seed": run.seed, "corpus": corpus, "cleaning": run.cleaning}
    lines = {"boilerplate": "boilerplate"} if run.lists_boilerplate else {}
    stages = []
    if lines:
        stages.append(Stage(BoilerplateStage(corpus=corpus), external=_documents(corpus)))
    # What decides which documents are dropped: lists that earlier stages make.
    filters = lines
    if run.quality:
        stages.append(_scoring(run, corpus, run.quality, lines))
        if run.cleaning.keep:
            filters = {**lines, "scores": ScoresStage.stage}
    lists = {**filters, "drop_list": "dedup"} if run.dedup.wanted else filters
    if run.dedup.wanted:
        sets = enumerate(run.dedup.overlap.paths if run.dedup.overlap else ())
        files = {f"dedup.overlap.paths.{index}": path for index, path in sets}
        evaluation = {"evaluation sets": ExternalInput(files=files)}
        config = DedupStage(**common, dedup=run.dedup)
        stages.append(Stage(config, inputs=filters, external={**documents, **evaluation}))
    vocabulary = {"vocabulary.path": run.vocabulary.path}
    return [
        *stages,
        Stage(
            VocabularyStage(**common, vocabulary=run.vocabulary),
            inputs=lists,
            external={**documents, "vocabulary": ExternalInput(files=vocabulary)},
        ),
        Stage(
            TokensStage(**common, keep_sources=bool(names)),
            inputs={"vocabulary": "vocabulary", **lists},
            external=documents,
        ),
        Stage(
            ExamplesStage(seed=run.seed, examples=run.examples, names=names),
            inputs={"tokens": "tokens"},
        ),
        *_encoder(run),
    ]


def _encoder(run: RunConfig) -> list[Stage]:
    """The stages from the examples to the encoder."""
    recipe, begins_with = run.mixed_recipe, run.word_vectors
    if recipe.continue_from:  # the finished run has already used what it began with
        recipe, begins_with = recipe.model_copy(update={"init": ""}), None
    vectors = []
    if begins_with:
        static = WordVectorsStage(width=run.encoder.hidden_size, word_vectors=begins_with)
        vectors.append(Stage(static, inputs={"tokens": "tokens"}))
    pretraining = Stage(
        PretrainStage(seed=run.pretraining_seed, encoder=run.encoder, pretrain=recipe),
        inputs={"examples": "examples", **{stage.name: stage.name for stage in vectors}},
        models={"continued": recipe.continue_from},
        external={"init": ExternalInput(models={"pretrain.init": recipe.init})},
    )
    return [*vectors, pretraining]


def _scoring(
    run: RunConfig, corpus: CorpusConfig, quality: QualityConfig, lines: Mapping[str, str]
) -> Stage:
    """The stage that scores documents; `lines`: its inputs."""
    # Which documents the scores keep or a list drops changes no score.
    others = {"keep": "", "scores": "", "drop_list": ""}
    cleaning = run.cleaning.model_copy(update=others)
    good = ExternalInput(
        files={f"quality.good.{index}.path": one.path for index, one in enumerate(quality.good)},
        exclude={
            f"quality.good.{index}.path": one.exclude for index, one in enumerate(quality.good)
        },
        packages={
            f"quality.good.{index}.packages": one.packages for index, one in enumerate(quality.good)
        },
    )
    external = {
        **_cleaned_documents(run, corpus),
        "labelled": ExternalInput(files={"quality.labelled": quality.labelled}),
        "good": good,
        "model": ExternalInput(models={"quality.model": quality.model}),
    }
    config = ScoresStage(seed=run.seed, corpus=corpus, cleaning=cleaning, quality=quality)
    return Stage(config, inputs=lines, external=external)


def _documents(corpus: CorpusConfig) -> dict[str, ExternalInput]:
    """The corpus as an external input."""
    sources = {f"corpus.sources.{index}": source for index, source in enumerate(corpus.sources)}
    return {
        "corpus": ExternalInput(
            files={f"{place}.path": source.path for place, source in sources.items()},
            exclude={f"{place}.path": source.exclude for place, source in sources.items()},
            packages={f"{place}.packages": source.packages for place, source in sources.items()},
        )
    }


def _cleaned_documents(run: RunConfig, corpus: CorpusConfig) -> dict[str, ExternalInput]:
    """The corpus, and the list of lines to remove from it if another run has made that."""
    listed = {"cleaning.boilerplate": run.cleaning.boilerplate}
    return {**_documents(corpus), "boilerplate": ExternalInput(artifacts=listed)}


def _finetuning(run: RunConfig, encoder: Mapping[str, str]) -> list[Stage]:
    """The fine-tuning stage, and the stages that make its data."""
    stages = []
    if run.finetune.tasks and run.labels:
        packages = {
            "labels.packages": run.labels.packages,
            "labels.test_packages": run.labels.test_packages,
        }
        labels = LabelsStage(seed=run.seed, labels=run.labels)
        stages.append(Stage(labels, external={"packages": ExternalInput(packages=packages)}))
    if run.pairs:
        stages.append(_pairs(run))
    if not run.finetune.tasks:
        return stages
    # The last stage above, if any, has made the labelled data: labels or pairs.
    labelled = {"labels": stages[-1].name} if stages else {}
    inputs = {**encoder, **labelled}
    words = {}
    if run.vocabulary.words and not run.corpus:
        stages.append(_words_of_pairs(run))
        words = {"vocabulary": "vocabulary"}
    if run.negatives:
        stages.append(_mining(run, run.negatives, inputs))
        inputs |= {"negatives": "negatives"}
    external = {
        f"task {task.name}": task_data(task, f"finetune.tasks.{index}")
        for index, task in enumerate(run.finetune.tasks)
    }
    second = {"finetune.second_encoder": run.finetune.second_encoder}
    external["second_encoder"] = ExternalInput(models=second)
    finetune = Stage(
        FinetuneStage(finetune=run.finetune),  # drops the fields that only the run has
        inputs={**inputs, **words},
        models={"encoder": run.finetune.encoder},
        external=external,
    )
    return [*stages, finetune]


def _distilling(run: RunConfig, config: DistillConfig) -> tuple[Stage, ...]:
    """The stages that make a smaller encoder of the teacher's."""
    teacher = {"teacher": config.teacher}
    pairs = () if config.texts else (_pairs(run),)
    texts = {} if config.texts else {"texts": "pairs"}
    lessons = Stage(
        LessonsStage(
            seed=run.seed,
            max_seq_length=config.max_seq_length,
            task=config.task,
            texts=config.texts,
        ),
        inputs=texts,
        models=teacher,
        external={"rows": ExternalInput(files={"texts": config.texts})},
    )
    # Which teacher it was is one of the inputs.
    recipe = config.model_copy(update={"teacher": ""})
    distill = Stage(
        DistillStage(seed=run.seed, distill=recipe),
        inputs={"lessons": "lessons", **texts},
        models=teacher,
        external={"rows": ExternalInput(files={"distill.texts": config.texts})},
    )
    report = Stage(
        ReportStage(name=run.name, report=run.report),
        inputs={stage.name: stage.name for stage in (*pairs, lessons, distill)},
    )
    return (*pairs, lessons, distill, report)


def _pairs(run: RunConfig) -> Stage:
    """The stage that makes pairs; it reads its documents from `corpus`, however configured."""
    if not run.pairs:
        raise AssertionError("the run has [pairs]")
    # Unnamed, and without its own sources: two runs that read the same documents share the
    # artifact.
    pairs = PairsStage(
        seed=run.seed,
        corpus=run.pairs_corpus.unnamed(),
        cleaning=run.cleaning.model_copy(update=WITHOUT_LISTS),
        pairs=run.pairs.model_copy(update={"sources": ()}),
    )
    is_corpus = run.pairs_corpus == run.corpus
    lines = {"boilerplate": "boilerplate"} if is_corpus and run.lists_boilerplate else {}
    return Stage(pairs, inputs=lines, external=_cleaned_documents(run, run.pairs_corpus))


def _words_of_pairs(run: RunConfig) -> Stage:
    """The stage that adds words of the documents of `[pairs]` to the encoder's vocabulary."""
    if not run.pairs:
        raise AssertionError("vocabulary.words without a corpus is for [pairs]")
    # Which pairs are drawn does not matter, so that runs of different length share the words.
    sizes = ("train_pairs", "evaluation_pairs", "sources")
    # Defaults rather than what is configured, which is no part of this key.
    usual = {name: type(run.pairs).model_fields[name].get_default() for name in sizes}
    config = VocabularyStage(
        seed=run.seed,
        corpus=run.pairs_corpus.unnamed(),
        cleaning=run.cleaning.model_copy(update=WITHOUT_LISTS),
        vocabulary=run.vocabulary,
        pairs=run.pairs.model_copy(update=usual),
    )
    path = {"vocabulary.path": run.vocabulary.path}
    external = {**_documents(run.pairs_corpus), "vocabulary": ExternalInput(files=path)}
    return Stage(config, external=external)


def _mining(run: RunConfig, config: NegativesConfig, inputs: Mapping[str, str]) -> Stage:
    """The stage that mines negatives for the rows of some tasks; `inputs` as of fine-tuning."""
    tasks = tuple(task.rows for task in run.finetune.tasks if task.family.ranks)
    # The configuration says how to mine; which encoder it was is one of the inputs.
    mining = config.model_copy(update={"encoder": ""})
    external = {
        f"task {task.name}": task_data(task, f"tasks.{index}") for index, task in enumerate(tasks)
    }
    # With an encoder of its own, mining does not wait for the run's.
    own = {role: stage for role, stage in inputs.items() if role != "encoder" or not config.encoder}
    return Stage(
        NegativesStage(negatives=mining, tasks=tasks),
        inputs=own,
        models={"encoder": config.encoder or run.finetune.encoder},
        external=external,
    )


def task_data(task: TaskConfig, place: str) -> ExternalInput:
    """The files that a task names; without any, the labels stage makes them.

    The name of a Hugging Face data set stays in the configuration, and thereby in the key.
    """
    named = {part: getattr(task, part) for part in TASK_SPLITS}
    named.update({f"more.{name}": path for name, path in task.more.items()})
    named["weights"] = task.weights
    named["collection.passages"] = task.collection.passages
    named["collection.queries"] = task.collection.queries
    files = {
        f"{place}.{part}": path
        for part, path in named.items()
        if path and not path.startswith(DATASETS_PREFIX)
    }
    folders = {f"{place}.folder": task.folder}
    if task.glue:  # the unlabelled test files are often missing
        needed = (f"{place}.train", f"{place}.dev")
        folders |= {
            name: path
            for name, path in files.items()
            if name not in needed and is_local(path) and not os.path.exists(located(path))
        }
    present = {name: path for name, path in files.items() if name not in folders}
    return ExternalInput(files=present, folders=folders)
