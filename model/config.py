"""Configuration of the stages that train and judge encoders. No framework is imported here.

In:  tables of a run's TOML file.
Out: one frozen `StageConfig` for each stage: pretrain, finetune, evaluate.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from artifacts.config import Config, GrownConfig, StageConfig
from artifacts.progress import say
from model.glue import GLUE, task_fields
from model.hardware import machine_precision


def _decided(precision: str) -> str:
    return machine_precision()[0] if precision == "auto" else precision


Precision = Annotated[Literal["auto", "bf16", "fp32"], AfterValidator(_decided)]
"""`auto` is decided when a configuration is read, so keys and plans name what will be computed."""

PretrainPrecision = Annotated[Literal["auto", "bf16", "fp32", "fp8"], AfterValidator(_decided)]
"""As `Precision`, or `fp8`: bf16 but for the products of the hidden layers."""

FP8_MULTIPLE = 16
"""FP8 products want widths that are multiples of this (torch._scaled_mm on CUDA)."""

MOST_STEPS = 1_000_000_000
MOST_EPOCHS = 100_000
"""More are a slip of the pen: a thousand times the paper's, and far more than anyone's."""

Family = Literal["bert", "modern"]
"""BERT's architecture (Devlin et al. 2019), or ModernBERT's (Warner et al. 2024)."""

Preset = Literal["tiny", "mini", "small", "medium", "base", "large", "17M", "32M", "68M"]

Sizes = tuple[int, int, int, int]
"""Layers, hidden size, heads, intermediate size."""

SIZE_NAMES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")

# Devlin et al. 2019 (base, large), Turc et al. 2019 (the others)
PRESETS: dict[str, Sizes] = {
    "tiny": (2, 128, 2, 512),
    "mini": (4, 256, 4, 1024),
    "small": (4, 512, 8, 2048),
    "medium": (8, 512, 8, 2048),
    "base": (12, 768, 12, 3072),
    "large": (24, 1024, 16, 4096),
}

# Warner et al. 2024 (base, large), Weller et al. 2025 (17M, 32M, 68M); tiny is ours, for tests
MODERN_PRESETS: dict[str, Sizes] = {
    "tiny": (4, 128, 2, 192),
    "17M": (7, 256, 4, 384),
    "32M": (10, 384, 6, 576),
    "68M": (19, 512, 8, 768),
    "base": (22, 768, 12, 1152),
    "large": (28, 1024, 16, 2624),
}

FAMILY_PRESETS: dict[str, dict[str, Sizes]] = {"bert": PRESETS, "modern": MODERN_PRESETS}

MODERN_DEFAULTS: dict[str, JsonValue] = {
    "max_position_embeddings": 1024,
    "hidden_act": "gelu",
    "attention_probs_dropout_prob": 0.0,
    "layer_norm_eps": 1e-5,
}
"""Where the modern family's defaults are not BERT's (Warner et al. 2024, A.2 and Table 3)."""


Direction = Literal["bidirectional", "left_to_right", "right_to_left"]
"""From where a token's vector may take what it says."""


