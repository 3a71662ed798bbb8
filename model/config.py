"""Configuration of the stages that train and evaluate encoders. No framework is imported here.

In:  tables of a run's TOML file.
Out: one frozen `StageConfig` per stage: pretrain, finetune, evaluate.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from cloze.artifacts.config import Config, StageConfig, among
from cloze.artifacts.errors import UsageError
from cloze.model.glue import GLUE, task_fields
from cloze.model.hardware import machine_precision
from cloze.model.task_families import TASK_FAMILIES, TaskFamily

Precision = Literal["auto", "bf16", "fp32"]
"""`auto` is resolved for the device that trains when a run is planned (`MachineConfig.precision`),
so keys and plans name the actual precision."""

PretrainPrecision = Literal["auto", "bf16", "fp32", "fp8"]
"""As `Precision`, or `fp8`: bf16, except for the matrix products of the hidden layers."""

MOST_STEPS = 1_000_000_000
MOST_EPOCHS = 100_000
MOST_MINUTES = 1_000_000.0
"""Sanity limits: 1,000 times the paper's steps, more epochs than anyone would train, two years."""

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
"""Defaults of the modern family that differ from BERT's (Warner et al. 2024, A.2 and Table 3)."""

MODERN_ONLY = frozenset(
    {
        *("local_attention", "global_attn_every_n_layers", "global_rope_theta"),
        *("local_rope_theta", "positions", "gated"),
    }
)
"""Settings that BERT's layers do not follow."""


Direction = Literal["bidirectional", "left_to_right", "right_to_left"]
"""Which side of a token its vector may depend on."""


class EncoderConfig(Config):
    """Shape of the encoder (paper, section 3; reference: modeling.py BertConfig)."""

    family: Family = "bert"
    """`modern`: pre-norm layers, no biases, gated feed-forward, rotary positions, mostly local
    attention, no segments (docs/modern.md). It has its own presets and, for a few of the fields
    below, its own defaults (`MODERN_DEFAULTS`)."""

    preset: Preset | None = "base"
    """Sets those of the four sizes below that are left at 0, as published."""

    num_hidden_layers: int = Field(default=0, ge=0, le=1024)
    """Transformer layers (L); 0: from the preset."""

    hidden_size: int = Field(default=0, ge=0, le=65536)
    """Width (H); 0: from the preset."""

    num_attention_heads: int = Field(default=0, ge=0, le=1024)
    """Heads (A); 0: from the preset."""

    intermediate_size: int = Field(default=0, ge=0, le=1 << 20)
    """Feed-forward width; 0: from the preset (4 H)."""

    max_position_embeddings: int = Field(default=512, ge=8, le=65536)
    """Size of the learned position table. `modern` has none; there it is the longest sequence that
    the encoder is meant for (default 1,024)."""

    type_vocab_size: int = Field(default=2, ge=1, le=1024)
    """Size of the segment table (released models: 2)."""

    hidden_act: Literal["gelu_tanh", "gelu"] = "gelu_tanh"
    """GELU: the reference's tanh approximation, or the exact erf form Hugging Face calls `gelu`."""

    hidden_dropout_prob: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout on embeddings and dense outputs; in `modern`, on the attention output only."""

    attention_probs_dropout_prob: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout on attention probabilities."""

    layer_norm_eps: float = Field(default=1e-12, gt=0.0, le=1.0)
    """Epsilon of layer normalisation (reference: 1e-12)."""

    initializer_range: float = Field(default=0.02, gt=0.0, le=100.0)
    """Standard deviation before truncation at two sigma (0.0176 after it; modeling.py:375)."""

    attention_direction: Direction = "bidirectional"
    """Which keys a token sees; the one-sided forms are for the paper's comparisons with OpenAI GPT
    and ELMo."""

    layer_type: Literal["transformer", "lstm"] = "transformer"
    """`lstm`: unidirectional LSTM layers with `intermediate_size` cells, projected to `hidden_size`
    and added to their input (ELMo; Peters et al. 2018, 3.4). For features only."""

    local_attention: int = Field(default=128, ge=2, le=1 << 20, multiple_of=2)
    """`modern`: window of the local layers; a token sees half of it to each side."""

    global_attn_every_n_layers: int = Field(default=3, ge=1, le=1024)
    """`modern`: attention is global in layers 0, n, 2 n, … and local in all others."""

    global_rope_theta: float = Field(default=10_000.0, gt=1.0, le=1e12)
    """`modern`: base of the rotary positions in global layers (ModernBERT raises it to 160,000 for
    sequences of 8,192)."""

    local_rope_theta: float = Field(default=10_000.0, gt=1.0, le=1e12)
    """`modern`: base of the rotary positions in local layers."""

    positions: Literal["rotary", "learned"] = "rotary"
    """`modern`: `learned` uses BERT's position table instead (`cloze ablations`)."""

    gated: bool = True
    """`modern`: False uses BERT's two dense layers instead of GeGLU (`cloze ablations`)."""

    @property
    def has_position_table(self) -> bool:
        """Whether positions are embeddings, so that there are none beyond the last."""
        return self.family == "bert" or self.positions == "learned"

    @property
    def global_layers(self) -> int:
        """Layers with global attention."""
        if self.family == "bert":
            return self.num_hidden_layers
        return -(-self.num_hidden_layers // self.global_attn_every_n_layers)

    @property
    def layer_weights(self) -> int:
        """Weights of one layer that every token is multiplied with."""
        width, inner = self.hidden_size, self.intermediate_size
        if self.layer_type == "lstm":
            # four gates, each with H × I weights for the input and for the projected state;
            # projection I × H
            return 9 * width * inner
        is_gated = self.family == "modern" and self.gated
        # query, key, value and output: H × H each; two products between H and I, or three with a
        # gate
        return 4 * width**2 + (3 if is_gated else 2) * width * inner

    @property
    def layer_parameters(self) -> int:
        """Weights, biases and norms of one layer.

        A BERT layer has four projections, two dense layers and two layer norms; a modern layer has
        three dense layers and no biases; an LSTM has four gates with two biases each and a
        projection.
        """
        width, inner = self.hidden_size, self.intermediate_size
        if self.layer_type == "lstm":
            return self.layer_weights + 8 * inner
        if self.family == "modern":
            return self.layer_weights + 2 * width
        # biases of the projections and of both dense layers; scale and shift of two norms
        return self.layer_weights + (4 * width + inner + width) + 2 * 2 * width

    def parameters(self, vocabulary_size: int) -> int:
        """Weights of the encoder with its pre-training heads; the decoder is tied."""
        width = self.hidden_size
        layers = self.num_hidden_layers * self.layer_parameters
        if self.family == "modern":
            # word embeddings; norms of embeddings, final layer and head; the head's dense layer and
            # bias; the first layer has no norm before attention
            rows = self.max_position_embeddings if self.has_position_table else 0
            outside = vocabulary_size * (width + 1) + rows * width + 3 * width + width**2
            return outside + layers - width
        rows = vocabulary_size + self.max_position_embeddings + self.type_vocab_size
        # three tables, and scale and shift of their norm
        embeddings = rows * width + 2 * width
        pooler = width**2 + width
        masked_lm = width**2 + width + 2 * width + vocabulary_size
        next_sentence = 2 * width + 2
        return embeddings + layers + pooler + masked_lm + next_sentence

    def attended(self, *, tokens: float, squared: float) -> float:
        """Query-key pairs in all layers, for sequences with `tokens` tokens in total.

        `squared` is the sum of their squared lengths. Local layers count at most their window.
        """
        if self.layer_type == "lstm":
            return 0
        # A token of a local layer sees its window and itself, but not more than its sequence.
        local = min(squared, tokens * (self.local_attention + 1))
        return self.global_layers * squared + (self.num_hidden_layers - self.global_layers) * local

    def training_flops(
        self, vocabulary_size: int, *, tokens: float, squared: float, masked: float
    ) -> float:
        """FLOPs of the matrix products of examples, forward and backward, with the masked LM head.

        `squared` is the sum of the squared lengths. Per token 6 FLOPs a weight; per query-key pair
        12 H; per masked token the transform and the vocabulary logits.
        """
        width = self.hidden_size
        weights = self.num_hidden_layers * self.layer_weights
        attention = 12.0 * width * self.attended(tokens=tokens, squared=squared)
        head = 6.0 * (width * vocabulary_size + width**2) * masked
        return 6.0 * weights * tokens + attention + head

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, table: object) -> object:
        if not isinstance(table, dict):
            return table
        family, preset = table.get("family", "bert"), table.get("preset", "base")
        known = PRESETS
        if family == "modern":
            # Under the table's own values, which take precedence.
            known, table = MODERN_PRESETS, {**MODERN_DEFAULTS, **table}
        if preset not in known:
            if preset in (*PRESETS, *MODERN_PRESETS):
                raise ValueError(
                    f'family = "{family}" has no preset {preset}; its presets are '
                    f"{', '.join(known)}"
                )
            return table
        sizes = dict(zip(SIZE_NAMES, known[preset], strict=True))
        # A size that is missing or 0 is the preset's.
        return {**table, **{name: table.get(name) or size for name, size in sizes.items()}}

    @model_validator(mode="after")
    def _sizes_and_directions_agree(self) -> "EncoderConfig":
        if not all(getattr(self, name) for name in SIZE_NAMES):
            raise ValueError("name a preset, or set all four sizes")
        if self.hidden_size % self.num_attention_heads:
            heads = self.num_attention_heads
            raise ValueError(f"hidden_size {self.hidden_size} is not divisible by {heads} heads")
        if self.layer_type == "lstm" and self.attention_direction == "bidirectional":
            raise ValueError(
                'layer_type = "lstm" is unidirectional: set attention_direction to left_to_right '
                "or right_to_left, and train a second encoder for the opposite direction"
            )
        return self

    @model_validator(mode="after")
    def _settings_suit_the_family(self) -> "EncoderConfig":
        if self.family == "bert":
            if unknown := self.changed() & MODERN_ONLY:
                raise ValueError(
                    f"{', '.join(sorted(unknown))}: not of BERT's architecture; leave out, or set "
                    'family = "modern"'
                )
            return self
        # What a modern layer lacks may only have its default.
        others = {
            "layer_type": "transformer",
            "attention_direction": "bidirectional",
            "type_vocab_size": 2,
            "attention_probs_dropout_prob": 0.0,
        }
        for name, only in others.items():
            if getattr(self, name) != only:
                raise ValueError(
                    f'{name} = {getattr(self, name)!r} requires family = "bert"; leave it out '
                    'with family = "modern"'
                )
        width = self.hidden_size // self.num_attention_heads
        if width % 2:
            raise ValueError(
                f"rotary positions need an even head width, not {width}; choose another "
                "hidden_size or num_attention_heads"
            )
        return self


