"""The finished encoder as an artifact that Hugging Face's `BertForPreTraining` reads too.

In:  fp32 masters by our names, the curve, the stage table.
Out: the committed artifact: model.safetensors, config.json, tokenizer, curve.jsonl.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from safetensors.torch import save
from torch import Tensor

from artifacts.stage import StageTable
from artifacts.store import Artifact, commit, put_bytes, put_json
from model.config import PretrainStage
from model.hugging_face.layout import hugging_face_config, to_hugging_face
from model.training.assembly import Inputs
from model.training.evaluation import Scores


@dataclass(frozen=True)
class Finished:
    """What a run leaves."""

    masters: Mapping[str, Tensor]
    curve: bytes
    metrics: bytes
    heldout: Scores | None
    updates: int
    execution: Mapping[str, Any]
    """Where, with how many, how long."""


def export(table: StageTable, stage: PretrainStage, inputs: Inputs, finished: Finished) -> Artifact:
    """Write and commit the artifact."""
    weights = to_hugging_face(finished.masters)
    tokenizer = inputs.tokenizer
    output = table.output
    files = [
        put_bytes(output, save(weights, metadata={"format": "pt"}), name="model.safetensors"),
        put_json(output, hugging_face_config(stage.encoder, tokenizer.size), name="config.json"),
        put_bytes(output, tokenizer.tokenizer_json().encode(), name="tokenizer.json"),
        put_bytes(output, tokenizer.vocab_txt().encode(), name="vocab.txt"),
        put_bytes(output, finished.curve, name="curve.jsonl"),
    ]
    return commit(
        table,
        files,
        statistics={
            "tokenizer_digest": tokenizer.digest,
            "vocabulary_size": tokenizer.size,
            "parameters": sum(tensor.numel() for tensor in finished.masters.values()),
            "updates": finished.updates,
            "heldout": asdict(finished.heldout) if finished.heldout else None,
        },
        records=[put_bytes(output, finished.metrics, name="metrics.jsonl")],
        execution=finished.execution,
    )
