"""The configuration of a run (`RunConfig`) and of the machine it runs on (`MachineConfig`).

In:  `configs/NAME.toml` with `--set` overrides, and optionally a machine file (`--on`).
Out: frozen tables, of which each stage is given its part.
"""

import re
from collections.abc import Mapping
from typing import ClassVar, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from cloze.artifacts.config import Config, StageConfig, flat
from cloze.artifacts.errors import UsageError
from cloze.flows.launchers.kubernetes import KubernetesConfig
from cloze.flows.launchers.slurm import SlurmConfig
from cloze.model.config import (
    Benchmark,
    DistillConfig,
    EncoderConfig,
    EvaluateConfig,
    FinetuneConfig,
    NegativesConfig,
    Precision,
    PretrainConfig,
    TaskConfig,
    TrainingMachine,
    WordVectorsConfig,
    check_mixture,
)
from cloze.model.hardware import FP8_MULTIPLE, cpu_precision, has_gpu, machine_precision
from cloze.model.task_families import RANKING_KINDS
from cloze.pipeline.config.settings import (
    PACKAGE_READERS,
    CleaningConfig,
    CorpusConfig,
    DedupConfig,
    ExamplesConfig,
    LabelsConfig,
    PairsConfig,
    PipelineMachine,
    QualityConfig,
    VocabularyConfig,
)

RESERVED_NAMES = ("artifacts", "prefect")
"""Folders of a workspace, whose names no run may have."""

RANKED = ("pretrain", "finetune", "evaluate")
"""Stages that run torch, as several ranks where the machine has them, on several nodes too."""

WITH_A_CORPUS = (
    *("cleaning", "quality", "dedup", "vocabulary", "examples", "encoder", "word_vectors"),
    *("pretrain", "evaluate"),
)
"""Tables that only apply to a run with a corpus."""


_PASSWORD = re.compile(
    r"[A-Z][A-Z0-9+.-]*://(?:[^/@\s]*:[^/@\s]+@"  # user:password@
    r"|\S*[?&][^=&\s]*(?:signature|token|secret|password|credential|api_?key|sig)[^=&\s]*=)",
    re.IGNORECASE,
)
"""A URL with credentials, such as a signed URL."""


class RecordedConfig(Config):
    """A configuration that is written into records and stage tables."""

    @model_validator(mode="after")
    def _no_password(self) -> Self:
        for place, value in flat(self.model_dump(mode="json")).items():
            if isinstance(value, str) and _PASSWORD.match(value):
                raise ValueError(
                    f"{place}: a URL with a password or token, which would be written into "
                    "run.json and stage tables; move it to ~/.config/fsspec or an FSSPEC_… variable"
                )
        return self


class TaskRunConfig(TaskConfig):
    """A task, and the benchmark it belongs to, which only the evaluation uses."""

    published: Benchmark | None = None
    """The benchmark task whose official files these are. The report then shows the paper's score
    for an encoder of the same size, if there is one. Not needed for tasks with `glue`."""


class PretrainRunConfig(PretrainConfig):
    """Pre-training, and the run it continues, which the stage receives as an input."""

    continue_from: str = ""
    """Finished run (its name, or its encoder's directory) whose training is continued with its
    optimizer state, up to `steps` steps in total; empty: start from scratch. The learning rate
    warms up again over `optimizer.warmup_steps` (docs/training.md)."""


class FinetuneRunConfig(FinetuneConfig):
    """Fine-tuning, and the encoder to fine-tune, which the stage receives as an input."""

    tasks: tuple[TaskRunConfig, ...] = ()
    """The tasks."""

    encoder: str = ""
    """Encoder to fine-tune in a run without a corpus: a run's name, an artifact's directory, or a
    folder in Hugging Face's layout. Empty: the encoder that this run trains."""


class ReportConfig(Config):
    """The report."""

    title: str = ""
    """Title; empty: the run's name."""

    note: str = ""
    """First line under the title: a caveat that readers of the numbers should know."""

    show_text: bool = True
    """False: no text of the corpus appears in any report, log or summary."""

    answers: tuple[str, ...] = ()
    """Correct words for each of `evaluate.masked_sentences`, in the same order, with alternatives
    separated by `|`: `"array|matrix"`. Empty: predictions are shown without a score."""


PROCESSORS = "processors"
"""Table of a configuration file: settings by the precision that `auto` means on a machine."""