OPTIMIZERS = {
    "adamw": "cloze.model.training.optimizer:AdamW",
    "lamb": "cloze.model.training.optimizer:Lamb",
    "muon": "cloze.model.training.optimizer:Muon",
    "stable_adamw": "cloze.model.training.optimizer:StableAdamW",
}
"""The optimizers by their name in a configuration: `module:name`, imported on first use. To add
one, write a subclass of `Lamb` with its own `step`, which takes its state from `counted_states`, in
a module of its own, and name it here; if it sums over ranks, in `MEASURING`, too. A subclass of
`AdamW` would also have to renew the bf16 copies of the parameters."""

OptimizerName = Annotated[
    str,
    AfterValidator(among(OPTIMIZERS)),
    WithJsonSchema({"type": "string", "enum": [*OPTIMIZERS]}),
]

MEASURING = ("lamb", "stable_adamw")
"""Optimizers that compute statistics of whole tensors; with ZeRO, ranks sum the parts of these."""


class OptimizerConfig(Config):
    """The reference's AdamW and its alternatives (reference: optimization.py)."""

    name: OptimizerName = "adamw"
    """LAMB is for batches of tens of thousands; Muon reaches the same loss in fewer steps;
    StableAdamW (Wortsman et al. 2023; used by ModernBERT) shortens its steps when gradients spike.
    Muon needs whole matrices, so it requires ZeRO 0."""

    learning_rate: float = Field(default=1e-4, gt=0.0, le=100.0)
    """Peak learning rate (paper, A.2: 1e-4)."""

    schedule: Literal["linear", "wsd", "constant"] = "linear"
    """After the warm-up: `linear` decay to 0 (paper, A.2); `wsd`, constant until a final 1 - √t
    decay (Hägele et al. 2024, 3; used by ModernBERT); or `constant`, a `wsd` run without the decay,
    to be continued by other runs."""

    decay_share: float = Field(default=0.1, gt=0.0, le=1.0)
    """`wsd`: share of the steps spent decaying (Hägele et al. 2024, 4.2: 0.1 to 0.2)."""

    warmup_steps: int = Field(default=10_000, ge=0, le=MOST_STEPS)
    """Linear warm-up from 0 (paper: 10,000)."""

    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Decay of the first moment."""

    beta2: float = Field(default=0.999, ge=0.0, lt=1.0)
    """Decay of the second moment."""

    eps: float = Field(default=1e-6, gt=0.0, le=1.0)
    """Added outside the square root (reference: 1e-6)."""

    weight_decay: float = Field(default=0.01, ge=0.0, le=100.0)
    """Decoupled weight decay; not applied to biases and layer norms, applied to embeddings."""

    bias_correction: bool = False
    """The reference has none; True gives torch's AdamW. Without it the first 1 / (1 - beta2)
    updates are too large (twofold at step 300): enable it if the warm-up is shorter than that."""

    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Global gradient norm above which gradients are scaled down."""

    @model_validator(mode="after")
    def _decays_as_the_schedule_does(self) -> "OptimizerConfig":
        if self.schedule == "linear" and "decay_share" in self.changed():
            raise ValueError(
                f'decay_share = {self.decay_share:g} with schedule = "linear", which decays from '
                'the warm-up to the end; leave it out, or set schedule = "wsd"'
            )
        return self


def _refuse_warmup_steps(optimizer: OptimizerConfig) -> OptimizerConfig:
    # No warm-up is the default of the whole table, the paper's that of a table without this entry.
    if optimizer.warmup_steps and "warmup_steps" in optimizer.changed():
        raise ValueError(
            f"warmup_steps = {optimizer.warmup_steps} has no effect here, where the number of "
            "steps follows from the rows; leave it out, and set warmup_share beside [optimizer]"
        )
    return optimizer


def _refuse_learning_rate(optimizer: OptimizerConfig) -> OptimizerConfig:
    if "learning_rate" in optimizer.changed():
        raise ValueError(
            f"learning_rate = {optimizer.learning_rate:g} has no effect here; leave it out, and "
            "set learning_rate of each task"
        )
    return optimizer


ScaledOptimizer = Annotated[OptimizerConfig, AfterValidator(_refuse_warmup_steps)]
"""An optimizer that warms up in a share of the steps."""

TaskOptimizer = Annotated[ScaledOptimizer, AfterValidator(_refuse_learning_rate)]
"""One whose learning rate is the task's."""

Shortened = tuple[tuple[int, int], ...]
"""(steps made, new last step) of each time that the rest of a schedule was shortened."""


