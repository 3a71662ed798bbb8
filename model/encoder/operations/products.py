"""Matrix products of the encoder, with gradients that are fast on a CPU.

In:  x [T, in], a weight, a bias.
Out: x W + b [T, out]; in the backward pass, the three gradients; the rate of products here.

The gradient of a weight is a product over all tokens, x^T dy. CPU libraries multiply a transposed
bfloat16 left operand at about half speed, so the smaller of x and dy is transposed first. That
determines whether the gradient comes out as [in, out] or [out, in], and the weight is stored in the
same orientation. On processors with AMX, our own kernel computes such products: it rearranges both
operands for the tile unit within the cache.

In float32 on AMD's processors, whose cores MKL uses badly, products are our own kernel's.

In FP8, on GPUs that support it, activations and weights are rounded to E4M3, gradients to E5M2 for
its range (Micikevicius et al. 2022, arXiv 2209.05433). Every tensor has one scale, computed from
its current maximum: no scaling state is carried across steps or checkpoints. Sums are float32. On a
CPU the same rounded values are multiplied in float32 (`product_in_float32`), which is slower than
bfloat16 and serves tests and `benchmarks/gpu/fp8_loss.py` as a reference.

    python -P -m cloze.model.encoder.operations.products

prints the FLOP/s of products on all cores in float32 and, if they have them, in bfloat16.
"""

import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from cloze.model.encoder.operations.autograd import Context, apply
from cloze.model.encoder.operations.native_kernels import Kernels, kernels_for
from cloze.model.hardware import FP8_MULTIPLE, has_fast_fp32_library, machine_precision

# T tokens, I inputs of a product, O outputs; M rows, K depth, N columns of any product

TILE = 32
"""Rows per tile of a transposition; for AMX, sizes are multiples of this."""

FEW_ROWS, SMALL_DEPTH, SMALL_COLUMNS = 512, 512, 1152
"""Up to these sizes oneDNN spends much of a product on preparing it, and ours for AMX is faster."""

UNEVEN_ROWS, DEEP = 900, 3
"""Up to that many rows, and from that ratio of depth to columns on, oneDNN gives the threads uneven
shares of a product, and ours for AMX is faster."""

MOST_SUMS = 3 << 19
"""Values of a weight gradient up to which our kernel for AMX beats the library's: beyond, its
float32 sums fall out of the cache."""


CPU_SIZE = 1024
"""Rows and columns of the products by which a processor's rate is measured."""


def wide(tensor: Tensor) -> Tensor:
    """`tensor` in a dtype fit for statistics and sums: at least float32."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def affine(x_TI: Tensor, weight: Tensor, bias_O: Tensor, *, input_first: bool = False) -> Tensor:
    """Product plus bias, [T, O]; `weight` is [I, O] if `input_first`, else [O, I].

    On a CPU, oneDNN adds the bias inside the product; torch's own path first fills the output with
    it.
    """
    weight_OI = weight.mT if input_first else weight
    # The forms below have no gradient in torch: they are for hand-written passes and inference.
    if x_TI.device.type == "cpu" and not torch.is_grad_enabled():
        if _own_product(x_TI, weight_OI.mT):
            return product(x_TI, weight_OI.mT, bias_N=bias_O)
        if x_TI.dtype == torch.bfloat16 and _has_bf16_products():
            y_TO: Tensor = torch.ops.mkldnn._linear_pointwise(
                x_TI, weight_OI, bias_O, "none", [], ""
            )
            return y_TO
    return functional.linear(x_TI, weight_OI, bias_O)


def product(
    left_MK: Tensor,
    right_KN: Tensor,
    *,
    bias_N: Tensor | None = None,
    added_to_MN: Tensor | None = None,
    is_symmetric: bool = False,
) -> Tensor:
    """The product of two matrices, [M, N], without autograd.

    `bias_N` is added to every row; with `added_to_MN`, the product is added to it in place. If the
    result is known to be symmetric, our kernel computes only half of it.
    """
    own = _own_product(left_MK, right_KN)
    # Our kernel writes rows of `columns` values, so it cannot add to a strided result.
    if own is None or (added_to_MN is not None and not added_to_MN.is_contiguous()):
        if added_to_MN is not None:
            return added_to_MN.addmm_(left_MK, right_KN)
        return left_MK @ right_KN if bias_N is None else torch.addmm(bias_N, left_MK, right_KN)
    (rows, depth), columns = left_MK.shape, right_KN.shape[1]
    result_MN = left_MK.new_empty(rows, columns) if added_to_MN is None else added_to_MN
    start_N = None if bias_N is None else bias_N.contiguous()
    is_added = added_to_MN is not None
    own(
        "product",
        *(rows, columns, depth),
        *(left_MK, left_MK.stride(0), left_MK.stride(1)),
        *(right_KN, right_KN.stride(0), right_KN.stride(1)),
        *(start_N, is_added, is_symmetric, result_MN, columns),
    )
    return result_MN


def _own_product(left_MK: Tensor, right_KN: Tensor) -> Kernels | None:
    """The library with our product of these operands, where it is faster than torch's."""
    native = kernels_for(left_MK, right_KN)
    if native is None:
        return None
    (rows, depth), columns = left_MK.shape, right_KN.shape[1]
    if not (rows and depth and columns):
        return None
    if left_MK.dtype == torch.float32:
        is_fast = not has_fast_fp32_library()
    else:
        is_small = rows <= FEW_ROWS and depth <= SMALL_DEPTH and columns <= SMALL_COLUMNS
        is_fast = (
            native.has_tiles
            # Whole tiles; left by rows, and right by rows or by columns.
            and (is_small or (rows <= UNEVEN_ROWS and DEEP * columns <= depth))
            and not (rows | depth | columns) % TILE
            and left_MK.stride(1) == 1 in right_KN.stride()
        )
    return native if is_fast else None