def for_this_processor(table: Mapping[str, object]) -> dict[str, object]:
    """A run's table with its settings for the kind of processor here, such as `[processors.fp32]`.

    The kind decides, not a measurement: the same command must find the same artifacts again.
    """
    kinds, rest = table.get(PROCESSORS), {k: v for k, v in table.items() if k != PROCESSORS}
    if kinds is None:
        return rest
    # All but `auto`, which is what the table resolves.
    known = get_args(Precision)[1:]
    unknown = [*kinds] if isinstance(kinds, Mapping) else [str(kinds)]
    unknown = [kind for kind in unknown if kind not in known]
    if unknown or not isinstance(kinds, Mapping):
        raise UsageError(
            f"{PROCESSORS}: has {', '.join(unknown)}, expected tables named {' or '.join(known)}, "
            "the precisions of processors with and without bf16 products"
        )
    return _merged(rest, kinds.get(machine_precision()[0], {}))


def _merged(table: object, changes: object) -> dict[str, object]:
    """`table` with the values of `changes`, table by table; lists are replaced."""
    if not isinstance(table, Mapping) or not isinstance(changes, Mapping):
        raise UsageError(f"{PROCESSORS}: {changes!r} in place of a table; give its keys")
    result = dict(table)
    for name, value in changes.items():
        inner = isinstance(value, Mapping)
        result[name] = _merged(result.get(name, {}), value) if inner else value
    return result


