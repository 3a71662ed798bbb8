"""An exported model as ONNX graphs, for programs without torch.

In:  a folder in Hugging Face's layout, as written by `export`.
Out: `onnx/model.onnx` in that folder and, on request, `onnx/model_int8.onnx`. Inputs: `input_ids`,
     `attention_mask` and, for BERT, `token_type_ids`, [B, S] int64. Output: `sentence_embedding`
     [B, H] if the folder has sentence-transformers' modules, else `logits` of a task's head or of
     the masked-language-model head, else `last_hidden_state`.

The graph is traced from the class of `transformers` in the folder's config.json: ours packs
sequences without padding, with kernels that ONNX lacks, and gives the same results
(tests/model/encoder). int8 is onnxruntime's dynamic quantisation: weights are quantised ahead of
time, activations at run time.
"""

import logging
import warnings
from pathlib import Path

import torch
import transformers
from onnxruntime.quantization import QuantType, quantize_dynamic
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional

from artifacts.errors import UsageError
from model.hugging_face.model_files import BILSTM
from model.hugging_face.source import (
    CONFIG,
    SentenceModules,
    open_source,
    read_sentence_modules,
    read_shape,
)

GRAPH, INT8 = "onnx/model.onnx", "onnx/model_int8.onnx"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
EXAMPLE = (2, 8)
"""B and S of the traced inputs; both are dynamic in the graph."""


class Traced(nn.Module):
    """A model of `transformers` with tensors as inputs and a single output tensor."""

    def __init__(self, model: nn.Module, modules: SentenceModules | None) -> None:
        super().__init__()
        self.model = model
        self.modules_after = modules

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Logits, hidden states, or one vector per sequence."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            given["token_type_ids"] = token_type_ids
        if type(self.model).__name__.endswith("ForMultipleChoice"):  # [B, choices, S]
            given = {name: value[:, None] for name, value in given.items()}
        found = self.model(**given)
        if hasattr(found, "start_logits"):
            return torch.stack((found.start_logits, found.end_logits), dim=-1)
        states: Tensor = found[0]
        if self.modules_after is None:
            return states
        if self.modules_after.pooling == "cls":
            vectors = states[:, 0]
        else:
            inside = attention_mask[:, :, None].to(states.dtype)
            vectors = (states * inside).sum(1) / inside.sum(1)
        return functional.normalize(vectors, dim=-1) if self.modules_after.normalize else vectors


def export_onnx(folder: Path, *, int8: bool = False) -> list[Path]:
    """Write the graphs of the model in `folder`; return the paths written."""
    config, _ = read_shape(folder)
    source = open_source(folder)
    named = source.read_table(CONFIG)["architectures"]
    architecture = str(named[0]) if isinstance(named, list) else ""
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        tensors = weights.keys()
    has_bilstm = any(name.startswith(BILSTM) for name in tensors)
    if config.attention_direction != "bidirectional" or has_bilstm:
        raise UsageError(
            f"{folder}: has unidirectional attention or a BiLSTM, which `transformers` would not "
            "compute, and its graph is the one exported; leave out --onnx"
        )
    modules = read_sentence_modules(source, positions=config.max_position_embeddings)
    transformers.logging.set_verbosity_error()  # no warning about the unused next-sentence head
    transformers.logging.disable_progress_bar()
    name = architecture.replace("ForPreTraining", "ForMaskedLM")
    their_class = transformers.AutoModel if modules else getattr(transformers, name)
    names = INPUTS if config.family == "bert" else INPUTS[:2]
    output = "last_hidden_state" if architecture.endswith("Model") else "logits"
    graph = folder / GRAPH
    graph.parent.mkdir()
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    # The exporter and the quantiser warn about their own internals.
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            torch.onnx.export(
                Traced(their_class.from_pretrained(folder), modules).eval(),
                tuple(torch.ones(EXAMPLE, dtype=torch.int64) for _ in names),
                graph,
                input_names=names,
                output_names=["sentence_embedding" if modules else output],
                dynamic_shapes=tuple(free for _ in names),
                external_data=False,
                verbose=False,
            )
            if int8:
                quantize_dynamic(
                    graph, folder / INT8, weight_type=QuantType.QInt8, per_channel=True
                )
    finally:
        logging.disable(logging.NOTSET)
    return [graph, folder / INT8] if int8 else [graph]