def check_shortened(shortened: Shortened, steps: int | None = None) -> None:
    """Refuse what no run of so many `steps` can have recorded; None: of any number."""
    made, last = 1, steps
    for after, end in shortened:
        if not made <= after <= end or (last is not None and end >= last):
            raise ValueError(
                f"shortened: [{after}, {end}] is impossible here; expected [steps made, new last "
                "step] in the order in which the manifest lists them, each ending sooner"
            )
        made, last = after, end


Mixture = dict[str, Annotated[float, Field(ge=0.0, le=1.0)]]
"""Shares of the training tokens by the name of the source."""

Temperature = Annotated[float, Field(ge=0.0, le=1.0)]
"""Exponent of sizes: 1 divides by size, 0 evenly."""


def check_mixture(mixture: Mapping[str, float]) -> None:
    """Refuse shares that exceed 1."""
    if (total := sum(mixture.values())) > 1 + 1e-9:
        shares = ", ".join(f"{name} {share:g}" for name, share in mixture.items())
        raise ValueError(
            f"the shares of the mixture sum to {total:g} ({shares}), expected at most 1; lower them"
        )


def shares_of(
    mixture: Mapping[str, float], temperature: float, sizes: Mapping[str, float]
) -> dict[str, float]:
    """The share of the tokens of each source in `sizes`, its tokens; they sum to 1.

    Sources without a share in the `mixture` divide the rest by size to the power of `temperature`.
    Raises `UsageError` for sources that are unknown or empty, and for a rest that nothing is left
    to fill.
    """
    for name, share in mixture.items():
        if name not in sizes:
            raise UsageError(
                f"the mixture names the source {name}; the sources are {', '.join(sizes)}"
            )
        if share and not sizes[name]:
            raise UsageError(
                f"the mixture takes {share:.3g} of the tokens from the source {name}, of which "
                "cleaning and deduplication have left nothing to train on; the log of the stage "
                "tokens says why: change [cleaning], or remove its share"
            )
    rest = max(1 - sum(mixture.values()), 0.0)
    # At 1 they keep the shares of their sizes; the nearer to 0, the more alike their shares.
    others = {n: size**temperature for n, size in sizes.items() if n not in mixture and size}
    if rest > 1e-9 and not others:
        raise UsageError(
            f"the shares of the mixture sum to {1 - rest:g}, and no other source is left for the "
            "rest; raise them to 1"
        )
    total = sum(others.values())
    return {
        name: mixture[name] if name in mixture else rest * others.get(name, 0.0) / (total or 1.0)
        for name in sizes
    }


MOST_REPETITIONS = 4
"""Epochs of a text up to which repeating it is about as good as new text (Muennighoff et al. 2023,
6)."""


def repetition(name: str, epochs: float) -> str:
    """What to say of a source that is read so many times; empty for few."""
    if epochs <= MOST_REPETITIONS:
        return ""
    return (
        f"source {name} is read {epochs:,.1f} times; beyond {MOST_REPETITIONS} epochs, repeated "
        "text teaches less and less: lower its share, add text to it, or train for fewer steps"
    )


class PhaseConfig(Config):
    """A phase of pre-training at one sequence length."""

    max_seq_length: int = Field(ge=8, le=65536)
    """One of the lengths that the examples were prepared for."""

    share: float = Field(gt=0.0, le=1.0)
    """Share of the steps."""

    mixture: Mixture = Field(default_factory=dict)
    """Shares of the tokens of this phase by the name of the source; empty: those of
    `pretrain.mixture`. Names that are left out divide the rest."""

    temperature: Temperature | None = None
    """Its temperature; None: `pretrain.temperature`."""

    @model_validator(mode="after")
    def _shares_are_possible(self) -> "PhaseConfig":
        check_mixture(self.mixture)
        return self


Objective = Literal["masked_lm", "next_token"]
"""The pre-training task."""


