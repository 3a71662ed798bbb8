"""One vector per text.

In:  texts.
Out: float32 vectors, [H × number of layers] each, in the texts' order; or a NumPy file of them.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from artifacts.errors import UsageError
from artifacts.tokenizer import SubwordTokenizer, well_formed
from model.data.batch import Example, pack
from model.encoder.encoder import Encoder, Pooling
from model.inference.streaming import in_windows

Vector = npt.NDArray[np.float32]


def embeddings(
    texts: Iterable[str],
    encoder: Encoder,
    tokenizer: SubwordTokenizer,
    *,
    pooling: Pooling,
    layers: tuple[int, ...],
    truncate: bool,
    longest: int = 0,
) -> Iterator[Vector]:
    """One vector per text; `Model.embed` describes the options."""
    depth = encoder.config.num_hidden_layers + 1
    wrong = [layer for layer in layers if not -depth <= layer < depth]
    if wrong or not layers:
        raise UsageError(f"layers {layers}: expected numbers from {-depth} to {depth - 1}")
    positions = encoder.config.max_position_embeddings
    positions = min(longest or positions, positions)
    device = next(encoder.parameters()).device

    def read(window: Sequence[str], first: int) -> list[Example]:
        texts = [well_formed(text) for text in window]
        encodings = tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        for number, text in enumerate(ids, start=first + 1):
            if not truncate and len(text) + 2 > positions:
                raise UsageError(
                    f"text {number}: {len(text) + 2} tokens, the encoder has {positions} "
                    "positions; cut it into parts, or allow truncation"
                )
        return [
            Example([tokenizer.cls_id, *text[: positions - 2], tokenizer.sep_id]) for text in ids
        ]

    @torch.inference_mode()
    def compute(examples: Sequence[Example]) -> list[Vector]:
        batch = pack(examples).to(device)
        states = encoder.hidden_states(batch)
        vectors = [encoder.pooled(states[layer], batch, pooling=pooling) for layer in layers]
        return list(torch.cat(vectors, dim=-1).float().cpu().numpy())

    return in_windows(
        texts, read, compute, length=lambda example: len(example.input_ids), device=device
    )


def normalized(vectors: Iterable[Vector]) -> Iterator[Vector]:
    """The vectors scaled to length 1; a zero vector stays zero."""
    for vector in vectors:
        yield vector / max(np.linalg.norm(vector), np.float32(1e-12))


def write_vectors(path: Path, vectors: Iterable[npt.NDArray[np.float32]], *, width: int) -> int:
    """Write NAME.npy, [N, width] float32, as a stream; return N.

    Memory use is constant, and the file appears when it is complete.
    """
    if not path.parent.is_dir():
        raise UsageError(f"{path}: no folder {path.parent}; make it first")

    def write_header(file: BinaryIO, *, rows: int) -> None:
        # NumPy pads the header, so its length is the same for any number of rows.
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
        )

    unfinished = path.with_name(f"{path.name}.unfinished-{os.getpid()}")
    count = 0
    try:
        with unfinished.open("wb") as file:
            write_header(file, rows=0)
            for vector in vectors:
                file.write(vector.astype("<f4", copy=False).tobytes())
                count += 1
            file.seek(0)
            write_header(file, rows=count)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count