class RunConfig(RecordedConfig):
    """The complete configuration of a run; the defaults are the paper's."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=100)
    """Name of the run and of its folder in the workspace; `artifacts` and `prefect` are
    reserved."""

    seed: int = Field(default=12345, ge=0, lt=1 << 63)
    """Seed for all random numbers of the run."""

    corpus: CorpusConfig | None = None
    """Documents to train an encoder on; omit it if `finetune.encoder` names a pre-trained one."""

    cleaning: CleaningConfig = CleaningConfig()
    """Cleaning and filtering of documents."""

    quality: QualityConfig | None = None
    """Scores of quality for all documents; `cleaning.keep` says which are kept."""

    dedup: DedupConfig = DedupConfig()
    """Removal of near-duplicates and of overlap with evaluation sets; off by default."""

    vocabulary: VocabularyConfig = VocabularyConfig()
    """The WordPiece vocabulary."""

    examples: ExamplesConfig = ExamplesConfig()
    """Masked examples."""

    encoder: EncoderConfig = EncoderConfig()
    """Architecture of the encoder."""

    word_vectors: WordVectorsConfig | None = None
    """Static vectors of the word-pieces, which pre-training begins with in place of random word
    embeddings; an empty table is enough."""

    pretrain: PretrainRunConfig = PretrainRunConfig()
    """Pre-training."""

    labels: LabelsConfig | None = None
    """Labelled tasks made from docstrings, for the demo."""

    pairs: PairsConfig | None = None
    """Text pairs made from the documents, for training and scoring a task `retrieval`."""

    negatives: NegativesConfig | None = None
    """Hard negatives mined for the tasks `retrieval` and `reranking`."""

    finetune: FinetuneRunConfig = FinetuneRunConfig()
    """Fine-tuning; skipped if there are no tasks."""

    distill: DistillConfig | None = None
    """A smaller encoder that learns from another one, on `[pairs]` of the documents."""

    evaluate: EvaluateConfig = EvaluateConfig()
    """Held-out evaluation."""

    report: ReportConfig = ReportConfig()
    """The report."""

    @property
    def pretraining_seed(self) -> int:
        """The seed of pre-training: its own, or the run's."""
        return self.seed if self.pretrain.seed is None else self.pretrain.seed

    @model_validator(mode="before")
    @classmethod
    def _for_this_processor(cls, table: object) -> object:
        return for_this_processor(table) if isinstance(table, Mapping) else table

    @model_validator(mode="after")
    def _documents_or_encoder(self) -> "RunConfig":
        if self.corpus and self.finetune.encoder:
            raise ValueError(
                "finetune.encoder names a pre-trained encoder, but [corpus] is for training one; "
                "remove one of them (to continue pre-training: pretrain.init)"
            )
        if self.distill:
            self._check_distillation(self.distill)
        elif not self.corpus and not (self.finetune.encoder and self.finetune.tasks):
            raise ValueError(
                "neither a corpus nor an encoder; give [[corpus.sources]] to train an encoder, or "
                "finetune.encoder and [[finetune.tasks]] to fine-tune a pre-trained one"
            )
        fields = type(self).model_fields
        # A table that differs from its default was written by someone who expects an effect.
        idle = [name for name in WITH_A_CORPUS if getattr(self, name) != fields[name].default]
        if self.pairs and self.finetune.tasks and self.vocabulary.words:  # of the pairs' documents
            idle.remove("vocabulary")
        if idle and not self.corpus:
            raise ValueError(
                f"[{idle[0]}] has no effect in a run without a corpus; remove it, or give "
                "[[corpus.sources]] instead of finetune.encoder"
            )
        if self.dedup.wanted and self.cleaning.drop_list:
            raise ValueError(
                "cleaning.drop_list names a drop list, but [dedup] makes another; remove one"
            )
        if self.cleaning.boilerplate and not (self.corpus and self.corpus.has_boilerplate):
            raise ValueError(
                "cleaning.boilerplate names a list of lines, but no source uses it; set "
                "boilerplate = {} in those whose lines it lists"
            )
        if self.quality and self.cleaning.scores:
            raise ValueError(
                "cleaning.scores names scores, but [quality] makes others; remove one of them"
            )
        if self.cleaning.keep and not (self.quality or self.cleaning.scores):
            raise ValueError(
                f"cleaning.keep = {self.cleaning.keep!r}, but nothing scores documents; add "
                '[quality] with labelled = "FILE", or set cleaning.scores'
            )
        if self.cleaning.scores and not self.cleaning.keep:
            raise ValueError(
                'cleaning.scores has no effect without cleaning.keep; set it, as "best 50%"'
            )
        answers, sentences = len(self.report.answers), len(self.evaluate.masked_sentences)
        if answers not in (0, sentences):
            raise ValueError(
                f"report.answers has {answers} entries for {sentences} evaluate.masked_sentences; "
                "give one for each sentence in the same order, or none"
            )
        return self

    def _check_distillation(self, config: DistillConfig) -> None:
        """Refuse a run that distils and does something else, or has nothing to learn from."""
        if self.corpus or self.finetune.tasks or self.labels or self.negatives:
            raise ValueError(
                "[distill] is a run of its own: leave out the corpus, the tasks and what is made "
                "for them"
            )
        if not config.teacher or bool(self.pairs and self.pairs.sources) == bool(config.texts):
            raise ValueError(
                "[distill] needs distill.teacher, and what to learn on: [[pairs.sources]] for "
                "vectors, or distill.texts for a task"
            )
        # Rows of a task have columns of their own, which a folder of texts lacks.
        if config.task and not config.texts:
            raise ValueError("distill.task needs distill.texts, rows in the task's format")
        if self.pairs and self.pairs.kind == "signature":
            raise ValueError('[distill] learns on texts: pairs.kind = "signature" has none')

    @model_validator(mode="after")
    def _mixtures_have_sources(self) -> "RunConfig":
        if any(
            source.name or source.share for source in (self.pairs.sources if self.pairs else ())
        ):
            raise ValueError(
                "pairs.sources: only [[corpus.sources]] are mixed; remove name and share"
            )
        if not self.corpus:
            return self
        # A share belongs to its source, or all stand together in the recipe: not both, as one would
        # silently win.
        given, names = self.corpus.shares, self.corpus.trained_names
        if given and self.pretrain.mixture:
            raise ValueError(
                "pretrain.mixture and the share of sources are the same; give one of them"
            )
        if self.mixed_recipe.mixes and not names:
            raise ValueError(
                "pretrain mixes sources by name, but they have none; give every source a name"
            )
        for phase in self.pretrain.phases if names else ():
            # Names and sums are checked here, whatever the sizes, which only the corpus tells.
            try:
                check_mixture(given)
                self.mixed_recipe.shares(phase, dict.fromkeys(names, 1.0))
            except UsageError as error:
                raise ValueError(str(error)) from None
        return self

    @property
    def mixed_recipe(self) -> PretrainRunConfig:
        """The recipe of pre-training, with the shares that sources have."""
        shares = self.corpus.shares if self.corpus else {}
        return self.pretrain.model_copy(update={"mixture": shares}) if shares else self.pretrain

    @model_validator(mode="after")
    def _lengths_agree(self) -> "RunConfig":
        if not self.corpus:
            return self
        # Examples are made for each length apart, so that training finds only these.
        prepared = self.examples.max_seq_lengths
        wanted = [("pretrain.phases", phase.max_seq_length) for phase in self.pretrain.phases]
        for place, length in wanted:
            if length not in prepared:
                raise ValueError(
                    f"{place} uses length {length}, but examples.max_seq_lengths is "
                    f"{', '.join(map(str, prepared))}; make them agree"
                )
        # Tasks may be shorter than any prepared length, but not longer than the positions.
        wanted += [(f"task {task.name}", task.max_seq_length) for task in self.finetune.tasks]
        place, longest = max(wanted, key=lambda one: one[1])
        positions = self.encoder.max_position_embeddings
        if longest > positions:
            raise ValueError(
                f"{place} uses {longest} tokens, but the encoder has {positions} positions; "
                f"set encoder.max_position_embeddings = {longest}, or shorten the sequences"
            )
        return self

    @model_validator(mode="after")
    def _tasks_have_data(self) -> "RunConfig":
        # The stage that makes labelled files makes them for tasks that name none.
        without = [task.name for task in self.finetune.tasks if not task.train]
        if without and not self.labels and not self.pairs:
            raise ValueError(
                f"task {without[0]} has no training file, and there is no [labels] to make one; "
                'give train = "FILE", or, for retrieval, the table [pairs]'
            )
        if not self.pairs or self.distill:
            return self
        if self.labels:
            raise ValueError("[labels] and [pairs] both make training files; use separate runs")
        if not self.pairs.sources and not self.corpus:
            raise ValueError("[pairs] has no documents; give [[pairs.sources]]")
        if without != ["retrieval"] or self.pairs_task.kind != "retrieval":
            raise ValueError(
                '[pairs] makes the files of a single task, name = "retrieval", kind = "retrieval", '
                f"without train; tasks without train: {', '.join(without) or 'none'}"
            )
        # Recurring lines are listed for the corpus, and a list is of the sources that it was made
        # of.
        if any(source.boilerplate for source in self.pairs.sources):
            raise ValueError(
                "pairs.sources: boilerplate is removed from [[corpus.sources]] only; leave it out, "
                "or make pairs of the corpus, without pairs.sources"
            )
        # Either the pairs are signatures and all sources readers of packages, or neither.
        reads = {source.reader in PACKAGE_READERS for source in self.pairs_corpus.sources}
        if reads != {self.pairs.kind == "signature"}:
            raise ValueError(
                'pairs.kind = "signature" only works with the reader '
                f"{', '.join(PACKAGE_READERS)}, and this reader only with it"
            )
        return self

    @model_validator(mode="after")
    def _negatives_have_tasks(self) -> "RunConfig":
        if self.negatives and not any(task.family.ranks for task in self.finetune.tasks):
            raise ValueError(
                f"[negatives] mines passages for tasks of the kind {' or '.join(RANKING_KINDS)}, "
                "and there is none; add one, or remove the table"
            )
        return self

    @property
    def lists_boilerplate(self) -> bool:
        """Whether the run makes a list of recurring lines itself."""
        # A list from elsewhere wins: then none is made.
        wanted = self.corpus is not None and self.corpus.has_boilerplate
        return wanted and not self.cleaning.boilerplate

    @property
    def pairs_task(self) -> TaskRunConfig:
        """The task for which `[pairs]` makes the files."""
        return next(task for task in self.finetune.tasks if not task.train)

    @property
    def pairs_corpus(self) -> CorpusConfig:
        """The documents from which `[pairs]` makes text pairs."""
        # Somebody's folder, as for `adapt`: what cannot be read is left out rather than refused.
        if self.pairs and self.pairs.sources:
            return CorpusConfig(sources=self.pairs.sources, on_bad_file="skip")
        if not self.corpus:
            raise AssertionError("[pairs] has sources, or the run has a corpus")
        return self.corpus

    @model_validator(mode="after")
    def _encoder_can_be_trained(self) -> "RunConfig":
        encoder, recipe = self.encoder, self.pretrain
        if recipe.objective == "next_token":
            if encoder.attention_direction == "bidirectional":
                raise ValueError(
                    'pretrain.objective = "next_token" with a bidirectional encoder, which sees '
                    'the tokens to predict: set encoder.attention_direction = "left_to_right"'
                )
            if self.examples.masking.mask_share or self.examples.masking.random_share:
                raise ValueError(
                    'pretrain.objective = "next_token" needs unmasked text: set '
                    "examples.masking.mask_share = 0 and random_share = 0"
                )
        if self.word_vectors and recipe.init:
            raise ValueError(
                "[word_vectors] replaces random word embeddings, but pretrain.init brings trained "
                "ones; leave out one of them"
            )
        if encoder.layer_type == "lstm" and self.finetune.tasks and self.finetune.fine_tuning:
            raise ValueError(
                'encoder.layer_type = "lstm" only provides features, like ELMo: set '
                "finetune.fine_tuning = false and give [[finetune.features]]"
            )
        if encoder.family == "modern":
            if recipe.next_sentence_loss or self.examples.second_segment != "none":
                raise ValueError(
                    'encoder.family = "modern" has no segments and no next-sentence head: set '
                    'examples.second_segment = "none" and pretrain.next_sentence_loss = false'
                )
            if recipe.objective != "masked_lm":
                raise ValueError(f'objective = "{recipe.objective}" is for family = "bert"')
        return self

    def precision(self, stage: str) -> str:
        """The precision in which `stage` computes; empty for one without an encoder."""
        # Evaluation is always in fp32: its scores are compared between machines. So is mining.
        recipes = {"pretrain": self.pretrain.precision, "finetune": self.finetune.precision}
        if self.distill:
            recipes["distill"] = self.distill.precision
        # Lessons too: a student learns the teacher's vectors, not their rounding.
        always = dict.fromkeys(("evaluate", "negatives", "lessons"), "fp32")
        return {**recipes, **always}.get(stage, "")

    @model_validator(mode="after")
    def _fp8_fits(self) -> "RunConfig":
        if self.pretrain.precision != "fp8":
            return self
        for name in ("hidden_size", "intermediate_size"):
            size = getattr(self.encoder, name)
            if size % FP8_MULTIPLE:
                raise ValueError(
                    f'pretrain.precision = "fp8" with encoder.{name} = {size}: FP8 products need '
                    f'multiples of {FP8_MULTIPLE}; use "bf16"'
                )
        if self.encoder.layer_type == "lstm":
            raise ValueError('pretrain.precision = "fp8" does not support LSTMs; use "bf16"')
        if self.encoder.family == "modern":
            raise ValueError(
                'pretrain.precision = "fp8" is for encoder.family = "bert"; use "bf16"'
            )
        return self

    @field_validator("name")
    @classmethod
    def _not_a_folder_of_the_workspace(cls, name: str) -> str:
        if name.lower() in RESERVED_NAMES:  # some file systems ignore case
            raise ValueError(f"{name} is a reserved folder of the workspace; choose another name")
        return name