class EncoderConfig(GrownConfig):
    """Shape of the encoder (paper, section 3; reference: modeling.py BertConfig)."""

    later_fields: ClassVar[frozenset[str]] = frozenset(
        {
            *("layer_type", "family", "local_attention", "global_attn_every_n_layers"),
            *("global_rope_theta", "local_rope_theta", "positions", "gated"),
        }
    )

    family: Family = "bert"
    """`modern`: norms before sub-layers, no biases, gated feed-forward, rotary positions and mostly
    local attention, no segments (docs/modern.md); other presets, and other defaults for a few of
    the fields below (`MODERN_DEFAULTS`)."""

    preset: Preset | None = "base"
    """Fills in the four sizes below where they are left at 0; its counts are the published ones."""

    num_hidden_layers: int = Field(default=0, ge=0, le=1024)
    """Transformer layers (L); 0: from the preset."""

    hidden_size: int = Field(default=0, ge=0, le=65536)
    """Width (H); 0: from the preset."""

    num_attention_heads: int = Field(default=0, ge=0, le=1024)
    """Heads (A); 0: from the preset."""

    intermediate_size: int = Field(default=0, ge=0, le=1 << 20)
    """Width inside the feed-forward layers; 0: from the preset (4 H)."""

    max_position_embeddings: int = Field(default=512, ge=8, le=65536)
    """Rows of the learned position table; `modern` has none, there it is the longest sequence that
    the encoder is meant for (1,024 unless said otherwise)."""

    type_vocab_size: int = Field(default=2, ge=1, le=1024)
    """Rows of the segment table (released models: 2)."""

    hidden_act: Literal["gelu_tanh", "gelu"] = "gelu_tanh"
    """GELU: the reference's tanh approximation, or the exact erf form Hugging Face calls `gelu`."""

    hidden_dropout_prob: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout on embeddings and dense outputs; of `modern` on the attention's output alone."""

    attention_probs_dropout_prob: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout on attention probabilities."""

    layer_norm_eps: float = Field(default=1e-12, gt=0.0, le=1.0)
    """Epsilon of layer normalisation (reference: 1e-12)."""

    initializer_range: float = Field(default=0.02, gt=0.0, le=100.0)
    """Standard deviation before truncation at two sigma (true deviation 0.0176;
    modeling.py:375)."""

    attention_direction: Direction = "bidirectional"
    """Which keys a token sees; the one-sided forms are the paper's OpenAI GPT and ELMo
    comparisons."""

    layer_type: Literal["transformer", "lstm"] = "transformer"
    """`lstm`: layers that read one way, `intermediate_size` cells projected to `hidden_size`, each
    added to what it read (ELMo; Peters et al. 2018, 3.4). For features only."""

    local_attention: int = Field(default=128, ge=2, le=1 << 20, multiple_of=2)
    """`modern`: a local layer's token sees keys at most half as many places away."""

    global_attn_every_n_layers: int = Field(default=3, ge=1, le=1024)
    """`modern`: layers 0, n, 2 n, … see the whole sequence, the others are local."""

    global_rope_theta: float = Field(default=10_000.0, gt=1.0, le=1e12)
    """`modern`: base of the rotary positions in layers that see the whole sequence (ModernBERT
    raises it to 160,000 for sequences of 8,192)."""

    local_rope_theta: float = Field(default=10_000.0, gt=1.0, le=1e12)
    """`modern`: the same in local layers."""

    positions: Literal["rotary", "learned"] = "rotary"
    """`modern`: `learned` has BERT's table instead, a rung of the ladder (`cloze ablations`)."""

    gated: bool = True
    """`modern`: False has BERT's two dense layers instead of GeGLU's three, another rung."""

    @property
    def has_position_table(self) -> bool:
        """Whether there is a vector for each position, and none beyond the last."""
        return self.family == "bert" or self.positions == "learned"

    @property
    def global_layers(self) -> int:
        """Layers whose attention sees the whole sequence."""
        if self.family == "bert":
            return self.num_hidden_layers
        return -(-self.num_hidden_layers // self.global_attn_every_n_layers)

    @property
    def layer_weights(self) -> int:
        """Weights of one layer that every token is multiplied with."""
        width, inner = self.hidden_size, self.intermediate_size
        if self.layer_type == "lstm":
            return 9 * width * inner
        is_gated = self.family == "modern" and self.gated
        return 4 * width**2 + (3 if is_gated else 2) * width * inner

    def attended(self, *, tokens: float, squared: float) -> float:
        """Pairs of query and key in all layers, of sequences of together `tokens` tokens.

        `squared` is the sum of their squared lengths. Of a local layer no more than its window.
        """
        if self.layer_type == "lstm":
            return 0
        local = min(squared, tokens * (self.local_attention + 1))
        return self.global_layers * squared + (self.num_hidden_layers - self.global_layers) * local

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, table: object) -> object:
        if not isinstance(table, dict):
            return table
        family, preset = table.get("family", "bert"), table.get("preset", "base")
        known = PRESETS
        if family == "modern":
            known, table = MODERN_PRESETS, {**MODERN_DEFAULTS, **table}
        if preset not in known:
            if preset in (*PRESETS, *MODERN_PRESETS):
                raise ValueError(
                    f'family = "{family}" has no preset {preset}; its presets are '
                    f"{', '.join(known)}"
                )
            return table
        sizes = dict(zip(SIZE_NAMES, known[preset], strict=True))
        return {**table, **{name: table.get(name) or size for name, size in sizes.items()}}

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "EncoderConfig":
        if (
            min(
                self.num_hidden_layers,
                self.hidden_size,
                self.num_attention_heads,
                self.intermediate_size,
            )
            < 1
        ):
            raise ValueError("name a preset, or give all four sizes")
        if self.hidden_size % self.num_attention_heads:
            heads = self.num_attention_heads
            raise ValueError(f"hidden_size {self.hidden_size} is not divisible by {heads} heads")
        return self

    @model_validator(mode="after")
    def _lstms_read_one_way(self) -> "EncoderConfig":
        if self.layer_type == "lstm" and self.attention_direction == "bidirectional":
            raise ValueError(
                'layer_type = "lstm" reads one way: set attention_direction to left_to_right or '
                "right_to_left, and train another one for the other way"
            )
        return self

    @model_validator(mode="after")
    def _modern_layers_have_their_own_parts(self) -> "EncoderConfig":
        if self.family == "bert":
            if self.positions != "rotary" or not self.gated:
                raise ValueError('positions and gated are for family = "modern"; leave them out')
            return self
        others = {
            "layer_type": "transformer",
            "attention_direction": "bidirectional",
            "type_vocab_size": 2,
            "attention_probs_dropout_prob": 0.0,
        }
        for name, only in others.items():
            if getattr(self, name) != only:
                raise ValueError(
                    f'{name} = {getattr(self, name)!r} is for family = "bert"; leave it out where '
                    'family = "modern"'
                )
        width = self.hidden_size // self.num_attention_heads
        if width % 2:
            raise ValueError(
                f"heads of {width} values cannot be rotated in pairs; choose hidden_size and "
                "num_attention_heads so that their quotient is even"
            )
        return self


