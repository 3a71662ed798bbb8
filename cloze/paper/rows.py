"""The rows of the ablation tables, from the paper and our own, at the size of a given run.

In:  a run's configuration and the requested tables.
Out: the rows, each with a configuration for every pre-training seed.

The paper's Table 5 is about bidirectionality and next-sentence prediction, Table 6 about size, and
Table 8 about the replacement of predicted tokens. The table *modern* is a ladder from BERT to
ModernBERT: each rung adds one change to the previous one, at equal FLOPs. Every row is a separate
run, and runs share artifacts through the store.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cloze.artifacts.errors import UsageError
from cloze.flows.config import RunConfig
from cloze.flows.forecast import step_flops
from cloze.flows.variants import Settings, changed
from cloze.model.config import MODERN_DEFAULTS, SIZE_NAMES, EncoderConfig

Table = Literal["objective", "size", "masking", "modern"]

LANGUAGE_MODEL: Settings = {
    "pretrain.objective": "next_token",
    "pretrain.next_sentence_loss": False,
    "examples.second_segment": "none",  # running text without pairs or replacements
    "examples.short_seq_prob": 0.0,
    "examples.masking.mask_share": 0.0,
    "examples.masking.random_share": 0.0,
    "evaluate.masked_sentences": [],
    "report.answers": [],
}
"""Settings of a language model that predicts the next token instead of masked tokens."""

LEFT: Settings = {**LANGUAGE_MODEL, "encoder.attention_direction": "left_to_right"}
RIGHT: Settings = {**LANGUAGE_MODEL, "encoder.attention_direction": "right_to_left"}
FEATURES: Settings = {"finetune.fine_tuning": False}


@dataclass(frozen=True)
class RowSettings:
    """The settings of a row."""

    title: str
    """Its name in tables."""

    settings: Settings
    partner: Settings | None = None
    """Settings of a second encoder, trained separately, whose features are concatenated."""

    main: bool = True
    """Whether it is pre-trained with several seeds, as a comparison requires."""


MASKING = {
    f"mask{mask}-same{same}-random{random}": RowSettings(
        f"{mask} % [MASK], {same} % kept, {random} % random",
        {
            "examples.masking.mask_share": mask / 100,
            "examples.masking.random_share": random / 100,
        },
        main=main,
    )
    for mask, same, random, main in (
        (80, 10, 10, True),
        (100, 0, 0, True),
        (80, 0, 20, False),
        (80, 20, 0, False),
        (0, 20, 80, False),
        (0, 0, 100, True),
    )
}
"""Paper, Table 8: the replacement of predicted tokens, in percent."""


REFERENCE: dict[Table, int] = {"objective": 0, "size": -1, "masking": 0, "modern": 0}
"""Index of the row of each table that the others are compared with: the run as configured, or
with `only`, the first of the chosen rows (in *size*, the last)."""

LADDERS: tuple[Table, ...] = ("modern",)
"""Tables in which each row is compared with the one before it."""

HELDOUT_ROW: dict[Table, str] = {"modern": "no-nsp"}
"""The row whose held-out examples are used for the whole table, if not those of the run itself: all
rungs but the first have no second segments."""


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    table: Table
    name: str
    title: str
    """Its name in tables."""

    runs: tuple[RunConfig, ...]
    """One for each pre-training seed."""

    partners: tuple[RunConfig, ...] = ()
    """For each of them the run of its second encoder, if there is one."""


def rows_of_tables(
    run: RunConfig, tables: tuple[Table, ...], *, seeds: int = 3, only: tuple[str, ...] = ()
) -> list[Row]:
    """The rows of `tables` for `run`, or only those named; main ones have `seeds` pre-trainings.

    A rung includes all changes up to it, even if `only` leaves out the rungs before.
    """
    settings: dict[Table, Callable[[RunConfig], dict[str, RowSettings]]] = {
        "objective": objective_rows,
        "size": size_rows,
        "masking": lambda _: MASKING,
        "modern": modern_rows,
    }
    found = []
    for table in tables:
        for name, row in settings[table](run).items():
            encoders = {f"{table}-{name}": row.settings}
            if row.partner is not None:
                encoders[f"{table}-{name}-partner"] = row.partner
            # Of the row, and of its partner if it has one.
            seeded = (
                tuple(_seeded(run, of, places, n) for n in range(seeds if row.main else 1))
                for of, places in encoders.items()
            )
            found.append(Row(table, name, row.title, *seeded))
    names = [row.name for row in found]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise UsageError(
            f"row {unknown[0]}: not in {', '.join(tables)}; the rows are {', '.join(names)}"
        )
    return [row for row in found if not only or row.name in only]


def _seeded(run: RunConfig, name: str, places: Settings, number: int) -> RunConfig:
    """The row's run for pre-training seed `number`, where 0 is the run's own seed."""
    common: Settings = {"evaluate.all_masked": True}
    if run.finetune.tasks and not run.finetune.features:  # some rows only use features
        common["finetune.features"] = [{"layers": "last", "head": "linear"}]
    # The run's own seed, so that the artifacts of `run` are shared.
    if number == 0:
        return changed(run, f"{run.name}-{name}", {**common, **places}, source=f"ablation {name}")
    first = run.seed if run.pretrain.seed is None else run.pretrain.seed
    again: Settings = {**common, **places, "pretrain.seed": first + number}
    return changed(run, f"{run.name}-{name}-{number + 1}", again, source=f"ablation {name}")


def objective_rows(run: RunConfig) -> dict[str, RowSettings]:
    """Paper, Table 5, and the models that its sections 3 and 5.1 compare with BERT.

    ELMo's LSTMs have several times as many cells as outputs (4,096 and 512). Ours have twice as
    many, so that a layer has about as many weights as a Transformer layer.
    """
    lstm: Settings = {
        **FEATURES,
        "encoder.preset": None,
        "encoder.layer_type": "lstm",
        "encoder.intermediate_size": 2 * run.encoder.hidden_size,
    }
    return {
        "base": RowSettings("MLM and NSP (BERT)", {}),
        "no-nsp": RowSettings("MLM, no NSP", {"pretrain.next_sentence_loss": False}),
        "left-to-right": RowSettings("left-to-right LM (OpenAI GPT)", LEFT),
        "left-to-right-bilstm": RowSettings(
            "left-to-right LM, fine-tuned under a BiLSTM",
            {**LEFT, "finetune.bilstm": True},
            main=False,
        ),
        "concatenated": RowSettings(
            "left-to-right and right-to-left LM, concatenated features",
            {**LEFT, **FEATURES},
            partner={**RIGHT, **FEATURES},
        ),
        "elmo": RowSettings(
            "left-to-right and right-to-left LSTM, concatenated features (ELMo)",
            {**LEFT, **lstm},
            partner={**RIGHT, **lstm},
            main=False,  # two LSTMs take as long to train as one seed of all other rows
        ),
    }


def size_rows(run: RunConfig) -> dict[str, RowSettings]:
    """Paper, Table 6, relative to the run's encoder: half the depth, half the width, both, full."""
    encoder = run.encoder
    layers, heads = encoder.num_hidden_layers, encoder.num_attention_heads
    width, inner = encoder.hidden_size, encoder.intermediate_size
    own = (layers, width, heads, inner)
    shapes = [
        (max(1, layers // 2), width, heads, inner),
        (layers, width // 2, max(1, heads // 2), inner // 2),
        (max(1, layers // 2), width // 2, max(1, heads // 2), inner // 2),
        own,
    ]
    return {
        f"{shape[0]}x{shape[1]}": RowSettings(
            f"{shape[0]} layers × {shape[1]}",
            {
                "encoder.preset": None,
                **{f"encoder.{name}": size for name, size in zip(SIZE_NAMES, shape, strict=True)},
            }
            if shape != own  # other tables make this encoder too, under the key of its preset
            else {},
            # the smallest and the full one
            main=shape in shapes[2:],
        )
        # The full encoder is last, where `REFERENCE` expects it.
        for shape in (*(shape for shape in dict.fromkeys(shapes) if shape != own), own)
    }


def deep_and_narrow(encoder: EncoderConfig, *, gated: int) -> Settings:
    """Sizes of a deeper encoder with fewer heads and about as many weights in its layers.

    `gated` is the intermediate size of the shallower encoder with gated feed-forward layers.
    """
    heads, width = encoder.num_attention_heads, encoder.hidden_size
    # Narrower by √2, a layer has half the weights, so twice as many layers have as many.
    fewer = max(1, round(heads / math.sqrt(2)))
    narrow = width // heads * fewer
    narrow_gated = max(8, round(gated * narrow / width / 8) * 8)
    # 4 h² weights of attention, 3 h i of a gated feed-forward layer.
    layer, narrow_layer = (
        4 * h * h + 3 * h * i for h, i in ((width, gated), (narrow, narrow_gated))
    )
    return {
        "encoder.hidden_size": narrow,
        "encoder.num_attention_heads": fewer,
        "encoder.intermediate_size": narrow_gated,
        "encoder.num_hidden_layers": round(encoder.num_hidden_layers * layer / narrow_layer),
    }


def modern_rows(run: RunConfig) -> dict[str, RowSettings]:
    """From Devlin et al. 2019 to Warner et al. 2024, one change per rung, at equal FLOPs.

    The local attention window is an eighth of the sequence, like ModernBERT's 128 of 1,024.
    """
    if run.encoder.family != "bert":
        raise UsageError(
            f"table modern of {run.name}: the ladder begins at BERT's encoder, but encoder.family "
            f'is "{run.encoder.family}"; leave out this table'
        )
    encoder, longest = run.encoder, max(phase.max_seq_length for phase in run.pretrain.phases)
    # Two thirds, in multiples of 8: three matrices then have as many weights as two.
    gated = max(8, round(encoder.intermediate_size / 12) * 8)
    # ModernBERT's encoder, except for what later rungs change.
    pre_norm: Settings = {
        **{f"encoder.{name}": getattr(encoder, name) for name in SIZE_NAMES},
        **{f"encoder.{name}": value for name, value in MODERN_DEFAULTS.items()},
        "encoder.preset": None,
        "encoder.family": "modern",
        "encoder.max_position_embeddings": encoder.max_position_embeddings,
        "encoder.positions": "learned",
        "encoder.gated": False,
        "encoder.global_attn_every_n_layers": 1,
    }
    window = max(2, longest // 16 * 2)
    changes: tuple[tuple[str, str, Settings], ...] = (
        ("bert", "BERT as in the paper", {}),
        (
            "no-nsp",
            "no next-sentence prediction",
            {"pretrain.next_sentence_loss": False, "examples.second_segment": "none"},
        ),
        (
            "mask30",
            "30 % of the tokens predicted",
            {
                "examples.masking.masked_lm_prob": 0.3,
                "examples.masking.heldout_masked_lm_prob": 0.15,
            },
        ),
        ("pre-norm", "pre-norm, no biases, dropout only on attention output", pre_norm),
        ("rotary", "rotary positions", {"encoder.positions": "rotary"}),
        ("geglu", "GeGLU", {"encoder.gated": True, "encoder.intermediate_size": gated}),
        ("deep", "deep and narrow", deep_and_narrow(encoder, gated=gated)),
        (
            "local",
            "local attention in two of three layers",
            {"encoder.global_attn_every_n_layers": 3, "encoder.local_attention": window},
        ),
        ("wsd", "warmup-stable-decay, 1 - √t", {"pretrain.optimizer.schedule": "wsd"}),
    )
    rungs: dict[str, RowSettings] = {}
    settings: Settings = {}
    for name, title, change in changes:
        settings = {**settings, **change}
        # Equal FLOPs: dearer steps are fewer.
        flops = step_flops(changed(run, run.name, settings, source=f"ablation {name}"))
        steps = round(run.pretrain.steps * step_flops(run) / flops)
        rungs[name] = RowSettings(title, {**settings, "pretrain.steps": steps})
    return rungs