class PretrainConfig(Config):
    """Pre-training (paper, A.2)."""

    steps: int = Field(default=1_000_000, ge=1, le=MOST_STEPS)
    """Optimizer steps."""

    batch_size: int = Field(default=256, ge=1, le=1 << 24)
    """Sequences per step, over all ranks."""

    first_batch_size: int = Field(default=0, ge=0, le=1 << 24)
    """Batch size of the first step, if it grows (Warner et al. 2024, 2.2.2: from 768 to 4,608 in
    the first 3 % of the tokens); 0: always `batch_size`."""

    batch_growth_steps: int = Field(default=0, ge=0, le=MOST_STEPS)
    """Steps of the first phase during which the batch size grows linearly to `batch_size`."""

    phases: tuple[PhaseConfig, ...] = (
        PhaseConfig(max_seq_length=128, share=0.9),
        PhaseConfig(max_seq_length=512, share=0.1),
    )
    """Sequence lengths in order, with shares summing to 1 (paper: 90 % at 128, the rest at 512)."""

    mixture: Mixture = Field(default_factory=dict)
    """Shares of the tokens by the name of the source, for phases without a mixture of their own.
    Usually given as `share` of the sources themselves."""

    temperature: Temperature = 1.0
    """Sources without a share divide the rest of the tokens by their size to the power of this: 1,
    by size; 0, evenly (mmBERT, Marone et al. 2025, 3.1: 0.7, 0.5 and 0.3 by phase, with languages
    as sources)."""

    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer and schedule."""

    precision: PretrainPrecision = "auto"
    """`auto` picks bf16 on GPUs and on processors with bf16 matrix products, where it is 1.6 to 3
    times as fast, else fp32; the machine file says what trains (`training.device`). bf16 keeps
    fp32 master weights. `fp8` is bf16 with FP8 products in the hidden layers; it requires an NVIDIA
    GPU of compute capability 8.9 or higher."""

    masks: Literal["static", "dynamic"] = "static"
    """`static`: masks stored in the examples; `dynamic`: new masks every epoch (Liu et al. 2019,
    4.1)."""

    next_sentence_loss: bool = True
    """False trains without next-sentence prediction (paper, Table 5: no NSP)."""

    objective: Objective = "masked_lm"
    """`next_token` predicts each token from those on one side, for the paper's comparisons with
    OpenAI GPT and ELMo; requires a one-directional encoder and examples without replaced tokens."""

    seed: int | None = Field(default=None, ge=0, lt=1 << 63)
    """Seed of the initial weights, the data order and dropout; None: the run's seed. Set it to
    pre-train again on the same examples."""

    evaluate_every: int = Field(default=1000, ge=1, le=MOST_STEPS)
    """Steps between held-out evaluations."""

    evaluation_examples: int = Field(default=2048, ge=1, le=MOST_STEPS)
    """Held-out examples per evaluation during training."""

    init: str = ""
    """Encoder to start from: a run's name, an artifact's directory, or a folder in Hugging Face's
    layout; empty: random initialisation."""

    minutes: float = Field(default=0.0, ge=0.0, le=MOST_MINUTES)
    """Time for training and its evaluations, all attempts together; 0: as long as the steps take.
    If in the last fifth of this time the steps left do not fit into it, the rest of the schedule is
    shortened so that they do. The manifest records `shortened`, and the number of steps made."""

    shortened: Shortened = ()
    """[[after, end], …]: after so many steps, the rest of the schedule was shortened to end at step
    `end`. Copied from the manifest of a run with `minutes`, it trains the same encoder again."""

    @model_validator(mode="after")
    def _time_limit_is_possible(self) -> "PretrainConfig":
        check_shortened(self.shortened, self.steps)
        if self.minutes and self.shortened:
            raise ValueError("minutes and shortened exclude each other; leave out one of them")
        if (self.minutes or self.shortened) and len(self.phases) > 1:
            raise ValueError(
                f"minutes and shortened: {len(self.phases)} phases, expected one, since the time "
                "of each length differs; set one phase, or leave them out"
            )
        return self

    @model_validator(mode="after")
    def _settings_agree(self) -> "PretrainConfig":
        check_mixture(self.mixture)
        total = sum(phase.share for phase in self.phases)
        if abs(total - 1.0) > 1e-9:
            raise ValueError(f"the shares of the phases sum to {total}, expected 1")
        if bool(self.first_batch_size) != bool(self.batch_growth_steps):
            raise ValueError(
                "first_batch_size and batch_growth_steps go together; set both or neither"
            )
        if self.first_batch_size > self.batch_size:
            raise ValueError(
                f"first_batch_size {self.first_batch_size} is larger than batch_size "
                f"{self.batch_size}, but batches can only grow"
            )
        # Rounded as `Curriculum` rounds the end of a phase.
        longest = round(self.phases[0].share * self.steps)
        if self.batch_growth_steps > longest:
            raise ValueError(
                f"batch_growth_steps {self.batch_growth_steps}: the first phase has {longest} "
                "steps, and the batch size must stop growing within it"
            )
        if self.objective == "next_token" and self.next_sentence_loss:
            raise ValueError(
                'objective = "next_token" has no sentence loss: set next_sentence_loss = false'
            )
        if self.objective == "next_token" and self.masks == "dynamic":
            raise ValueError('objective = "next_token" masks nothing: leave out masks = "dynamic"')
        return self

    @property
    def unreached_rate(self) -> str:
        """What to say of a warm-up that is longer than the run; empty of any other."""
        warmup, steps = self.optimizer.warmup_steps, self.steps
        if warmup < steps:
            return ""
        return (
            f"the learning rate never reaches {self.optimizer.learning_rate:g}: "
            f"optimizer.warmup_steps = {warmup:,} of {steps:,} steps; lower it"
        )

    @property
    def mixes(self) -> bool:
        """Whether any setting is about sources by name."""
        named = self.mixture or any(phase.mixture for phase in self.phases)
        temperatures = [self.temperature, *(phase.temperature for phase in self.phases)]
        return bool(named) or any(t not in (None, 1.0) for t in temperatures)

    def shares(self, phase: PhaseConfig, sizes: Mapping[str, float]) -> dict[str, float]:
        """The share of the tokens of each source in a phase, of sources of these `sizes`."""
        temperature = self.temperature if phase.temperature is None else phase.temperature
        return shares_of(phase.mixture or self.mixture, temperature, sizes)

    def sequences(self, first: int, stop: int) -> int:
        """Sequences in the steps from `first` up to `stop`, if no epoch ends among them."""
        # a slice beyond the growing steps is empty
        growing = self.growing_batches()[first:stop]
        return sum(growing) + (stop - first - len(growing)) * self.batch_size

    def growing_batches(self) -> tuple[int, ...]:
        """Batch sizes of the first `batch_growth_steps` steps."""
        steps, first = self.batch_growth_steps, self.first_batch_size
        return tuple(first + (self.batch_size - first) * step // steps for step in range(steps))


MOST_COUNTED_TOKENS = 200_000_000
"""Tokens of which neighbours are counted: more would take minutes and change little. A pair's count
has 32 bits, which so many tokens and the widest window cannot fill."""

MOST_PAIRS = 1 << 28
"""Pairs of a word-piece and a context that are counted, in 1 GiB."""


def contexts_of(vocabulary_size: int) -> int:
    """How many of the most frequent word-pieces are counted as neighbours."""
    return min(vocabulary_size, MOST_PAIRS // vocabulary_size)


class WordVectorsConfig(Config):
    """Static vectors of the word-pieces, with which pre-training begins (Levy et al. 2015).

    Computed from the run's own training documents, each of which counts once: positive pointwise
    mutual information of neighbours, and its largest singular vectors.
    """

    window: int = Field(default=5, ge=1, le=10)
    """Word-pieces to each side of one that count as its neighbours."""


TaskKind = Annotated[
    str,
    AfterValidator(among(TASK_FAMILIES)),
    WithJsonSchema({"type": "string", "enum": [*TASK_FAMILIES]}),
]


class SpanConfig(Config):
    """Extractive question answering (reference: run_squad.py:67-113)."""

    doc_stride: int = Field(default=128, ge=1)
    """Tokens between the starts of consecutive chunks of a long text."""

    max_query_length: int = Field(default=64, ge=1)
    """Longer questions are truncated to this many tokens (and counted)."""

    n_best: int = Field(default=20, ge=1)
    """Start and end candidates per chunk."""

    max_answer_length: int = Field(default=30, ge=1)
    """Maximum answer length in tokens."""

    null_threshold: float | None = None
    """Predict "" if the null score exceeds the best span's by more than this; None: tuned on dev
    (2.0)."""


class RetrievalConfig(Config):
    """Text retrieval by vectors (Henderson et al. 2017; Karpukhin et al. 2020)."""

    loss: Literal["own", "hybrid"] = "own"
    """`own`: each query picks its own passage from all of the batch; `hybrid`: it learns the
    ranking of all training passages by BM25 and by the vectors before training."""

    language: str = "english"
    """`hybrid`: stemmer and stopwords of BM25, `none` for neither."""

    temperature: float = Field(default=0.05, gt=0.0, le=10.0)
    """Cosines are divided by it before the softmax (sentence-transformers: scale 20)."""

    dimensions: tuple[Annotated[int, Field(ge=1, le=1 << 16)], ...] = ()
    """Shorter vectors, prefixes of the full ones, that are trained and scored as well (Matryoshka,
    Kusupati et al. 2022); empty: full vectors only."""

    query_prompt: str | None = None
    """Text put before every query; None: the encoder's own prompt `query`, if it has one."""

    passage_prompt: str | None = None
    """Text put before every passage; None: the encoder's own prompt `document`."""

    @model_validator(mode="after")
    def _learns_whole_vectors(self) -> "RetrievalConfig":
        if self.loss == "hybrid" and self.dimensions:
            raise ValueError('loss = "hybrid" is of whole vectors; leave out dimensions')
        return self


class RerankingConfig(Config):
    """Scores of passages that are read together with the query (Nogueira and Cho 2019)."""

    negatives: int = Field(default=7, ge=1, le=1000)
    """Passages that the relevant one is ranked against: the hard negatives of its row, then others,
    drawn at random."""

    loss: Literal["listwise", "pointwise"] = "listwise"
    """`listwise`: softmax over the candidates of a row; `pointwise`: sigmoid of every pair, whose
    scores are log-odds of relevance."""


class CollectionConfig(Config):
    """Passages, and queries, that rows name by an id: BEIR's layout (Thakur et al. 2021)."""

    passages: str = ""
    """File with the columns `_id`, `text` and, optionally, `title`, such as BEIR's corpus.jsonl.
    The rows of a task are then judgments, such as qrels/test.tsv: columns `query-id`, `corpus-id`
    and, optionally, `score`, a grade, of which those above 0 are relevant. `retrieval` ranks all
    passages on dev and test, whether or not a row names them."""

    queries: str = ""
    """File with the columns `_id` and `text`, such as BEIR's queries.jsonl; empty: the rows contain
    the queries themselves, in a column `query`."""

    @model_validator(mode="after")
    def _has_passages(self) -> "CollectionConfig":
        if self.queries and not self.passages:
            raise ValueError("queries without passages; name the file of passages as well")
        return self


class NegativesConfig(Config):
    """Hard negatives of `retrieval` and `reranking` tasks, mined before fine-tuning.

    Passages of the split that rank high for a query and are probably not relevant to it.
    """

    count: int = Field(default=7, ge=1, le=100)
    """Passages mined for each row."""

    by: tuple[Literal["vectors", "lexical"], ...] = Field(
        default=("vectors", "lexical"), min_length=1
    )
    """Rankings whose best passages are taken in turn: by cosine of the encoder's vectors, by words
    (BM25)."""

    margin: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Passages whose cosine with the query is not below that of the row's own by this share of it
    may be relevant, too, and are left out (Moreira et al. 2024: 0.05)."""

    language: str = "none"
    """Language whose stemmer and stopwords apply to words: english, german, …; none."""

    encoder: str = ""
    """Encoder whose vectors are compared: a run's name, an artifact's directory, or a folder in
    Hugging Face's layout; empty: the one that is fine-tuned."""


