"""sentence-transformers' modules after the encoder: `modules.json` and the files it refers to.

In:  the files of a model.
Out: `SentenceModules`, or None if there are none; and the files for an exported model.
"""

import json
import re
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from artifacts.errors import UsageError
from artifacts.progress import say
from model.hugging_face.source import Source

MODULES = "modules.json"
LIMITS = "sentence_bert_config.json"
POOLING_MODES: dict[str, Literal["mean", "cls"]] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}
_TYPES = "sentence_transformers.models."
_PLAIN_FOLDER = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True)
class SentenceModules:
    """How a text's vector is computed from the encoder's outputs."""

    pooling: Literal["mean", "cls"]
    normalize: bool
    """Whether vectors are scaled to length 1."""

    max_seq_length: int
    """Maximum number of tokens, special ones included; longer texts are truncated."""

    def files(self, *, width: int) -> dict[str, bytes]:
        """The files for sentence-transformers; `width`: the encoder's hidden size."""
        kinds = ["Transformer", "Pooling", *(["Normalize"] if self.normalize else [])]
        modules: list[JsonValue] = [
            {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": _TYPES + kind}
            for n, kind in enumerate(kinds)
        ]
        pooling: dict[str, JsonValue] = {
            mode: name == self.pooling for mode, name in POOLING_MODES.items()
        }
        return {
            MODULES: _json(modules),
            LIMITS: _json({"max_seq_length": self.max_seq_length, "do_lower_case": False}),
            "1_Pooling/config.json": _json({"word_embedding_dimension": width, **pooling}),
        }


def read_sentence_modules(source: Source, *, positions: int) -> SentenceModules | None:
    """The modules of `source`, whose encoder has `positions` positions.

    None if there are none or, with a warning, if one is not supported.
    """
    if MODULES not in source.names:
        return None
    where = f"{source.directory}/{MODULES}"
    try:
        modules = json.loads(source.read_text(MODULES))
        kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
        folder = str(modules[kinds.index("Pooling")]["path"])
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        raise UsageError(
            f"{where}: not a list of sentence-transformers' modules with a Pooling; copy the model "
            "again, or remove the file to use the encoder alone"
        ) from None
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        say(f"warning: {where}: {', '.join(kinds)} is not supported; only the encoder is used")
        return None
    if not _PLAIN_FOLDER.fullmatch(folder):
        raise UsageError(f"{where}: {folder!r} is not a folder name")
    table = source.read_table(f"{folder}/config.json")
    in_use = [name for name, value in table.items() if "pooling_mode" in name and value]
    mode = table.get("pooling_mode")  # as written by version 6
    chosen = f"pooling_mode_{mode}_token" if isinstance(mode, str) else "".join(in_use)
    pooling = POOLING_MODES.get(chosen) or POOLING_MODES.get(f"{chosen}s")
    if pooling is None:
        say(f"warning: {where}: {chosen} is not supported; only the encoder is used")
        return None
    limit = source.read_table(LIMITS).get("max_seq_length") if LIMITS in source.names else None
    longest = min(limit, positions) if isinstance(limit, int) and limit > 2 else positions
    return SentenceModules(pooling, "Normalize" in kinds, longest)


def _json(value: JsonValue) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
