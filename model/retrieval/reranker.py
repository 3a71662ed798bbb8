"""Scores of passages that are read together with the question (a cross-encoder).

In:  a model of a task `reranking`, or one in Hugging Face's layout that classifies pairs of texts
     with a single output, as sentence-transformers' CrossEncoder saves it.
Out: `Reranker`: the score of each passage for a question, the model's output before any sigmoid.

Every passage costs a pass through the encoder, so only the first ones that vectors and words have
found are scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import SubwordTokenizer, well_formed
from cloze.model.encoder.models import TaskModel
from cloze.model.encoder.precision import placed
from cloze.model.hugging_face.model_files import MODELS, read_cross_encoder
from cloze.model.hugging_face.source import Source, open_source
from cloze.model.inference.load import pack_encoder, require_finite
from cloze.model.task_families import TASK_FAMILIES
from cloze.model.tasks.features import batches_by_length, encode, tokens_at_once

SHOWN = 50
"""Characters of a question in an error."""

# P passages


@dataclass(frozen=True)
class Reranker:
    """A cross-encoder on its device."""

    model: TaskModel
    tokenizer: SubwordTokenizer
    max_seq_length: int
    """Tokens of question and passage; the longer one is truncated."""

    @torch.inference_mode()
    def scores(self, question: str, passages: Sequence[str]) -> npt.NDArray[np.float32]:
        """[P] the score of each passage; a higher one is more relevant."""
        found_P = np.zeros(len(passages), np.float32)
        if not len(passages):
            return found_P
        texts = [well_formed(passage) for passage in passages]
        asked = [well_formed(question)] * len(texts)
        sequences = encode(self.tokenizer, asked, texts, max_seq_length=self.max_seq_length)
        device = next(self.model.parameters()).device
        budget = tokens_at_once(device)
        for rows in batches_by_length(sequences.lengths, token_budget=budget):
            logits = self.model(sequences.batch(rows).to(device), None)
            found_P[rows] = logits[:, 0].cpu().numpy()
        return require_finite(found_P, f"question {question[:SHOWN]!r}: a score of the reranker")


def load_reranker(location: str | Path, *, device: str = "auto") -> Reranker:
    """The reranker at `location`: a finetune artifact with one task `reranking`, or a folder."""
    source = open_source(location)
    if source.manifest is not None and source.manifest.stage == "finetune":
        source = _only_reranker(source)
    model, tokenizer, longest = read_cross_encoder(source)
    where, _ = placed(device, "fp32")  # the same order on every machine
    model.to(where)
    pack_encoder(model.encoder, "fp32")
    return Reranker(model, tokenizer, longest)


def _only_reranker(artifact: Source) -> Source:
    """The model of the only task `reranking` of a finetune artifact."""
    models = artifact.inside(MODELS)
    # By kind rather than name: whoever searches need not know what the task was called.
    kinds = {}
    for name in sorted({name.partition("/")[0] for name in models.names}):
        table = models.inside(f"{name}/").read_table("config.json").get("cloze_task")
        task = table.get("task") if isinstance(table, dict) else None
        kinds[name] = task.get("kind") if isinstance(task, dict) else None
    families = {name: TASK_FAMILIES.get(str(kind)) for name, kind in kinds.items()}
    found = [name for name, family in families.items() if family and family.reranks]
    if len(found) != 1:
        listed = ", ".join(f"{name} ({kind})" for name, kind in kinds.items()) or "none"
        raise UsageError(
            f"{artifact.directory}: {len(found)} models of tasks of the kind reranking, expected "
            f"one; it has {listed}: write the right one into a folder with `cloze export --task`"
        )
    return models.inside(f"{found[0]}/")
