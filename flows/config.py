"""One run: what is wanted (`RunConfig`) and where it happens (`MachineConfig`).

In:  `configs/NAME.toml` with `--set` overrides; optionally a machine file (`--on`).
Out: frozen tables from which every stage's own configuration is cut.
"""

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from artifacts.config import Config, StageConfig
from flows.launchers.kubernetes import KubernetesConfig
from flows.launchers.slurm import SlurmConfig
from model.config import (
    FP8_MULTIPLE,
    Benchmark,
    EncoderConfig,
    EvaluateConfig,
    FinetuneConfig,
    PretrainConfig,
    TaskConfig,
    TrainingMachine,
)
from pipeline.config.settings import (
    CleaningConfig,
    CorpusConfig,
    DedupConfig,
    ExamplesConfig,
    LabelsConfig,
    PairsConfig,
    VocabularyConfig,
)
from pipeline.config.stage_tables import PipelineMachine

RESERVED_NAMES = ("artifacts", "prefect")
"""Folders of a workspace, which no run may be named after."""

WITH_A_CORPUS = (
    *("cleaning", "dedup", "vocabulary", "examples"),
    *("encoder", "pretrain", "evaluate"),
)
"""Tables about learning from a corpus and about its held-out text; they say nothing without one."""


_PASSWORD = re.compile(
    r"[A-Z][A-Z0-9+.-]*://(?:[^/@\s]*:[^/@\s]+@"  # user:password@
    r"|\S*[?&][^=&\s]*(?:signature|token|secret|password|credential|api_?key|sig)[^=&\s]*=)",
    re.IGNORECASE,
)
"""A URL that carries credentials, signed ones included."""


def _without_passwords(value: JsonValue, place: str = "") -> None:
    """Refuse URLs with credentials: everything here is written into records and stage tables."""
    if isinstance(value, str) and _PASSWORD.match(value):
        raise ValueError(
            f"{place}: a URL with a password or token, which would be written into run.json and "
            "stage tables; take it out, and keep it in ~/.config/fsspec or an FSSPEC_… variable"
        )
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            _without_passwords(inner, f"{place}.{name}" if place else str(name))


class TaskRunConfig(TaskConfig):
    """A task, and the name papers use for it, which only the evaluation reads."""

    published: Benchmark | None = None
    """The benchmark task whose official files these are: the paper's figures stand beside ours
    where it has an encoder of the same size. GLUE's tasks are known by `glue`."""


class PretrainRunConfig(PretrainConfig):
    """Pre-training, and after which: the stage itself is given the finished run as an input."""

    later_fields: ClassVar[frozenset[str]] = PretrainConfig.later_fields | {"continue_from"}

    continue_from: str = ""
    """Finished run (its name, or its encoder's directory) whose training goes on, with its
    optimizer's state, until `steps` steps are done in all; empty: from the start. The learning rate
    warms up a second time, over `optimizer.warmup_steps` (docs/training.md)."""


class FinetuneRunConfig(FinetuneConfig):
    """Fine-tuning, and of what: the stage itself is given its encoder as an input."""

    tasks: tuple[TaskRunConfig, ...] = ()
    """The tasks."""

    encoder: str = ""
    """Encoder to fine-tune in a run without a corpus: a run's name, an artifact's directory, or a
    folder in Hugging Face's layout. Empty: the one that this run trains."""


class ReportConfig(Config):
    """The report."""

    title: str = ""
    """Headline; empty: the run's name."""

    note: str = ""
    """First line under the headline: what a reader must know before believing a number."""

    show_text: bool = True
    """False: no text of the corpus appears in any report, log or summary."""

    answers: tuple[str, ...] = ()
    """Words that are right in each of `evaluate.masked_sentences`, in its order, alternatives
    divided by `|`: `"array|matrix"`. Empty: predictions are shown without a score."""