class ReportStage(StageConfig):
    """all finished artifacts of a run → report."""

    stage: ClassVar[str] = "report"
    program: ClassVar[str] = "cloze.flows.report"
    format_version: ClassVar[int] = 15
    """15: an encoder is compared with itself before training first; what `cloze adapt` kept;
    14: the cells of a grid;
    13: words that were added to a vocabulary;
    12: the mixture of sources with names;
    11: errors below a tenth of a point have a digit of their own;
    10: the training of an encoder that came trained is called adaptation;
    9: an encoder that is compared with itself before training is called adapted."""

    name: str
    """The run's name."""
    report: ReportConfig
    """Presentation."""


class JobsConfig(Config):
    """Launching and supervising the programs of stages."""

    launcher: Literal["local", "slurm", "kubernetes"] = "local"
    """Where to run the `stages` below; all others run locally."""

    stages: tuple[str, ...] = ("pretrain", "finetune", "evaluate")
    """Stages started by the launcher: those that need GPUs."""

    grace: float = Field(default=30.0, gt=0.0)
    """Seconds between SIGTERM and SIGKILL (DeepSpeed's launcher itself waits up to 30)."""

    stall_timeout: float = Field(default=3600.0, gt=0.0)
    """Seconds without output after which a stage is ended as hung and retried."""

    retries: int = Field(default=2, ge=0)
    """Retries of a stage that was killed (pre-emption, lost node, hang)."""

    retry_delay: float = Field(default=5.0, ge=0.0)
    """Seconds before each retry."""