Benchmark = Literal["SQuAD 1.1", "SQuAD 2.0", "SWAG", "CoNLL-2003"]
"""Tasks outside GLUE for which the paper reports results (Tables 2 to 4 and 7)."""

FIELDS_OF_ROWS = (
    *("name", "kind", "train", "dev", "dev_share", "test", "more", "columns", "test_columns"),
    *("skip_short_rows", "skip_unlabelled_rows", "weights", "train_examples", "collection"),
)
"""Fields of a task that say where its rows are."""

DATASETS_PREFIX = "datasets:"
"""`datasets:NAME:CONFIG:SPLIT` names a Hugging Face data set; CONFIG and SPLIT may be empty."""


class TaskConfig(Config):
    """One labelled task: where its data is and how it is scored."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100)
    """Name in tables and file names; with `train` empty, the data of `labels/NAME` is used."""

    glue: str = ""
    """Name of a GLUE task (model/glue.toml); sets kind, columns, metrics and files."""

    folder: str = ""
    """`glue`: folder with train.tsv, dev.tsv and, optionally, test.tsv."""

    kind: TaskKind
    """Task family, a file in `model/tasks`."""

    metrics: tuple[str, ...] = ()
    """Metrics, the headline metric first; empty: the defaults of the family."""

    train: str = ""
    """Training file (CSV, TSV, JSON lines, Parquet, SQuAD JSON, CoNLL), or
    `datasets:NAME:CONFIG:SPLIT`; empty: from the labels stage."""

    dev: str = ""
    """Development file; if neither it nor a test file is given, `dev_share` of the training
    rows."""

    dev_share: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Share of the training rows, a fixed sample stratified by label, held out as dev if neither
    dev nor test is given."""

    test: str = ""
    """Test file, labelled or not."""

    more: dict[str, str] = Field(default_factory=dict)
    """Further files to predict and score, by name (MNLI's mismatched sets)."""

    test_columns: dict[str, str] = Field(default_factory=dict)
    """Columns of the test files, where they differ; empty: `columns`."""

    columns: dict[str, str] = Field(default_factory=dict)
    """Maps our column names to the file's; use numbers for a file without a header."""

    skip_short_rows: bool = False
    """Drop and count rows with too few columns instead of rejecting the file (QQP has some)."""

    skip_unlabelled_rows: bool = False
    """Leave out and count rows of train and dev whose label is blank, as in a table of which a part
    is labelled, instead of rejecting the file."""

    labels: tuple[str, ...] = ()
    """Labels in the order of the outputs; empty: those in the training data, sorted."""

    class_weights: Literal["none", "balanced"] = "none"
    """`balanced` weights examples by rows / (labels × rows with that label), as scikit-learn does;
    for multi-label tasks, positives and negatives of each label."""

    label_separator: str = Field(default=",", min_length=1, max_length=8)
    """`multi_label_classification`: separator between the labels in a cell."""

    threshold: float = Field(default=0.5, gt=0.0, lt=1.0)
    """`multi_label_classification`: probability above which a label is predicted."""

    thresholds: tuple[Annotated[float, Field(gt=0.0, lt=1.0)], ...] = ()
    """The same for each of `labels`, in their order; empty: `threshold` for all."""

    weights: str = ""
    """CSV with columns `row` (of the training file, from 1) and `weight`: 0 leaves the row out, 1
    keeps it, like all rows that are not listed. A column `text` must agree with the row. So written
    by a run, as label_errors/TASK.csv."""

    train_examples: int = Field(default=0, ge=0)
    """Train on this many examples, the same for every seed; 0: all."""

    max_seq_length: int = Field(default=128, ge=8, le=65536)
    """Longer inputs are truncated as in the reference (and counted)."""

    document_context: bool = False
    """`tagging`: fill the sequence with neighbouring sentences of the document (paper, 5.3)."""

    span: SpanConfig = SpanConfig()
    """`span`: chunking of long texts and selection of answers."""

    retrieval: RetrievalConfig = RetrievalConfig()
    """`retrieval`: loss and shorter vectors."""

    reranking: RerankingConfig = RerankingConfig()
    """`reranking`: candidates and loss."""

    collection: CollectionConfig = CollectionConfig()
    """`retrieval`, `reranking`: the texts that the rows name by id."""

    batch_size: int = Field(default=32, ge=1, le=1 << 24)
    """Examples per step (paper, A.3: 16 or 32)."""

    learning_rate: float = Field(default=5e-5, gt=0.0, le=100.0)
    """Peak learning rate (paper, A.3: 5e-5, 3e-5, 2e-5)."""

    epochs: int = Field(default=3, ge=1, le=MOST_EPOCHS)
    """Passes over the training data (paper, A.3: 2 to 4)."""

    compare_texts: bool = False
    """Pairs: the head also reads how far both texts' mean vectors are apart, and each word from its
    nearest in the other text, which an encoder that has seen little text does not learn to compare
    by [CLS]. Not in the paper."""

    after: str = ""
    """Another task of the run: fine-tuning starts from its encoder for the same seed, with a new
    head (paper, 4.2: TriviaQA, then SQuAD)."""

    @property
    def rows(self) -> "TaskConfig":
        """The task with only those settings that say where its rows are."""
        return TaskConfig.model_validate(self.model_dump(include={*FIELDS_OF_ROWS}))

    @property
    def family(self) -> TaskFamily:
        """What is known of the task by its kind."""
        return TASK_FAMILIES[self.kind]

    def check_positions(self, positions: int) -> None:
        """Refuse an encoder with fewer `positions` than the longest sequence has tokens."""
        if self.max_seq_length > positions:
            raise UsageError(
                f"task {self.name}: max_seq_length {self.max_seq_length}, but the encoder has "
                f"{positions} positions; set it to {positions} or less"
            )

    @model_validator(mode="after")
    def _suits_its_kind(self) -> "TaskConfig":
        family = self.family
        of_kinds = {name for known in TASK_FAMILIES.values() for name in known.settings}
        for name in sorted(self.changed() & (of_kinds - {*family.settings})):
            kinds = [kind for kind, known in TASK_FAMILIES.items() if name in known.settings]
            raise ValueError(
                f"{name} applies to tasks of kind {' or '.join(kinds)}, not to {self.kind}; "
                "leave it out"
            )
        # Settings of files that the task does not have.
        of_files = {
            "folder": (bool(self.glue), "applies with glue = NAME"),
            "dev_share": (not (self.dev or self.test), "applies without dev and test"),
            "test_columns": (
                bool(self.test) or any(name.startswith("test") for name in self.more),
                "applies with test",
            ),
        }
        for name, (applies, when) in of_files.items():
            if name in self.changed() and not applies:
                raise ValueError(f"{name} {when}; leave it out")
        if self.thresholds and len(self.thresholds) != len(self.labels):
            raise ValueError(
                f"thresholds: {len(self.thresholds)} for {len(self.labels)} labels; give one for "
                "each of labels = [...], in their order"
            )
        other = [name for name in self.metrics if name not in family.metrics]
        if family.metrics and other:
            raise ValueError(
                f"metrics: {', '.join(other)} not defined for {self.kind}; expected some of "
                f"{', '.join(family.metrics)}"
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
            raise ValueError(f"glue = {name!r} needs folder = '...' with its .tsv files")
        # Settings in the table take precedence over GLUE's.
        return {**task_fields(name, table["folder"]), **table}


class GridConfig(Config):
    """Hyper-parameters to search per task and encoder; the best on dev are kept (paper, A.3)."""

    batch_sizes: tuple[Annotated[int, Field(ge=1, le=1 << 24)], ...] = Field(
        default=(16, 32), min_length=1
    )
    """Examples per step."""

    learning_rates: tuple[Annotated[float, Field(gt=0.0, le=100.0)], ...] = Field(
        default=(5e-5, 3e-5, 2e-5), min_length=1
    )
    """Peak learning rates."""

    epochs: tuple[Annotated[int, Field(ge=1, le=MOST_EPOCHS)], ...] = Field(
        default=(2, 3, 4), min_length=1
    )
    """Passes over the training data."""


Layers = Literal[
    "embeddings", "second_to_last", "last", "sum_last_four", "concat_last_four", "sum_all"
]


class FeatureConfig(Config):
    """Feature-based training: the encoder is frozen, a small head reads its layers (paper, 5.3)."""

    layers: Layers = "concat_last_four"
    """Layers to use (paper, Table 7); sums have learnt weights."""

    head: Literal["bilstm", "linear"] = "bilstm"
    """A two-layer BiLSTM (paper), or a linear probe."""

    hidden_size: int = Field(default=768, ge=1, le=65536)
    """Width of the BiLSTM, both directions together."""

    learning_rate: float = Field(default=1e-3, gt=0.0, le=100.0)
    """Peak learning rate; the head is trained from scratch."""

    epochs: int = Field(default=10, ge=1, le=MOST_EPOCHS)
    """Passes over the features, which are computed once."""


ApproachName = Literal["class_means", "linear", "contrastive", "fine_tuning"]


class ChoiceConfig(Config):
    """Few labels: the approach is chosen by cross-validation on the training rows.

    Of those whose mean score is within one standard error of the best, the cheapest one wins
    (Breiman et al. 1984); but contrastive tuning wins unless it is clearly worse, as few rows
    cannot show what it gains and it takes seconds; with more than `many_rows`, fine-tuning does.
    Tasks with a single approach are trained as usual.
    """

    approaches: tuple[ApproachName, ...] = Field(
        default=("class_means", "linear", "contrastive", "fine_tuning"), min_length=1
    )
    """Approaches to compare. `class_means`: the nearest mean vector of a class; `linear`: logistic
    or ridge regression on the encoder's vectors; `contrastive`: the encoder's upper layers are
    tuned on pairs of texts first (SetFit), and on the labels' names if those tell the rows apart;
    `fine_tuning`: of all parameters, for sentence encoders from the linear head (Kumar et al.
    2022)."""

    folds: int = Field(default=5, ge=2, le=100)
    """Parts of the rows, each of which is predicted by a model trained on the others."""

    repeats: int = Field(default=1, ge=1, le=100)
    """Cross-validations, each with other parts."""

    shares: tuple[Annotated[float, Field(gt=0.0, lt=1.0)], ...] = (0.25, 0.5)
    """Smaller shares of the rows that the chosen approach is also trained on, for the learning
    curve; empty: no curve."""

    many_rows: int = Field(default=1000, ge=2)
    """With more rows, approaches are trained once, on all but a part of them, and contrastive
    tuning is left out."""

    fine_tuning_rows: int = Field(default=200, ge=0)
    """With fewer rows, fine-tuning of a sentence encoder is left out: it takes most of the time,
    and contrastive tuning makes more of so few."""

    fewest_steps: int = Field(default=40, ge=1)
    """Fine-tuning makes more passes than the task's `epochs` if these are fewer steps (Mosbach et
    al. 2021: few rows need more passes)."""


class FinetuneConfig(Config):
    """Fine-tuning: every task × initialisation × seed."""

    tasks: tuple[TaskConfig, ...] = ()
    """The tasks."""

    seeds: tuple[Annotated[int, Field(ge=0, lt=1 << 63)], ...] = Field(
        default=(0, 1, 2, 3, 4), min_length=1
    )
    """One trial per seed, which determines data order, head initialisation and dropout."""

    initialisations: tuple[Literal["pretrained", "random"], ...] = ("pretrained",)
    """`random` trains the same architecture from scratch, for comparison."""

    fine_tuning: bool = True
    """Train all parameters; False leaves only feature-based training."""

    bilstm: bool = False
    """Fine-tune with a two-layer BiLSTM, randomly initialised, before the head (paper, 5.1)."""

    features: tuple[FeatureConfig, ...] = ()
    """Feature-based trials, in addition to fine-tuning."""

    second_encoder: str = ""
    """A second encoder, specified like `pretrain.init`, whose layers are concatenated to the
    features: as in ELMo, with a left-to-right and a right-to-left one."""

    ensemble: bool = False
    """Also evaluate the mean of all seeds' logits as one more system per task, and submit its
    predictions (paper, Tables 1 and 2: ensembles)."""

    grid: GridConfig | None = None
    """Hyper-parameter search before the seeds; None: use the tasks' own values."""

    choose: ChoiceConfig | None = None
    """Choose the approach of each classification or regression by cross-validation; without a dev
    file, all rows are trained on, and dev scores are those of the cross-validation. None: the
    configured approaches."""

    restarts: int = Field(default=0, ge=0)
    """How often to restart a trial that does not beat the majority class (paper, 4.1)."""

    save: Literal["none", "best"] = "best"
    """Keep the weights of the best pre-trained trial on dev of each task, for `cloze predict`."""

    evaluations: int = Field(default=0, ge=0)
    """Evaluations on dev per trial, spread evenly; 0: after every epoch."""

    select: Literal["last", "best"] = "last"
    """Which epoch is evaluated on test: the last one, or the best on dev."""

    warmup_share: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of the steps spent warming up (reference: 0.1)."""

    precision: Precision = "auto"
    """Precision, as in `[pretrain]`."""

    optimizer: TaskOptimizer = OptimizerConfig(warmup_steps=0)
    """Moments, decay and clipping; learning rate and warm-up come from the task and
    `warmup_share`."""

    minutes: float = Field(default=0.0, ge=0.0, le=MOST_MINUTES)
    """Time for all trials and their evaluations; 0: as long as the epochs take. Trials share it; as
    with `pretrain.minutes`, one whose steps do not fit is shortened, as its record says."""

    shortened: dict[str, Shortened] = Field(default_factory=dict)
    """As `pretrain.shortened`, by trial (`TASK-SYSTEM-SEED`)."""

    def choice_for(self, task: TaskConfig) -> ChoiceConfig | None:
        """How to choose the task's approach; None if it is trained as configured."""
        return self.choose if task.family.is_chosen else None

    @field_validator("tasks")
    @classmethod
    def _tasks_differ(cls, tasks: tuple[TaskConfig, ...]) -> tuple[TaskConfig, ...]:
        names = [task.name.lower() for task in tasks]  # some file systems ignore case
        twice = [task.name for task in tasks if names.count(task.name.lower()) > 1]
        if twice:
            raise ValueError(f"two tasks are named {twice[-1]}; give each a unique name")
        return tasks

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if twice:
            raise ValueError(f"seed {twice[0]} is listed twice; list every seed once")
        return seeds

    @model_validator(mode="after")
    def _trials_agree(self) -> "FinetuneConfig":
        # Contradictions are refused here rather than ignored: a trial that is not made is not
        # missed in a report.
        if self.ensemble and (len(self.seeds) < 2 or "pretrained" not in self.initialisations):
            raise ValueError(
                "finetune.ensemble averages the seeds of the pre-trained encoder: set at least "
                'two seeds, and include "pretrained" in the initialisations'
            )
        # Vectors are compared as they leave the encoder, without a head that another kind of trial
        # could replace.
        vectors = [task.name for task in self.tasks if task.family.compares_vectors]
        if vectors and (self.bilstm or self.features or not self.fine_tuning):
            raise ValueError(
                f"task {vectors[0]} trains the encoder's own vectors; leave out finetune.bilstm, "
                "[[finetune.features]] and fine_tuning = false, or move it to a run of its own"
            )
        if self.choose and (
            self.initialisations != ("pretrained",)
            or any((self.grid, self.features, self.bilstm, self.ensemble, self.restarts))
            or not self.fine_tuning
            or any(task.after or task.compare_texts for task in self.tasks)
        ):
            raise ValueError(
                "finetune.choose compares approaches of its own: leave out grid, features, bilstm, "
                "ensemble, restarts, after, compare_texts, fine_tuning and "
                'initialisations = ["random"], or choose'
            )
        if self.bilstm and not self.fine_tuning:
            raise ValueError(
                "finetune.bilstm requires fine-tuning, but fine_tuning = false; for a frozen "
                'encoder use [[finetune.features]] with head = "bilstm"'
            )
        return self

    @model_validator(mode="after")
    def _time_limit_is_possible(self) -> "FinetuneConfig":
        for shortened in self.shortened.values():
            check_shortened(shortened)
        chains = any(task.after for task in self.tasks)
        if (self.minutes or self.shortened) and (
            any((self.grid, self.choose, self.restarts)) or chains
        ):
            raise ValueError(
                "finetune.minutes and finetune.shortened are for trials of a known number that "
                "are independent of each other: leave out grid, choose, restarts and after, or them"
            )
        if self.minutes and self.shortened:
            raise ValueError("minutes and shortened exclude each other; leave out one of them")
        return self

    @model_validator(mode="after")
    def _stages_follow_earlier_tasks(self) -> "FinetuneConfig":
        known: set[str] = set()
        # Only earlier tasks may be named, so chains of tasks have an order and no cycle.
        for task in self.tasks:
            if task.after and task.after not in known:
                raise ValueError(
                    f"task {task.name} has after = {task.after}, which is not an earlier task; "
                    f"earlier tasks: {', '.join(sorted(known)) or 'none'}"
                )
            if task.after and self.grid:
                raise ValueError(
                    f"task {task.name} has after = {task.after}, but finetune.grid searches each "
                    "task independently; set each task's own values instead"
                )
            if task.after and not self.fine_tuning:
                raise ValueError(
                    f"task {task.name} has after = {task.after}, but fine_tuning = false trains "
                    "no encoder; leave out one of the two"
                )
            known.add(task.name)
        return self


class DistillConfig(Config):
    """Distillation: a smaller encoder learns what another one computes (Hinton et al. 2015)."""

    teacher: str = ""
    """The encoder to learn from: a run's name, an artifact's directory, or a folder in Hugging
    Face's layout."""

    task: str = ""
    """The teacher's task, if it was fine-tuned for one; empty: its vectors are learnt."""

    texts: str = ""
    """Rows without labels to learn the task on, in the format of its training files."""

    layers: int = Field(default=3, ge=1, le=1024)
    """Layers of the student, which begins with as many of the teacher's, evenly spaced."""

    width: int = Field(default=0, ge=0, le=65536)
    """Width of the student, a multiple of that of the teacher's heads; 0: the teacher's."""

    prune_vocabulary: bool = False
    """Keep only the word-pieces that occur in the texts, and single characters, with which any
    other word is still spelt."""

    max_seq_length: int = Field(default=128, ge=8, le=65536)
    """Longer texts are truncated."""

    epochs: int = Field(default=1, ge=1, le=MOST_EPOCHS)
    """Passes over the texts."""

    batch_size: int = Field(default=128, ge=2, le=1 << 16)
    """Texts per step, among which the ranking loss compares."""

    ranking: float = Field(default=1.0, ge=0.0, le=1000.0)
    """Weight of the ranking loss beside the cosine loss: the divergence of how the student's
    vectors rank the other texts of a batch from how the teacher's do."""

    temperature: float = Field(default=0.05, gt=0.0, le=100.0)
    """Cosines are divided by it before the softmax of the ranking loss."""

    hidden: float = Field(default=1.0, ge=0.0, le=1000.0)
    """Of a task: weight of the error of the states that the head reads, beside that of the logits;
    each in units of the teacher's variance. A narrower student has other states, and learns logits
    alone."""

    warmup_share: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Share of the steps spent warming up."""

    precision: Precision = "auto"
    """Precision, as in `[pretrain]`. The teacher computes in fp32."""

    optimizer: ScaledOptimizer = OptimizerConfig(learning_rate=1e-4, warmup_steps=0)
    """Optimizer and schedule; the warm-up comes from `warmup_share`. At a rate of 5e-4 a student of
    MiniLM-L6 loses in a few steps what its teacher's layers knew."""


class EvaluateConfig(Config):
    """Evaluation beyond the tasks."""

    masked_sentences: tuple[str, ...] = ()
    """Sentences with one [MASK] each, filled by the random model, the n-gram baseline and the
    encoder. If empty, words are masked in held-out text of the corpus."""

    examples: int = Field(default=20_000, ge=1)
    """Maximum number of held-out examples per split."""

    heldout_examples: str = ""
    """Examples whose held-out splits replace the run's own (a run's name or an artifact's
    directory), so that encoders trained on different examples are compared on the same ones."""

    all_masked: bool = False
    """Replace every predicted token by [MASK], as for filling gaps, whatever the training does."""

    count_model_tokens: int = Field(default=50_000_000, ge=1)
    """Maximum number of tokens that the n-gram baseline is trained on."""

    guesses: int = Field(default=5, ge=1, le=1000)
    """Predictions shown for each [MASK]."""

    @field_validator("masked_sentences")
    @classmethod
    def _sentences_have_a_gap(cls, sentences: tuple[str, ...]) -> tuple[str, ...]:
        for sentence in sentences:
            if sentence.count("[MASK]") != 1:
                raise ValueError(f"{sentence[:80]!r} needs exactly one [MASK]")
        return sentences


R = TypeVar("R", PretrainConfig, FinetuneConfig, DistillConfig)


def _decided(recipe: R) -> R:
    """`recipe` with its precision: `auto` in a table written by hand is this machine's."""
    if recipe.precision != "auto":
        return recipe
    return recipe.model_copy(update={"precision": machine_precision()[0]})


class WordVectorsStage(StageConfig):
    """tokens → static vectors of the word-pieces."""

    stage: ClassVar[str] = "word_vectors"
    program: ClassVar[str] = "cloze.model.data.word_vectors"
    format_version: ClassVar[int] = 1

    width: int
    """Numbers in a vector: the width of the encoder."""
    word_vectors: WordVectorsConfig
    """What counts as a neighbour."""


class PretrainStage(StageConfig):
    """examples → encoder."""

    stage: ClassVar[str] = "pretrain"
    program: ClassVar[str] = "cloze.model.training.pretrain"
    format_version: ClassVar[int] = 5
    """5: every one of `evaluation_examples` is evaluated, not only whole batches of 256."""

    seed: int
    """The run's seed."""
    encoder: EncoderConfig
    """Encoder shape."""
    pretrain: Annotated[PretrainConfig, AfterValidator(_decided)]
    """Pre-training recipe."""


class NegativesStage(StageConfig):
    """encoder + queries with their passages → the same rows with hard negatives."""

    stage: ClassVar[str] = "negatives"
    program: ClassVar[str] = "cloze.model.retrieval.hard_negatives"
    format_version: ClassVar[int] = 1

    negatives: NegativesConfig
    """What is mined."""
    tasks: tuple[TaskConfig, ...]
    """The tasks, with the fields that say where their rows are."""


class FinetuneStage(StageConfig):
    """encoder + labelled data → predictions and fine-tuned models."""

    stage: ClassVar[str] = "finetune"
    program: ClassVar[str] = "cloze.model.finetune.finetune"
    format_version: ClassVar[int] = 24
    """24: a temperature is 1 unless the held-out rows speak for another; 23: unmarked questions
    without answers are unanswerable; 22: the hybrid ranking that teaches weighs vectors as a search
    does; a record says which suspected labels are merely doubtful, and whether names of labels are
    trained on; 21: contrastive tuning has the names of labels, too; 20: numbers of a regression
    that are large, or differ by little, are learnt standardised; 19: suspects are cut where chance
    explains them;
    18: with many rows fine-tuning is taken unless clearly worse, and passages of the hybrid
    loss are held by as much as they have queries; 17:
    contrastive tuning is taken unless clearly worse, and suspects are by all approaches; 16:
    sentence encoders read as much as before if they trained on shorter texts; 15:
    contrastive tuning takes twelve steps, wrong labels have rows of the file; 14: it trains
    the encoder's upper layers, and is preferred; folds share the penalty of a head; 13: the penalty
    of a linear head is chosen; 12: a trial's record says how a time limit has shortened it; 11:
    saved tasks have the settings of reranking; 10: with `select = "best"`, the weights are those of
    the selected epoch; a text that is query and passage has a vector as each.
    """

    finetune: Annotated[FinetuneConfig, AfterValidator(_decided)]
    """Tasks and protocol."""


class LessonsStage(StageConfig):
    """teacher + texts → the texts as ids, with what the teacher computes of them."""

    stage: ClassVar[str] = "lessons"
    program: ClassVar[str] = "cloze.model.distillation.lessons"
    format_version: ClassVar[int] = 1

    seed: int
    """The run's seed, by which short spans of the texts are drawn."""
    max_seq_length: int
    """Longer texts are truncated."""
    task: str = ""
    """The teacher's task; empty: its vectors."""
    texts: str = ""
    """The rows of the task."""


class DistillStage(StageConfig):
    """teacher + lessons → student."""

    stage: ClassVar[str] = "distill"
    program: ClassVar[str] = "cloze.model.distillation.distill"
    format_version: ClassVar[int] = 2
    """2: numbers that are large, or differ by little, are learnt standardised."""

    seed: int
    """The run's seed, which determines the order of the texts."""
    distill: Annotated[DistillConfig, AfterValidator(_decided)]
    """The student, and how it learns."""


class EvaluateStage(StageConfig):
    """encoder + predictions, and held-out examples if it was trained on a corpus → scores."""

    stage: ClassVar[str] = "evaluate"
    program: ClassVar[str] = "cloze.model.evaluation.evaluate"
    format_version: ClassVar[int] = 8
    """8: statements show errors below a tenth of a point;
    7: words of every script are masked."""

    seed: int
    """The run's seed."""
    evaluate: EvaluateConfig
    """What to evaluate."""
    published: dict[str, Benchmark] = Field(default_factory=dict)
    """Published benchmark for tasks of the run outside GLUE, by task name."""


class TrainingMachine(Config):
    """The training machine; no setting here changes the results beyond rounding."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Training device; `auto`: a GPU if there is one. A GPU that is present but unusable is an
    error, unless this is `cpu`. Jobs on Slurm and Kubernetes are planned for GPUs, unless this is
    `cpu`."""

    ranks: int = Field(default=1, ge=1)
    """Processes on this machine; one per GPU."""

    threads: int = Field(default=0, ge=0)
    """CPU threads per rank; 0: cores divided by ranks."""

    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed ZeRO stage. 0 replicates everything and is fastest if it fits; 1 shards the
    optimizer state, 2 also the gradients, 3 also the weights."""

    offload_optimizer: bool = False
    """ZeRO 1 to 3 on a GPU: keep and update the optimizer state in host memory, for models that do
    not fit otherwise."""

    compile_layers: Literal["auto"] | bool = "auto"
    """Compile the encoder's layers with torch: pays off on a GPU after about a minute. `auto`: on
    GPUs if a C compiler is found, which Triton needs."""

    cuda_graphs: bool = False
    """One rank on a GPU, ZeRO 0: replay passes of at most 20,480 tokens as CUDA graphs, for runs
    dominated by kernel launches. Not yet measured on a GPU."""

    token_budget: int = Field(default=0, ge=0)
    """Tokens per micro-batch; 0: 8,192 on a CPU (4,096 for encoders larger than base), and on a GPU
    as many as fit into its free memory."""

    attention: str = "auto"
    """Attention backend; `auto`: the one that measures fastest on the device."""

    checkpoint_activations: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""

    checkpoint_every: int = Field(default=500, ge=1)
    """Steps between checkpoints."""

    keep_checkpoints: int = Field(default=2, ge=1)
    """How many of the latest checkpoints to keep, in addition to the best by held-out loss."""

    checkpoints: str = ""
    """Folder for checkpoints, on a local or shared file system; empty: inside the unfinished
    artifact."""

    milestones: str = ""
    """Folder in which the encoder stays as it is after 1, 2, 5, 10, 20 and 50 % of the steps, in
    Hugging Face's layout: `finetune.encoder = "FOLDER/…/step-00001000"` shows what training on was
    worth. Empty: none."""

    keep_optimizer: bool = True
    """Keep the optimizer state with the finished encoder (8 bytes per parameter), so that
    `pretrain.continue_from` can train it further."""

    tensorboard: str = ""
    """Folder for TensorBoard event files; empty: none."""

    wandb: str = ""
    """Weights & Biases project (`pip install 'cloze-encoder[wandb]'`); empty: none. With
    WANDB_MODE=offline, nothing is sent until `wandb sync`."""

    mlflow: str = ""
    """MLflow tracking store (`pip install 'cloze-encoder[mlflow]'`): `sqlite:///mlflow.db`, or a
    server address; empty: none."""

    max_skipped_steps: int = Field(default=10, ge=1)
    """Abort after this many consecutive steps without a finite gradient."""

    log_every: int = Field(default=50, ge=1)
    """Steps between log lines."""

    max_restarts: int = Field(default=0, ge=0)
    """How often the supervisor restarts ranks that died."""

    hang_timeout: float = Field(default=600.0, gt=0.0)
    """Seconds without progress after which the watchdog ends the run."""

    deepspeed: dict[str, object] = Field(default_factory=dict)
    """ZeRO 1 to 3: raw keys merged into DeepSpeed's configuration, as an escape hatch."""

    def check_recipe(self, recipe: PretrainConfig) -> None:
        """Refuse to pre-train by a `recipe` that these settings do not allow."""
        # Asked by the plan and again by the stage, which may be started by hand.
        optimizer = recipe.optimizer.name
        if optimizer == "muon" and self.zero_stage:
            raise UsageError(
                f"pretrain.optimizer.name = muon with training.zero_stage = {self.zero_stage}: "
                "muon needs whole matrices, which ZeRO partitions; set zero_stage = 0, or use adamw"
            )
        if optimizer in MEASURING and self.offload_optimizer:
            raise UsageError(
                f"pretrain.optimizer.name = {optimizer} with training.offload_optimizer: its "
                "update reduces over ranks and needs the masters on the GPU; remove "
                "offload_optimizer"
            )
        for name in ("offload_optimizer", "deepspeed"):
            if getattr(self, name) and not self.zero_stage:
                raise UsageError(
                    f"training.{name} with training.zero_stage = 0: only ZeRO 1 to 3 run on "
                    f"DeepSpeed; set zero_stage = 1, 2 or 3, or leave {name} out"
                )
        longest = max(phase.max_seq_length for phase in recipe.phases)
        if 0 < self.token_budget < longest:
            raise UsageError(
                f"training.token_budget = {self.token_budget}, but pretrain.phases has sequences "
                f"of {longest} tokens; raise it to at least that, or set it to 0"
            )