class RunConfig(Config):
    """One run, whole: every departure from the paper."""

    former_names: ClassVar[Mapping[str, str]] = {"unwanted": "dedup"}

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=100)
    """The run's folder in the workspace; `artifacts` is reserved."""

    seed: int = Field(default=12345, ge=0, lt=1 << 63)
    """Seed of every random choice in the run."""

    corpus: CorpusConfig | None = None
    """Documents to train an encoder on; absent where `finetune.encoder` names a pretrained one."""

    cleaning: CleaningConfig = CleaningConfig()
    """Which documents are dropped."""

    dedup: DedupConfig = DedupConfig()
    """Near-duplicates, and overlap with evaluation sets; searched for only on request."""

    vocabulary: VocabularyConfig = VocabularyConfig()
    """The WordPiece vocabulary."""

    examples: ExamplesConfig = ExamplesConfig()
    """Masked examples."""

    encoder: EncoderConfig = EncoderConfig()
    """Shape of the encoder."""

    pretrain: PretrainRunConfig = PretrainRunConfig()
    """Pre-training."""

    labels: LabelsConfig | None = None
    """Labelled tasks made from docstrings; absent for a corpus of one's own."""

    pairs: PairsConfig | None = None
    """Pairs of the documents' own texts, on which a task `retrieval` is trained and scored."""

    finetune: FinetuneRunConfig = FinetuneRunConfig()
    """Fine-tuning; without tasks the stage is left out."""

    evaluate: EvaluateConfig = EvaluateConfig()
    """Held-out evaluation."""

    report: ReportConfig = ReportConfig()
    """The report."""

    @model_validator(mode="after")
    def _no_password(self) -> "RunConfig":
        _without_passwords(self.model_dump(mode="json"))
        return self

    @model_validator(mode="after")
    def _one_beginning(self) -> "RunConfig":
        if self.corpus and self.finetune.encoder:
            raise ValueError(
                "finetune.encoder names a finished encoder, and [corpus] is there to train one; "
                "choose one (to train on from a finished one: pretrain.init)"
            )
        if not self.corpus and not (self.finetune.encoder and self.finetune.tasks):
            raise ValueError(
                "nothing to begin with; give [[corpus.sources]] to train an encoder, or "
                "finetune.encoder and [[finetune.tasks]] to fine-tune a finished one"
            )
        return self

    @model_validator(mode="after")
    def _nothing_about_a_corpus_without_one(self) -> "RunConfig":
        fields = type(self).model_fields
        idle = [name for name in WITH_A_CORPUS if getattr(self, name) != fields[name].default]
        if idle and not self.corpus:
            raise ValueError(
                f"[{idle[0]}] says nothing in a run without a corpus; take it out, or give "
                "[[corpus.sources]] instead of finetune.encoder"
            )
        return self

    @model_validator(mode="after")
    def _answers_fit_the_sentences(self) -> "RunConfig":
        answers, sentences = len(self.report.answers), len(self.evaluate.masked_sentences)
        if answers not in (0, sentences):
            raise ValueError(
                f"report.answers has {answers} entries for {sentences} evaluate.masked_sentences; "
                "give one for each, in the same order, or none"
            )
        return self

    @model_validator(mode="after")
    def _phases_are_prepared(self) -> "RunConfig":
        prepared = self.examples.max_seq_lengths
        for phase in self.pretrain.phases if self.corpus else ():
            if phase.max_seq_length not in prepared:
                raise ValueError(
                    f"pretrain.phases asks for length {phase.max_seq_length}, examples."
                    f"max_seq_lengths prepares {', '.join(map(str, prepared))}; make them agree"
                )
        return self

    @model_validator(mode="after")
    def _lengths_fit_the_encoder(self) -> "RunConfig":
        wanted = [("pretrain.phases", phase.max_seq_length) for phase in self.pretrain.phases]
        wanted += [(f"task {task.name}", task.max_seq_length) for task in self.finetune.tasks]
        place, longest = max(wanted, key=lambda one: one[1])
        positions = self.encoder.max_position_embeddings
        if self.corpus and longest > positions:
            raise ValueError(
                f"{place} asks for {longest} tokens, the encoder has {positions} positions; "
                f"set encoder.max_position_embeddings = {longest}, or shorten the sequences"
            )
        return self

    @model_validator(mode="after")
    def _tasks_have_data(self) -> "RunConfig":
        for task in self.finetune.tasks:
            if not task.train and not self.labels and not self.pairs:
                raise ValueError(
                    f"task {task.name} names no training file, and without [labels] nothing makes "
                    'one; give train = "FILE", or, for retrieval, the table [pairs]'
                )
        return self

    @model_validator(mode="after")
    def _pairs_have_a_task(self) -> "RunConfig":
        if not self.pairs:
            return self
        if self.labels:
            raise ValueError("[labels] and [pairs] both make training files; give each its own run")
        if not self.pairs.sources and not self.corpus:
            raise ValueError("[pairs] has no documents; give [[pairs.sources]]")
        waiting = [task.name for task in self.finetune.tasks if not task.train]
        if waiting != ["retrieval"] or self.pairs_task.kind != "retrieval":
            raise ValueError(
                '[pairs] makes the files of one task, name = "retrieval", kind = "retrieval", '
                f"without train; tasks without: {', '.join(waiting) or 'none'}"
            )
        reads = {source.reader == "docstrings" for source in self.pairs_corpus.sources}
        if reads != {self.pairs.kind == "signature"}:
            raise ValueError(
                'pairs.kind = "signature" goes with the reader docstrings, and no other kind does'
            )
        return self

    @property
    def pairs_task(self) -> TaskRunConfig:
        """The task whose files `[pairs]` makes."""
        return next(task for task in self.finetune.tasks if not task.train)

    @property
    def pairs_corpus(self) -> CorpusConfig:
        """The documents that `[pairs]` are made of."""
        if self.pairs and self.pairs.sources:
            return CorpusConfig(sources=self.pairs.sources, on_bad_file="skip")
        if not self.corpus:
            raise AssertionError("[pairs] has sources, or the run has a corpus")
        return self.corpus

    @model_validator(mode="after")
    def _fp8_fits(self) -> "RunConfig":
        wide = {name: getattr(self.encoder, name) for name in ("hidden_size", "intermediate_size")}
        for name, size in wide.items() if self.pretrain.precision == "fp8" else ():
            if size % FP8_MULTIPLE:
                raise ValueError(
                    f'pretrain.precision = "fp8" with encoder.{name} = {size}: FP8 products want '
                    f'multiples of {FP8_MULTIPLE}; use "bf16"'
                )
        return self

    @model_validator(mode="after")
    def _next_tokens_are_text_and_unseen(self) -> "RunConfig":
        if self.pretrain.objective != "next_token":
            return self
        if self.encoder.attention_direction == "bidirectional":
            raise ValueError(
                'pretrain.objective = "next_token" with a bidirectional encoder, which sees what '
                'it is to predict: set encoder.attention_direction = "left_to_right"'
            )
        if self.examples.masking.mask_share or self.examples.masking.random_share:
            raise ValueError(
                'pretrain.objective = "next_token" reads text as it is: set '
                "examples.masking.mask_share = 0 and random_share = 0"
            )
        return self

    @model_validator(mode="after")
    def _lstms_give_features(self) -> "RunConfig":
        if self.encoder.layer_type == "lstm" and self.finetune.tasks and self.finetune.fine_tuning:
            raise ValueError(
                'encoder.layer_type = "lstm" is used by its features, as ELMo is: set '
                "finetune.fine_tuning = false and give [[finetune.features]]"
            )
        if self.encoder.layer_type == "lstm" and self.pretrain.precision == "fp8":
            raise ValueError('pretrain.precision = "fp8" has no LSTM layers; use "bf16"')
        return self

    @model_validator(mode="after")
    def _modern_encoders_have_one_loss(self) -> "RunConfig":
        if self.encoder.family == "bert" or not self.corpus:
            return self
        if self.pretrain.next_sentence_loss or self.examples.second_segment != "none":
            raise ValueError(
                'encoder.family = "modern" has no segments and no next-sentence head: set '
                'examples.second_segment = "none" and pretrain.next_sentence_loss = false'
            )
        if self.pretrain.objective != "masked_lm":
            raise ValueError(f'objective = "{self.pretrain.objective}" is for family = "bert"')
        if self.pretrain.precision == "fp8":
            raise ValueError(
                'pretrain.precision = "fp8" is for encoder.family = "bert"; use "bf16"'
            )
        return self

    @model_validator(mode="after")
    def _one_drop_list(self) -> "RunConfig":
        if self.dedup.wanted and self.cleaning.drop_list:
            raise ValueError(
                "cleaning.drop_list names a drop list and [dedup] asks for another; choose one"
            )
        return self

    @field_validator("name")
    @classmethod
    def _not_a_folder_of_the_workspace(cls, name: str) -> str:
        if name.lower() in RESERVED_NAMES:  # some file systems ignore case
            raise ValueError(f"{name} is a folder of the workspace; choose another name")
        return name