class RatesConfig(Config):
    """Speeds and prices for the estimates of `cloze plan`. Prices vary: look up yours."""

    gpu_tflops: float = Field(default=300.0, gt=0.0)
    """Sustained training throughput of one GPU in 10^12 FLOP/s, matrix products only. The default
    assumes 40 % of an H100's peak; `benchmarks/training/gpu_training.py` measures yours. A CPU core
    reaches 0.05 to 0.3."""

    step_seconds: float = Field(default=0.01, ge=0.0)
    """Overhead in seconds of each step, for any number of GPUs: kernel launches, gradient
    reduction, optimizer. An assumption; it matters most for small encoders."""

    gpu_hour: float = Field(default=4.0, ge=0.0)
    """Price of a GPU in US dollars per hour: an assumption, between specialised and large
    providers."""

    core_hour: float = Field(default=0.07, ge=0.0)
    """Price of a vCPU with 4 GB in US dollars per hour (Dataflow, batch, us-central1: 0.056 + 4
    times 0.003557; cloud.google.com/dataflow/pricing)."""

    core_share: float = Field(default=0.5, gt=0.0)
    """Speed of a vCPU, one of a core's two hyper-threads, relative to a core of the machine on
    which our rates were measured: an assumption."""

    shuffle_gigabyte: float = Field(default=0.011, ge=0.0)
    """Price of Dataflow's shuffle in US dollars per gigabyte (same page)."""

    stored_gigabyte: float = Field(default=0.02, ge=0.0)
    """Price of a gigabyte stored for a month in US dollars: an assumption, that of buckets of large
    providers; disks of machines cost two to eight times as much."""