def orthogonalising_kernels(matrices_NIO: Tensor) -> Kernels | None:
    """The library with our kernel for Muon's iteration on such matrices, where it is faster."""
    native = kernels_for(matrices_NIO)
    if native is None or not matrices_NIO.numel():
        return None
    if matrices_NIO.dtype == torch.float32:
        is_fast = not has_fast_fp32_library()
    else:
        is_fast = native.has_tiles and not any(size % TILE for size in matrices_NIO.shape[1:])
    return native if is_fast else None


@cache
def _has_bf16_products() -> bool:
    """Whether oneDNN supports bfloat16 products here; torch's own path always does, slowly."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def weight_gradient(x_TI: Tensor, dy_TO: Tensor, *, input_first: bool = False) -> Tensor:
    """Gradient of the weight, in the weight's orientation."""
    return transposed_product(x_TI, dy_TO) if input_first else transposed_product(dy_TO, x_TI)


def transposed_product(left_TM: Tensor, right_TN: Tensor) -> Tensor:
    """left^T right, [M, N], without autograd."""
    return transposed_products(left_TM, right_TN, count=1)[0]


def transposed_products(left_TM: Tensor, right_TN: Tensor, *, count: int) -> Tensor:
    """left^T times each of `count` blocks of right's columns, [count, M, N / count]."""
    (tokens, rows), columns = left_TM.shape, right_TN.shape[1]
    native = kernels_for(left_TM, right_TN)
    fits = tokens and 0 < rows * columns <= MOST_SUMS and not (rows | columns // count) % TILE
    if native is None or not native.has_tiles or not fits or (count > 1 and rows > columns):
        blocks = product(transposed(left_TM), right_TN).view(rows, count, columns // count)
        return blocks.transpose(0, 1)
    result = left_TM.new_empty(count, rows, columns // count)
    left_TM, right_TN = left_TM.contiguous(), right_TN.contiguous()
    native("transposed_product", tokens, rows, columns, count, left_TM, right_TN, result)
    return result


def bias_gradient(dy_TO: Tensor) -> Tensor:
    """The column sums, [O]."""
    native = kernels_for(dy_TO)
    if native is None:
        return dy_TO.sum(0)
    sums_O = dy_TO.new_empty(dy_TO.shape[1])
    native("column_sums", *dy_TO.shape, dy_TO.contiguous(), sums_O)
    return sums_O


def transposed(x_TN: Tensor) -> Tensor:
    """x^T, [N, T]: a copy if that is faster, else a view."""
    tokens, width = x_TN.shape
    whole = tokens // TILE * TILE
    native = kernels_for(x_TN)
    if x_TN.dtype != torch.bfloat16 or (native is None and not whole):
        return x_TN.mT
    result = x_TN.new_empty(width, tokens)
    if native is not None:
        native("transpose", tokens, width, x_TN.contiguous(), result)
        return result
    # First transpose within tiles of 32 rows, then move the tiles in pieces of 64 bytes: in a
    # single step, every read or every write would skip a whole row.
    tiles = x_TN[:whole].view(whole // TILE, TILE, width).mT.contiguous()
    result[:, :whole].view(width, whole // TILE, TILE).copy_(tiles.transpose(0, 1))
    result[:, whole:].copy_(x_TN[whole:].mT)
    return result


class Scaled(NamedTuple):
    """A tensor in FP8, approximately `values` times `scale`."""

    values: Tensor
    scale: Tensor
    """A scalar, float32."""


def scaled(tensor: Tensor, dtype: torch.dtype) -> Scaled:
    """`tensor` in an FP8 type, scaled so that its maximum is the largest value of the type.

    The result of a non-finite tensor is non-finite: its scale is NaN or infinite.
    """
    most = torch.finfo(dtype).max
    # Avoids division by zero for a tensor of zeros. Not a module-level float: torch.compile would
    # turn it into a graph input, which an autograd function cannot take.
    smallest = torch.finfo(torch.float32).tiny
    # A scalar: maximum / largest value of the type.
    scale = (tensor.abs().amax().float() / most).clamp_min(smallest)
    values = (tensor.float() / scale).clamp(-most, most).to(dtype)
    return Scaled(values.contiguous(), scale)


def fp8_affine(
    x_TI: Tensor, weight: Tensor, bias_O: Tensor, *, input_first: bool = False
) -> Tensor:
    """`affine` in FP8, [T, O]; I and O must be multiples of 16."""
    return apply(_Fp8Affine, x_TI, weight.mT if input_first else weight, bias_O)


class _Fp8Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
        x, weight = scaled(x_TI, torch.float8_e4m3fn), scaled(weight_OI, torch.float8_e4m3fn)
        ctx.save_for_backward(*x, *weight)
        # Fast accumulation (128 products at a time in registers) is accurate enough for bfloat16
        # output.
        return _fp8_product(x, weight, bias=bias_O, fast=True)

    @staticmethod
    def backward(ctx: Context, gradient_TO: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        saved = ctx.saved_tensors  # read once: a checkpoint recomputes them only once
        x, weight = Scaled(*saved[:2]), Scaled(*saved[2:])
        gradient = scaled(gradient_TO, torch.float8_e5m2)
        return (
            _fp8_product(gradient, _turned(weight)),
            _fp8_product(_turned(gradient), _turned(x)),
            gradient_TO.sum(0),
        )


def _fp8_product(
    left_MK: Scaled, right_NK: Scaled, *, bias: Tensor | None = None, fast: bool = False
) -> Tensor:
    """Left times right^T plus bias, [M, N] bfloat16.

    K is the last dimension of both operands: Hopper supports no other layout.
    """
    if left_MK.values.device.type == "cpu":
        return product_in_float32(
            left_MK.values, right_NK.values.mT, left_MK.scale, right_NK.scale, bias
        )
    product_MN: Tensor = torch._scaled_mm(
        left_MK.values,
        right_NK.values.mT,
        left_MK.scale,
        right_NK.scale,
        bias=bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )
    return product_MN


def product_in_float32(
    left_MK: Tensor,
    right_KN: Tensor,
    left_scale: Tensor,
    right_scale: Tensor,
    bias_N: Tensor | None = None,
) -> Tensor:
    """The result of `torch._scaled_mm`, computed in float32, [M, N] bfloat16.

    torch's CPU version passes FP8 values to oneDNN, whose reference kernel is a hundred times
    slower on CPUs with AMX.
    """
    product_MN = left_MK.float() @ right_KN.float() * (left_scale * right_scale)
    return (product_MN if bias_N is None else product_MN + bias_N.float()).bfloat16()


def _turned(tensor_MN: Scaled) -> Scaled:
    """A transposed copy, [N, M], with M zero-padded to a multiple of 16."""
    values_MN = tensor_MN.values
    missing = -len(values_MN) % FP8_MULTIPLE
    if missing:
        # torch does not pad FP8, but byte 0 is the value 0 in both types.
        bytes_MN = functional.pad(values_MN.view(torch.uint8), (0, 0, 0, missing))
        values_MN = bytes_MN.view(values_MN.dtype)
    return Scaled(values_MN.mT.contiguous(), tensor_MN.scale)


def matrix_rate(
    device: torch.device,
    *,
    precision: torch.dtype,
    seconds: float = 0.2,
) -> float:
    """FLOP/s of square matrix products on this rank, the best of several measurements."""
    size = 8192 if device.type == "cuda" else CPU_SIZE
    left = torch.randn(size, size, device=device).to(precision)
    best, until = 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        started = time.perf_counter()
        float(product(left, left)[0, 0])  # reading a value synchronises
        best = max(best, 2.0 * size**3 / (time.perf_counter() - started))
    return best


def sustained_rate(*, precision: torch.dtype, cores: int, seconds: float = 1.0) -> float:
    """FLOP/s that `cores` sustain when all of them multiply.

    A burst of one core is up to 1.6 times as fast as its share of that: with wide vectors on all
    cores, clocks fall. Each thread is timed by its own processor time, so that other programs do
    not count.
    """
    left = torch.randn(CPU_SIZE, CPU_SIZE).to(precision)

    def rate(_: int) -> float:
        torch.set_num_threads(1)  # of the calling thread
        rates: list[float] = []
        until = time.monotonic() + seconds
        while len(rates) < 2 or time.monotonic() < until:
            started = time.thread_time()
            product(left, left)
            rates.append(2.0 * CPU_SIZE**3 / (time.thread_time() - started))
        # The second half: until all threads multiply and clocks have settled, rates are too high.
        return statistics.median(rates[len(rates) // 2 :])

    with ThreadPoolExecutor(cores) as pool:
        return sum(pool.map(rate, range(cores)))


if __name__ == "__main__":
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = [torch.float32]
    if machine_precision()[0] == "bf16":
        found.append(torch.bfloat16)
    for dtype in found:
        print(sustained_rate(precision=dtype, cores=available or 1))