class ReportStage(StageConfig):
    """every finished artifact of a run → report."""

    stage: ClassVar[str] = "report"
    program: ClassVar[str] = "flows.report"
    format_version: ClassVar[int] = 5

    name: str
    """The run's name."""
    report: ReportConfig
    """How it is presented."""


class JobsConfig(Config):
    """How stages are started and watched."""

    launcher: Literal["local", "slurm", "kubernetes"] = "local"
    """Where the `stages` below run; the others run here."""

    stages: tuple[str, ...] = ("pretrain", "finetune", "evaluate")
    """The stages that the launcher is for: those that want GPUs."""

    grace: float = Field(default=30.0, gt=0.0)
    """Seconds between SIGTERM and SIGKILL (DeepSpeed's launcher itself waits up to 30)."""

    stall_timeout: float = Field(default=3600.0, gt=0.0)
    """Seconds without a line of output after which a stage is ended as hung, and retried."""

    retries: int = Field(default=2, ge=0)
    """How often a stage that was killed (pre-emption, lost node, hang) is started again."""

    retry_delay: float = Field(default=5.0, ge=0.0)
    """Seconds before such a restart."""


class RatesConfig(Config):
    """What `cloze plan` estimates with. Prices differ and change: look up yours."""

    gpu_tflops: float = Field(default=300.0, gt=0.0)
    """10^12 FLOPs a second that one GPU keeps up in training, of the matrix products alone: an
    assumption for the H100's class (40 % of what it can). `benchmarks/gpu_training.py` measures
    yours; a CPU core does 0.05 to 0.3."""

    step_seconds: float = Field(default=0.01, ge=0.0)
    """Of every step, however many GPUs share it: kernel launches, summing gradients, optimizer. An
    assumption; small encoders feel it most."""

    gpu_hour: float = Field(default=4.0, ge=0.0)
    """US dollars for a GPU for an hour: an assumption, between specialised and large providers."""

    core_hour: float = Field(default=0.07, ge=0.0)
    """US dollars for a vCPU with 4 GB for an hour (Dataflow, batch, us-central1: 0.056 + 4 times
    0.003557; cloud.google.com/dataflow/pricing)."""

    core_share: float = Field(default=0.5, gt=0.0)
    """Work of a vCPU, which is half of a core with two threads, against a core of the machine on
    which our rates were measured: an assumption."""

    shuffle_gigabyte: float = Field(default=0.011, ge=0.0)
    """US dollars for a gigabyte through Dataflow's shuffle (the same page)."""


class MachineConfig(Config):
    """Where a run happens; nothing here may change a result."""

    workspace: str = "runs"
    """Folder or fsspec URL for artifacts and runs."""

    pipeline: PipelineMachine = PipelineMachine()
    """Beam."""

    training: TrainingMachine = TrainingMachine()
    """DeepSpeed."""

    jobs: JobsConfig = JobsConfig()
    """Starting and watching stages."""

    slurm: SlurmConfig = SlurmConfig()
    """Slurm."""

    kubernetes: KubernetesConfig = KubernetesConfig()
    """Kubernetes."""

    rates: RatesConfig = RatesConfig()
    """Speeds and prices for `cloze plan`."""

    @model_validator(mode="after")
    def _no_password(self) -> "MachineConfig":
        _without_passwords(self.model_dump(mode="json"))
        return self


THIS_MACHINE = MachineConfig()
"""This machine, with the defaults."""