MEASURING = ("lamb", "stable_adamw")
"""Optimizers that measure whole tensors: where ZeRO slices those, ranks sum what they measure."""


class OptimizerConfig(GrownConfig):
    """AdamW as the reference has it, and its alternatives (reference: optimization.py)."""

    later_fields: ClassVar[frozenset[str]] = frozenset({"schedule", "decay_share"})

    name: Literal["adamw", "lamb", "muon", "stable_adamw"] = "adamw"
    """LAMB is for batches of tens of thousands; Muon learns the same from fewer steps; StableAdamW
    (Wortsman et al. 2023; ModernBERT's) takes shorter steps where gradients jump. Muon needs whole
    matrices, so it runs with ZeRO 0 only."""

    learning_rate: float = Field(default=1e-4, gt=0.0, le=100.0)
    """Peak (paper, A.2: 1e-4)."""

    schedule: Literal["linear", "wsd", "constant"] = "linear"
    """After the warm-up: `linear` decay to 0 (paper, A.2), `wsd`, flat at the peak and at the end
    1 - √t (Hägele et al. 2024, 3; ModernBERT's), or `constant`: a `wsd` run without its end, from
    which others go on."""

    decay_share: float = Field(default=0.1, gt=0.0, le=1.0)
    """`wsd`: share of the steps in which the rate falls (Hägele et al. 2024, 4.2: 0.1 to 0.2)."""

    warmup_steps: int = Field(default=10_000, ge=0, le=MOST_STEPS)
    """Linear warm-up from 0 (paper: 10,000)."""

    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Decay of the first moment."""

    beta2: float = Field(default=0.999, ge=0.0, lt=1.0)
    """Decay of the second moment."""

    eps: float = Field(default=1e-6, gt=0.0, le=1.0)
    """Added outside the square root (reference: 1e-6)."""

    weight_decay: float = Field(default=0.01, ge=0.0, le=100.0)
    """Decoupled; not applied to biases and layer norms, applied to embeddings."""

    bias_correction: bool = False
    """The reference has none; True is torch's AdamW. Without it the first 1 / (1 - beta2) updates
    are too large, twofold at the 300th: set it where the warm-up is shorter than that."""

    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Global gradient norm above which gradients are scaled down."""


class PhaseConfig(Config):
    """A phase of pre-training at one sequence length."""

    max_seq_length: int = Field(ge=8, le=65536)
    """Which of the examples' lengths."""

    share: float = Field(gt=0.0, le=1.0)
    """Share of the steps."""


FORMER_MASKS = {"static": "stored", "dynamic": "redrawn"}
"""What `pretrain.masks` was called up to version 0.1; stage tables still say it, so that the keys
of finished runs stay as they are."""


Objective = Literal["masked_lm", "next_token"]
"""What pre-training predicts."""


