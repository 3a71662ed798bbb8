"""The rows of the ablation tables, the paper's and our own, at whatever size a run has.

In:  a run's configuration and the tables wanted.
Out: for every row a configuration for each pre-training seed; rows with equal settings are one.

Table 5 asks what bidirectionality and next sentences are worth, Table 6 what size is, Table 8 what
stands in the place of a predicted token. The table *modern* is a ladder from the paper's encoder to
ModernBERT's: each rung is the one before it and one change, at the same FLOPs. Every row is a run
of its own; the store lets it share whatever it can with the others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from artifacts.config import assign, parse
from artifacts.errors import UsageError
from flows.config import RunConfig
from flows.forecast import step_flops
from model.config import MODERN_DEFAULTS, SIZE_NAMES

Table = Literal["objective", "size", "masking", "modern"]

Settings = dict[str, JsonValue]
"""Values by their dotted place in the configuration."""

LANGUAGE_MODEL: Settings = {
    "pretrain.objective": "next_token",
    "pretrain.next_sentence_loss": False,
    "examples.second_segment": "none",  # running text: no pairs, nothing replaced
    "examples.short_seq_prob": 0.0,
    "examples.masking.mask_share": 0.0,
    "examples.masking.random_share": 0.0,
    "evaluate.masked_sentences": [],
    "report.answers": [],
}
"""Settings of a language model that predicts the next token instead of masked ones."""

LEFT: Settings = {**LANGUAGE_MODEL, "encoder.attention_direction": "left_to_right"}
RIGHT: Settings = {**LANGUAGE_MODEL, "encoder.attention_direction": "right_to_left"}
FEATURES: Settings = {"finetune.fine_tuning": False}


@dataclass(frozen=True)
class RowSettings:
    """What sets a row apart."""

    title: str
    """As tables name it."""

    settings: Settings
    partner: Settings | None = None
    """Of a second encoder, trained apart, whose features stand beside the first one's."""

    main: bool = True
    """Whether it is pre-trained with several seeds, so that it can be compared."""


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
"""Paper, Table 8: how the predicted tokens are replaced, in percent."""


REFERENCE: dict[Table, int] = {"objective": 0, "size": -1, "masking": 0, "modern": 0}
"""The row of each table that the others are compared with: the run as it was configured, or the
first, of *size* the last, of those that were chosen."""

LADDERS: tuple[Table, ...] = ("modern",)
"""Tables of which each row is compared with the one before it."""

HELDOUT_ROW: dict[Table, str] = {"modern": "no-nsp"}
"""The row on whose held-out examples all of a table are evaluated, if not on the run's own: all
rungs but the first have no second segments."""


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    table: Table
    name: str
    title: str
    """As tables name it."""

    runs: tuple[RunConfig, ...]
    """One for each pre-training seed."""

    partners: tuple[RunConfig, ...] = ()
    """Beside each of them the run whose encoder is its second one; empty: there is none."""


def rows(
    run: RunConfig, tables: tuple[Table, ...], *, seeds: int = 3, only: tuple[str, ...] = ()
) -> list[Row]:
    """The rows of `tables` for `run`, the main ones with `seeds` pre-trainings.

    With `only`, those of these names. A rung keeps all changes up to it.
    """
    settings: dict[Table, Callable[[RunConfig], dict[str, RowSettings]]] = {
        "objective": _objectives,
        "size": _sizes,
        "masking": lambda _: MASKING,
        "modern": _ladder,
    }
    found = []
    for table in tables:
        for name, row in settings[table](run).items():
            count = seeds if row.main else 1
            partner = row.partner
            found.append(
                Row(
                    table,
                    name,
                    row.title,
                    tuple(_seeded(run, f"{table}-{name}", row.settings, n) for n in range(count)),
                    tuple(_seeded(run, f"{table}-{name}-partner", partner, n) for n in range(count))
                    if partner is not None
                    else (),
                )
            )
    names = [row.name for row in found]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise UsageError(
            f"row {unknown[0]}: not in {', '.join(tables)}; the rows are {', '.join(names)}"
        )
    return [row for row in found if not only or row.name in only]


def changed(run: RunConfig, name: str, places: Settings, *, source: str = "") -> RunConfig:
    """`run` with other values at some places, under a name of its own.

    An error begins with `source`, `ablation NAME` if it is empty.
    """
    table = run.model_dump(mode="json")
    for place, value in places.items():
        table = assign(table, place, value)
    table = assign(table, "name", name)
    return parse(RunConfig, table, source=source or f"ablation {name}")


