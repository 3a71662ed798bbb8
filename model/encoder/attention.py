"""Which attention runs.

In:  a name, or `auto`; the device and type of the parameters.
Out: a backend: `attend = backend(batch, config)`; `attend(parts_T3AK, noise) -> context_TAK`.

No token sees another sequence. The backend in use is reported by name; asking for one that is not
there is an error, never a silent replacement.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from artifacts.errors import UsageError
from model.config import EncoderConfig
from model.encoder.batch import PackedBatch
from model.encoder.dropout import Noise
from model.encoder.flash_attention import FlashAttention, VarlenAttention
from model.encoder.grouped_attention import GroupedAttention

# T tokens of all sequences together, A heads, K width of one head

Attend = Callable[[Tensor, Noise | None], Tensor]
"""Query, key and value [T, 3, A, K] → context vectors [T, A, K]; dropout if there is noise."""

BACKENDS: dict[str, Callable[[PackedBatch, EncoderConfig], Attend]] = {
    "grouped": GroupedAttention,
    "flash": FlashAttention,
    "varlen": VarlenAttention,
}
"""grouped: any device and type, plain matrix products. flash: CUDA, dropout inside the kernel.
varlen: CUDA, torch.nn.attention.varlen, which has no dropout."""


def backend_name(wanted: str, *, device: torch.device, dtype: torch.dtype) -> str:
    """The backend that runs there; `auto` is what measures fastest."""
    has_kernels = device.type == "cuda" and dtype in (torch.float16, torch.bfloat16)
    if wanted == "auto":
        return "flash" if has_kernels else "grouped"
    if wanted not in BACKENDS:
        raise UsageError(f"attention backend {wanted}: unknown; known are {', '.join(BACKENDS)}")
    if wanted != "grouped" and not has_kernels:
        raise UsageError(
            f"attention backend {wanted} wants bfloat16 on a CUDA device, the encoder is {dtype} "
            f"on {device.type}; use auto or grouped"
        )
    return wanted