class PretrainConfig(GrownConfig):
    """Pre-training (paper, A.2)."""

    later_fields: ClassVar[frozenset[str]] = frozenset(
        {"objective", "seed", "first_batch_size", "batch_growth_steps"}
    )

    steps: int = Field(default=1_000_000, ge=1, le=MOST_STEPS)
    """Optimizer steps."""

    batch_size: int = Field(default=256, ge=1, le=1 << 24)
    """Sequences per step over all ranks."""

    first_batch_size: int = Field(default=0, ge=0, le=1 << 24)
    """Sequences of the first step, where the batch grows (Warner et al. 2024, 2.2.2: 768 to 4,608
    in the first 3 % of the tokens); 0: every step has `batch_size`."""

    batch_growth_steps: int = Field(default=0, ge=0, le=MOST_STEPS)
    """Steps, of the first phase, in which the batch grows evenly to `batch_size`."""

    phases: tuple[PhaseConfig, ...] = (
        PhaseConfig(max_seq_length=128, share=0.9),
        PhaseConfig(max_seq_length=512, share=0.1),
    )
    """The lengths in order, shares summing to 1 (paper: 90 % at 128, the rest at 512)."""

    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer and schedule."""

    precision: PretrainPrecision = Field(default="auto", validate_default=True)
    """bf16 keeps fp32 masters. `auto` becomes bf16 or fp32 when the configuration is read: bf16
    where the machine has bf16 products, which is 1.6 to 3 times as fast, else fp32. `fp8` is bf16
    with the hidden layers' products in FP8, on NVIDIA GPUs from compute capability 8.9 on."""

    masks: Literal["static", "dynamic"] = "static"
    """Masks as the shards hold them, or drawn anew in each epoch (Liu et al. 2019, 4.1)."""

    next_sentence_loss: bool = True
    """False leaves the second loss out (paper, Table 5: no NSP)."""

    objective: Objective = "masked_lm"
    """`next_token`: every token from those on one side of it, for the paper's comparisons with
    OpenAI GPT and ELMo; wants an encoder of one direction and examples in which nothing is
    replaced."""

    seed: int | None = Field(default=None, ge=0, lt=1 << 63)
    """Of the initial weights, the order of the examples and dropout; None: the run's. Another one
    pre-trains again on the same examples."""

    evaluate_every: int = Field(default=1000, ge=1, le=MOST_STEPS)
    """Steps between held-out evaluations."""

    evaluation_examples: int = Field(default=2048, ge=1, le=MOST_STEPS)
    """Held-out examples per evaluation during training."""

    init: str = ""
    """Encoder to start from (warm start): a run's name, an artifact's directory, or a folder in
    Hugging Face's layout; empty: from scratch."""

    @field_validator("masks", mode="before")
    @classmethod
    def _masks_by_their_former_names(cls, masks: JsonValue) -> JsonValue:
        for name, former in FORMER_MASKS.items():
            if masks == former:
                say(f'warning: pretrain.masks = "{former}" is now "{name}"; rename it')
                return name
        return masks

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> "PretrainConfig":
        total = sum(phase.share for phase in self.phases)
        if abs(total - 1.0) > 1e-9:
            raise ValueError(f"the phases' shares sum to {total}, expected 1")
        return self

    @model_validator(mode="after")
    def _batches_grow_within_the_first_phase(self) -> "PretrainConfig":
        if bool(self.first_batch_size) != bool(self.batch_growth_steps):
            raise ValueError(
                "first_batch_size and batch_growth_steps go together; set both, or none"
            )
        if self.first_batch_size > self.batch_size:
            raise ValueError(
                f"first_batch_size {self.first_batch_size} is larger than batch_size "
                f"{self.batch_size}, to which the batch grows"
            )
        longest = round(self.phases[0].share * self.steps)
        if self.batch_growth_steps > longest:
            raise ValueError(
                f"batch_growth_steps {self.batch_growth_steps}: the first phase has {longest} "
                "steps; let the batch grow within it"
            )
        return self

    def sequences(self, first: int, stop: int) -> int:
        """Sequences of the steps from `first` up to `stop`, if no epoch ends among them."""
        growing = self.growing_batches()[first:stop]
        return sum(growing) + (stop - first - len(growing)) * self.batch_size

    def growing_batches(self) -> tuple[int, ...]:
        """Sequences of each of the first `batch_growth_steps` steps."""
        steps, first = self.batch_growth_steps, self.first_batch_size
        return tuple(first + (self.batch_size - first) * step // steps for step in range(steps))

    @model_validator(mode="after")
    def _next_tokens_stand_alone(self) -> "PretrainConfig":
        if self.objective == "next_token" and self.next_sentence_loss:
            raise ValueError(
                'objective = "next_token" has no second loss: set next_sentence_loss = false'
            )
        if self.objective == "next_token" and self.masks == "dynamic":
            raise ValueError('objective = "next_token" masks nothing: leave out masks = "dynamic"')
        return self


TaskKind = Literal[
    "classification",
    "pair_classification",
    "multi_label_classification",
    "regression",
    "tagging",
    "span",
    "multiple_choice",
    "retrieval",
]

MULTI_LABEL_METRICS = ("f1_micro", "f1_macro", "accuracy")
"""Defined where a text has any number of labels; accuracy: all labels of the text are right."""


class SpanConfig(Config):
    """Answers as spans of a text (reference: run_squad.py:67-113)."""

    doc_stride: int = Field(default=128, ge=1)
    """Tokens from the start of one chunk of a long text to the next."""

    max_query_length: int = Field(default=64, ge=1)
    """Longer questions are cut to so many tokens (counted)."""

    n_best: int = Field(default=20, ge=1)
    """Starts and ends considered for each chunk."""

    max_answer_length: int = Field(default=30, ge=1)
    """Tokens of the longest answer given."""

    null_threshold: float | None = None
    """Answer "" where the null score beats the best span by more; None: chosen on dev (2.0)."""


class RetrievalConfig(Config):
    """Texts found by their vectors (Henderson et al. 2017; Karpukhin et al. 2020)."""

    temperature: float = Field(default=0.05, gt=0.0, le=10.0)
    """Cosines are divided by it before the softmax (sentence-transformers: scale 20)."""

    dimensions: tuple[Annotated[int, Field(ge=1, le=1 << 16)], ...] = ()
    """Shorter vectors that are trained as well, the first numbers of the whole ones, each scored
    (Matryoshka, Kusupati et al. 2022); empty: whole vectors only."""


Benchmark = Literal["SQuAD 1.1", "SQuAD 2.0", "SWAG", "CoNLL-2003"]
"""Tasks beside GLUE's for which the paper reports figures (Tables 2 to 4 and 7)."""

DATASETS_PREFIX = "datasets:"
"""`datasets:NAME:CONFIG:SPLIT` names a Hugging Face data set, CONFIG and SPLIT may be empty."""


class TaskConfig(GrownConfig):
    """One labelled task: where its data are and which family judges it."""

    later_fields: ClassVar[frozenset[str]] = frozenset(
        {"after", "class_weights", "dev_share", "label_separator", "threshold", "retrieval"}
    )

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100)
    """Name in tables and file names; `labels/NAME` data of this name are used if `train` is
    empty."""

    glue: str = ""
    """Name of a GLUE task (model/glue.py); fills in kind, columns, metrics and files."""

    folder: str = ""
    """`glue`: the folder with train.tsv, dev.tsv and, where there is one, test.tsv."""

    kind: TaskKind
    """The family, a file in `model/tasks`."""

    metrics: tuple[str, ...] = ()
    """Official metrics, the first one headline; empty: the family's own."""

    train: str = ""
    """File with training data (CSV, TSV, JSON lines, Parquet, SQuAD JSON, CoNLL), or
    `datasets:NAME:CONFIG:SPLIT`; empty: from the labels stage."""

    dev: str = ""
    """File with development data; empty, and no test file either: `dev_share` of the training
    rows."""

    dev_share: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Share of the training rows, drawn once, of every label some, that are held out as dev where
    neither dev nor test is named."""

    test: str = ""
    """File with test data, labelled or not."""

    more: dict[str, str] = Field(default_factory=dict)
    """Further files to predict and score, by name (MNLI's mismatched sets)."""

    test_columns: dict[str, str] = Field(default_factory=dict)
    """As `columns`, for test files that differ; empty: as `columns`."""

    columns: dict[str, str] = Field(default_factory=dict)
    """Our column name to the file's, where they differ; a number for a file without header."""

    skip_short_rows: bool = False
    """Count and drop rows with too few columns instead of refusing the file (QQP has some)."""

    labels: tuple[str, ...] = ()
    """The labels in the order of the head's outputs; empty: those of the training data, sorted."""

    class_weights: Literal["none", "balanced"] = "none"
    """`balanced`: a training example weighs as much as its label is rare, rows / (labels × rows of
    its label), as in scikit-learn; where a text may have several, each label's yes and no."""

    label_separator: str = Field(default=",", min_length=1, max_length=8)
    """`multi_label_classification`: what stands between the labels in a cell of the file."""

    threshold: float = Field(default=0.5, gt=0.0, lt=1.0)
    """`multi_label_classification`: the probability from which a label is predicted."""

    train_examples: int = Field(default=0, ge=0)
    """Train on so many examples, the same ones for every seed; 0: all."""

    max_seq_length: int = Field(default=128, ge=8, le=65536)
    """Longer inputs are truncated as the reference truncates (counted)."""

    document_context: bool = False
    """`tagging`: fill the sequence with the neighbouring sentences of its document (paper, 5.3)."""

    span: SpanConfig = SpanConfig()
    """`span`: how long texts are cut and answers chosen."""

    retrieval: RetrievalConfig = RetrievalConfig()
    """`retrieval`: the loss, and shorter vectors."""

    batch_size: int = Field(default=32, ge=1, le=1 << 24)
    """Examples per step (paper, A.3: 16 or 32)."""

    learning_rate: float = Field(default=5e-5, gt=0.0, le=100.0)
    """Peak (paper, A.3: 5e-5, 3e-5, 2e-5)."""

    epochs: int = Field(default=3, ge=1, le=MOST_EPOCHS)
    """Passes over the training data (paper, A.3: 2 to 4)."""

    after: str = ""
    """Another task of the run: fine-tuning starts from the encoder as that task, with the same
    seed, has left it, and with a new head (paper, 4.2: TriviaQA, then SQuAD)."""

    @model_validator(mode="after")
    def _suits_its_kind(self) -> "TaskConfig":
        if self.class_weights != "none" and "classification" not in self.kind:
            raise ValueError(f"class_weights weigh the labels of a classification, not {self.kind}")
        if self.kind == "multi_label_classification":
            other = [name for name in self.metrics if name not in MULTI_LABEL_METRICS]
            if other:
                raise ValueError(
                    f"metrics: {', '.join(other)}, expected some of "
                    f"{', '.join(MULTI_LABEL_METRICS)} for {self.kind}"
                )
        return self

    @model_validator(mode="before")
    @classmethod
    def _fill_from_glue(cls, table: object) -> object:
        if not isinstance(table, dict) or not table.get("glue"):
            return table
        name = table["glue"]
        if name not in GLUE:
            raise ValueError(f"glue: unknown task {name}, known are {', '.join(GLUE)}")
        if not table.get("folder"):
            raise ValueError(f"glue = {name!r} wants folder = '...', where its .tsv files lie")
        return {**task_fields(name, table["folder"]), **table}


class GridConfig(Config):
    """Hyper-parameters tried for each task and encoder; the best on dev is kept (paper, A.3)."""

    batch_sizes: tuple[Annotated[int, Field(ge=1, le=1 << 24)], ...] = Field(
        default=(16, 32), min_length=1
    )
    """Examples per step."""

    learning_rates: tuple[Annotated[float, Field(gt=0.0, le=100.0)], ...] = Field(
        default=(5e-5, 3e-5, 2e-5), min_length=1
    )
    """Peaks."""

    epochs: tuple[Annotated[int, Field(ge=1, le=MOST_EPOCHS)], ...] = Field(
        default=(2, 3, 4), min_length=1
    )
    """Passes over the training data."""


Layers = Literal[
    "embeddings", "second_to_last", "last", "sum_last_four", "concat_last_four", "sum_all"
]


class FeatureConfig(Config):
    """A feature-based way: the encoder is frozen, a small head reads its layers (paper, 5.3)."""

    layers: Layers = "concat_last_four"
    """Which layers (paper, Table 7); sums are weighted, the weights learnt."""

    head: Literal["bilstm", "linear"] = "bilstm"
    """Two layers of BiLSTM (paper), or a linear probe."""

    hidden_size: int = Field(default=768, ge=1, le=65536)
    """Width of the BiLSTM, both directions together."""

    learning_rate: float = Field(default=1e-3, gt=0.0, le=100.0)
    """Peak; the head starts from nothing."""

    epochs: int = Field(default=10, ge=1, le=MOST_EPOCHS)
    """Passes over the features, which are computed once."""


class FinetuneConfig(GrownConfig):
    """Fine-tuning: every task × initialisation × seed in one launch."""

    later_fields: ClassVar[frozenset[str]] = frozenset({"ensemble"})

    tasks: tuple[TaskConfig, ...] = ()
    """The tasks."""

    seeds: tuple[Annotated[int, Field(ge=0, lt=1 << 63)], ...] = Field(
        default=(0, 1, 2, 3, 4), min_length=1
    )
    """One trial per seed: order of the data, head, dropout."""

    initialisations: tuple[Literal["pretrained", "random"], ...] = ("pretrained",)
    """`random` trains the same architecture from scratch, for comparison."""

    fine_tuning: bool = True
    """Train all parameters; False leaves only the feature-based ways."""

    bilstm: bool = False
    """Fine-tune with a BiLSTM of two layers, drawn at random, before the head (paper, 5.1)."""

    features: tuple[FeatureConfig, ...] = ()
    """Feature-based ways, beside fine-tuning."""

    second_encoder: str = ""
    """A second encoder, named like `pretrain.init`, whose layers the features are joined with:
    ELMo's way, with a left-to-right and a right-to-left one."""

    ensemble: bool = False
    """Also evaluate the mean of all seeds' logits, one more system of every task, and submit its
    predictions (paper, Tables 1 and 2: ensembles)."""

    grid: GridConfig | None = None
    """Search before the seeds; None: the tasks' own values."""

    restarts: int = Field(default=0, ge=0)
    """How often a trial that ends no better than the majority is restarted (paper, 4.1)."""

    save: Literal["none", "best"] = "best"
    """Keep the weights of each task's best pre-trained trial on dev, for `cloze predict`."""

    evaluations: int = Field(default=0, ge=0)
    """Evaluations on dev per trial, spread evenly over its epochs; 0: after every epoch."""

    select: Literal["last", "best"] = "last"
    """Which epoch is evaluated on test: the last one, or the best one on dev."""

    warmup_share: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of the steps with rising learning rate (reference: 0.1)."""

    precision: Precision = Field(default="auto", validate_default=True)
    """Arithmetic, as in `[pretrain]`."""

    optimizer: OptimizerConfig = OptimizerConfig(warmup_steps=0)
    """Moments, decay and clipping; the rate and warm-up come from the task and `warmup_share`."""

    @field_validator("tasks")
    @classmethod
    def _tasks_differ(cls, tasks: tuple[TaskConfig, ...]) -> tuple[TaskConfig, ...]:
        names = [task.name.lower() for task in tasks]  # some file systems do not tell cases apart
        twice = [task.name for task in tasks if names.count(task.name.lower()) > 1]
        if twice:
            raise ValueError(f"two tasks are called {twice[-1]}; give each a name of its own")
        return tasks

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if twice:
            raise ValueError(f"seed {twice[0]} stands there twice; name every seed once")
        return seeds

    @model_validator(mode="after")
    def _ensembles_have_members(self) -> "FinetuneConfig":
        if self.ensemble and (len(self.seeds) < 2 or "pretrained" not in self.initialisations):
            raise ValueError(
                "finetune.ensemble averages the seeds of the pre-trained encoder: give at least "
                'two seeds, and "pretrained" among the initialisations'
            )
        return self

    @model_validator(mode="after")
    def _stages_follow_tasks_there_are(self) -> "FinetuneConfig":
        known: set[str] = set()
        for task in self.tasks:
            if task.after and task.after not in known:
                raise ValueError(
                    f"task {task.name} comes after {task.after}, which no task before it is "
                    f"called; before it: {', '.join(sorted(known)) or 'none'}"
                )
            if task.after and self.grid:
                raise ValueError(
                    f"task {task.name} comes after {task.after}, and finetune.grid searches every "
                    "task for itself; give each its own values instead"
                )
            if task.after and not self.fine_tuning:
                raise ValueError(
                    f"task {task.name} comes after {task.after}, but fine_tuning = false trains "
                    "no encoder; leave out one of the two"
                )
            known.add(task.name)
        return self

    @model_validator(mode="after")
    def _vectors_are_fine_tuned(self) -> "FinetuneConfig":
        found = [task.name for task in self.tasks if task.kind == "retrieval"]
        if found and (self.bilstm or self.features or not self.fine_tuning):
            raise ValueError(
                f"task {found[0]} trains the encoder's own vectors; leave out finetune.bilstm, "
                "[[finetune.features]] and fine_tuning = false, or give it a run of its own"
            )
        return self

    @model_validator(mode="after")
    def _bilstm_stands_on_what_is_fine_tuned(self) -> "FinetuneConfig":
        if self.bilstm and not self.fine_tuning:
            raise ValueError(
                "finetune.bilstm is for fine-tuning, which fine_tuning = false leaves out; on a "
                'frozen encoder: [[finetune.features]] with head = "bilstm"'
            )
        return self


class EvaluateConfig(GrownConfig):
    """What the evaluation looks at beyond the tasks."""

    later_fields: ClassVar[frozenset[str]] = frozenset({"heldout_examples", "all_masked"})

    masked_sentences: tuple[str, ...] = ()
    """Sentences with one [MASK] each, filled by the random model, the n-gram baseline and ours.
    Without any, words are masked in sentences of the corpus's own held-out text."""

    examples: int = Field(default=20_000, ge=1)
    """Largest number of held-out examples evaluated per split."""

    heldout_examples: str = ""
    """Examples whose held-out splits are used instead of the run's own: a run's name, or an
    artifact's directory. Encoders trained on different examples are compared on the same ones."""

    all_masked: bool = False
    """Put [MASK] at every predicted place, as whoever fills gaps does, whatever the training puts
    there."""

    count_model_tokens: int = Field(default=50_000_000, ge=1)
    """Largest number of training tokens the n-gram baseline is trained on."""

    guesses: int = Field(default=5, ge=1, le=1000)
    """Predictions shown for each [MASK]."""

    @field_validator("masked_sentences")
    @classmethod
    def _sentences_have_a_gap(cls, sentences: tuple[str, ...]) -> tuple[str, ...]:
        for sentence in sentences:
            if sentence.count("[MASK]") != 1:
                raise ValueError(f"{sentence[:80]!r} has no or several [MASK]; write exactly one")
        return sentences


class PretrainStage(StageConfig):
    """examples → encoder."""

    stage: ClassVar[str] = "pretrain"
    program: ClassVar[str] = "model.training.pretrain"
    format_version: ClassVar[int] = 3
    """3: other dropout masks."""

    seed: int
    """The run's seed."""
    encoder: EncoderConfig
    """Shape."""
    pretrain: PretrainConfig
    """Recipe."""

    @model_validator(mode="before")
    @classmethod
    def _read_former_names(cls, table: JsonValue) -> JsonValue:
        return _with_masks(table, {former: name for name, former in FORMER_MASKS.items()})

    @model_serializer(mode="wrap")
    def _write_former_names(self, handler: SerializerFunctionWrapHandler) -> JsonValue:
        return _with_masks(handler(self), FORMER_MASKS)


def _with_masks(table: JsonValue, names: dict[str, str]) -> JsonValue:
    """A stage table with `pretrain.masks` under another name."""
    recipe = table.get("pretrain") if isinstance(table, dict) else None
    if not isinstance(table, dict) or not isinstance(recipe, dict) or "masks" not in recipe:
        return table
    masks = str(recipe["masks"])
    return {**table, "pretrain": {**recipe, "masks": names.get(masks, masks)}}


class FinetuneStage(StageConfig):
    """encoder + labelled data → predictions and fine-tuned models."""

    stage: ClassVar[str] = "finetune"
    program: ClassVar[str] = "model.finetune.finetune"
    format_version: ClassVar[int] = 5
    """5: other dropout masks."""

    finetune: FinetuneConfig
    """Tasks and protocol."""


class EvaluateStage(StageConfig):
    """encoder + predictions, and held-out examples if it was trained on a corpus → scores."""

    stage: ClassVar[str] = "evaluate"
    program: ClassVar[str] = "model.evaluation.evaluate"
    format_version: ClassVar[int] = 3
    """3: without configured sentences words are masked in held-out ones."""

    seed: int
    """The run's seed."""
    evaluate: EvaluateConfig
    """What is judged."""
    published: dict[str, Benchmark] = Field(default_factory=dict)
    """What papers call tasks of the run that are not GLUE's, by the task's name."""


class TrainingMachine(Config):
    """Where training runs; nothing here can change what is learnt beyond rounding."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What to train on; `auto`: GPUs where there are any. A GPU that is there and cannot be used is
    an error, unless this says `cpu`."""

    ranks: int = Field(default=1, ge=1)
    """Processes on this machine; on GPUs one each."""

    threads: int = Field(default=0, ge=0)
    """CPU threads per rank; 0: the cores divided by the ranks."""

    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed ZeRO stage: 0 keeps everything whole on every rank, which is fastest where it fits;
    1 slices the optimizer's state, 2 the gradients too, 3 the weights too."""

    offload_optimizer: bool = False
    """ZeRO 1 to 3 on a GPU: masters and moments stay in the machine's memory and are updated there,
    for models that fit in no other way."""

    compile_layers: Literal["auto"] | bool = "auto"
    """Let torch compile the encoder's layers: pays on a GPU, after about a minute. `auto`: on GPUs
    where there is a C compiler, which Triton wants; on a CPU layers are single functions anyway."""

    cuda_graphs: bool = False
    """One rank on a GPU, ZeRO 0: passes over at most 20,480 tokens are replayed as CUDA graphs, for
    runs in which launching kernels takes longer than computing. No GPU has measured it yet."""

    token_budget: int = Field(default=0, ge=0)
    """Tokens per micro-batch; 0: 8,192 on a CPU (4,096 of encoders larger than base), on a GPU as
    many as its free memory holds."""

    attention: str = "auto"
    """Attention backend by name; `auto`: the one that measures fastest on the device."""

    checkpoint_activations: bool = False
    """Compute activations again in the backward pass: less memory, about a third more time."""

    checkpoint_every: int = Field(default=500, ge=1)
    """Steps between checkpoints."""

    keep_checkpoints: int = Field(default=2, ge=1)
    """How many of the last checkpoints stay; the best one by held-out loss stays besides."""

    checkpoints: str = ""
    """Folder for checkpoints, on a local or shared file system; empty: inside the unfinished
    artifact."""

    keep_optimizer: bool = True
    """Keep the optimizer's state beside the finished encoder (8 bytes a parameter), from which
    `pretrain.continue_from` goes on with more steps."""

    tensorboard: str = ""
    """Folder for TensorBoard's event files; empty: none."""

    wandb: str = ""
    """Project in Weights & Biases (`pip install 'cloze[wandb]'`); empty: none. With the variable
    WANDB_MODE=offline nothing is sent until `wandb sync`."""

    mlflow: str = ""
    """MLflow's tracking store (`pip install 'cloze[mlflow]'`): `sqlite:///mlflow.db`, or a
    server's address; empty: none."""

    max_skipped_steps: int = Field(default=10, ge=1)
    """So many steps in a row without a finite gradient end the run."""

    log_every: int = Field(default=50, ge=1)
    """Steps between log lines."""

    max_restarts: int = Field(default=0, ge=0)
    """How often the supervisor restarts ranks that died."""

    hang_timeout: float = Field(default=600.0, gt=0.0)
    """Seconds without a step after which the watchdog ends all ranks."""

    deepspeed: dict[str, object] = Field(default_factory=dict)
    """Raw keys merged into DeepSpeed's configuration: the escape hatch."""