def _seeded(run: RunConfig, name: str, places: Settings, number: int) -> RunConfig:
    """The row's run with its pre-training seed `number`; the first one is the run's own."""
    common: Settings = {"evaluate.all_masked": True}
    if run.finetune.tasks and not run.finetune.features:  # some rows are features only
        common["finetune.features"] = [{"layers": "last", "head": "linear"}]
    if number == 0:
        return changed(run, f"{run.name}-{name}", {**common, **places})
    first = run.seed if run.pretrain.seed is None else run.pretrain.seed
    again: Settings = {**common, **places, "pretrain.seed": first + number}
    return changed(run, f"{run.name}-{name}-{number + 1}", again)


def _objectives(run: RunConfig) -> dict[str, RowSettings]:
    """Paper, Table 5, and what its sections 3 and 5.1 set BERT against.

    An LSTM of ELMo has several times as many cells as its output is wide (4,096 for 512). Here
    they are two times as many, so that its layers have about as many weights as a Transformer's.
    """
    lstm: Settings = {
        **FEATURES,
        "encoder.preset": None,
        "encoder.layer_type": "lstm",
        "encoder.intermediate_size": 2 * run.encoder.hidden_size,
    }
    return {
        "base": RowSettings("masked LM and next sentence (BERT)", {}),
        "no-nsp": RowSettings(
            "masked LM, no next sentence", {"pretrain.next_sentence_loss": False}
        ),
        "left-to-right": RowSettings("left-to-right LM (OpenAI GPT)", LEFT),
        "left-to-right-bilstm": RowSettings(
            "left-to-right LM, fine-tuned under a BiLSTM",
            {**LEFT, "finetune.bilstm": True},
            main=False,
        ),
        "concatenated": RowSettings(
            "left-to-right and right-to-left LM side by side, features",
            {**LEFT, **FEATURES},
            partner={**RIGHT, **FEATURES},
        ),
        "elmo": RowSettings(
            "left-to-right and right-to-left LSTM side by side, features (ELMo)",
            {**LEFT, **lstm},
            partner={**RIGHT, **lstm},
            main=False,  # two LSTMs take as long as all other rows of one seed
        ),
    }


def _sizes(run: RunConfig) -> dict[str, RowSettings]:
    """Paper, Table 6, relative to the run's encoder: half as deep, half as wide, both, as it is."""
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
            if shape != own  # whose encoder other tables have made already, under the preset's key
            else {},
            main=shape in shapes[2:],
        )
        for shape in (*(shape for shape in dict.fromkeys(shapes) if shape != own), own)
    }


def _ladder(run: RunConfig) -> dict[str, RowSettings]:
    """From Devlin et al. 2019 to Warner et al. 2024, one change a rung, as many FLOPs each.

    Deep and narrow has as many weights in its layers, as nearly as whole heads allow; the window is
    the eighth of a sequence that 128 of 1,024 are.
    """
    if run.encoder.family != "bert":
        raise UsageError(
            f"table modern of {run.name}: the ladder begins at BERT's encoder, and encoder.family "
            f'is "{run.encoder.family}"; leave it out'
        )
    encoder, longest = run.encoder, max(phase.max_seq_length for phase in run.pretrain.phases)
    heads, width = encoder.num_attention_heads, encoder.hidden_size
    sizes = {f"encoder.{name}": getattr(encoder, name) for name in SIZE_NAMES}
    gated = max(8, round(encoder.intermediate_size / 12) * 8)
    fewer = max(1, round(heads / math.sqrt(2)))
    narrow = width // heads * fewer
    narrow_gated = max(8, round(gated * narrow / width / 8) * 8)
    layer, narrow_layer = (
        4 * h * h + 3 * h * i for h, i in ((width, gated), (narrow, narrow_gated))
    )
    deep: Settings = {
        "encoder.hidden_size": narrow,
        "encoder.num_attention_heads": fewer,
        "encoder.intermediate_size": narrow_gated,
        "encoder.num_hidden_layers": round(encoder.num_hidden_layers * layer / narrow_layer),
    }
    pre_norm: Settings = {
        **sizes,
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
        ("bert", "BERT as the paper has it", {}),
        (
            "no-nsp",
            "no next sentence",
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
        ("pre-norm", "norms first, no biases, dropout on attention's output alone", pre_norm),
        ("rotary", "rotary positions", {"encoder.positions": "rotary"}),
        ("geglu", "GeGLU", {"encoder.gated": True, "encoder.intermediate_size": gated}),
        ("deep", "deep and narrow", deep),
        (
            "local",
            "two of three layers local",
            {"encoder.global_attn_every_n_layers": 3, "encoder.local_attention": window},
        ),
        ("wsd", "warm-up, flat, 1 - √t", {"pretrain.optimizer.schedule": "wsd"}),
    )
    rungs: dict[str, RowSettings] = {}
    settings: Settings = {}
    for name, title, change in changes:
        settings = {**settings, **change}
        flops = step_flops(changed(run, run.name, settings))
        steps = round(run.pretrain.steps * step_flops(run) / flops)
        rungs[name] = RowSettings(title, {**settings, "pretrain.steps": steps})
    return rungs