class MachineConfig(RecordedConfig):
    """Where a run executes; nothing here changes a result beyond rounding."""

    workspace: str = Field(default="runs", min_length=1)
    """Folder or fsspec URL for artifacts and runs."""

    pipeline: PipelineMachine = PipelineMachine()
    """Beam."""

    training: TrainingMachine = TrainingMachine()
    """DeepSpeed."""

    jobs: JobsConfig = JobsConfig()
    """Launching and supervising stages."""

    slurm: SlurmConfig = SlurmConfig()
    """Slurm."""

    kubernetes: KubernetesConfig = KubernetesConfig()
    """Kubernetes."""

    rates: RatesConfig = RatesConfig()
    """Speeds and prices for the estimates of `cloze plan`."""

    def is_elsewhere(self, stage: str) -> bool:
        """Whether `stage` is a job of a cluster."""
        return self.jobs.launcher != "local" and stage in self.jobs.stages

    def nodes(self, stage: str) -> int:
        """The number of nodes that run `stage`: several for a Slurm job that runs as ranks."""
        spread = self.jobs.launcher == "slurm" and self.is_elsewhere(stage) and stage in RANKED
        return self.slurm.nodes if spread else 1

    def device(self, stage: str) -> Literal["cpu", "cuda"]:
        """What trains `stage`: `training.device`, or else the GPUs of a cluster or this machine."""
        if self.training.device != "auto":
            return self.training.device
        return "cuda" if self.is_elsewhere(stage) or has_gpu() else "cpu"

    def decided(self, run: RunConfig) -> RunConfig:
        """`run` with the precision of what trains its stages, instead of `auto`."""
        # Only stages that the run has are decided.
        trained = {
            "pretrain": run.corpus,
            "finetune": run.finetune.tasks,
            "distill": run.distill,
        }
        # Written into the run before it is planned, so that a key never says `auto`, which means
        # something else elsewhere.
        changes = {
            stage: getattr(run, stage).model_copy(update={"precision": self.precision(stage)})
            for stage, wanted in trained.items()
            if wanted and run.precision(stage) == "auto"
        }
        return run.model_copy(update=changes)

    def precision(self, stage: str) -> Literal["bf16", "fp32"]:
        """What `precision = "auto"` stands for where `stage` is trained.

        Raises `UsageError` for the processors of a cluster, of which this machine knows nothing.
        """
        if self.device(stage) == "cuda":
            return "bf16"
        if self.is_elsewhere(stage):
            raise UsageError(
                f'{stage}.precision = "auto" with training.device = "cpu" on {self.jobs.launcher}: '
                "it depends on the processors of the cluster's nodes, which this machine cannot "
                f'see; set {stage}.precision to "bf16" if they have bf16 products (cloze doctor, '
                'run there), else to "fp32"'
            )
        return cpu_precision()[0]


THIS_MACHINE = MachineConfig()
"""The local machine with default settings."""
