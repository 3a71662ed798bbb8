"""The rows of the paper's ablation tables, at whatever size a run has.

In:  a run's configuration and the tables wanted.
Out: for every row a configuration for each pre-training seed; rows with equal settings are one.

Table 5 asks what bidirectionality and next sentences are worth, Table 6 what size is, Table 8 what
stands in the place of a predicted token. Every row is a run of its own that shares whatever it can
with the others: the store sees to that.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from artifacts.config import assign, parse
from flows.config import RunConfig

Table = Literal["objective", "size", "masking"]

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
"""What makes a language model of a masked one."""

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


REFERENCE: dict[Table, int] = {"objective": 0, "size": -1, "masking": 0}
"""The row of each table that is the run as it was configured."""


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


def rows(run: RunConfig, tables: tuple[Table, ...], *, seeds: int = 3) -> list[Row]:
    """The rows of `tables` for `run`, the main ones with `seeds` pre-trainings."""
    settings = {"objective": _objectives(run), "size": _sizes(run), "masking": MASKING}
    found = []
    for table in tables:
        for name, row in settings[table].items():
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
    return found


def changed(run: RunConfig, name: str, places: Settings) -> RunConfig:
    """`run` with other values at some places, under a name of its own."""
    table = run.model_dump(mode="json")
    for place, value in places.items():
        table = assign(table, place, value)
    table = assign(table, "name", name)
    return parse(RunConfig, table, source=f"ablation {name}")


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
    shapes = [
        (max(1, layers // 2), width, heads, inner),
        (layers, width // 2, max(1, heads // 2), inner // 2),
        (max(1, layers // 2), width // 2, max(1, heads // 2), inner // 2),
        (layers, width, heads, inner),
    ]
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    return {
        f"{shape[0]}x{shape[1]}": RowSettings(
            f"{shape[0]} layers × {shape[1]}",
            {
                "encoder.preset": None,
                **{f"encoder.{name}": size for name, size in zip(names, shape, strict=True)},
            },
            main=shape in shapes[2:],
        )
        for shape in dict.fromkeys(shapes)
    }
