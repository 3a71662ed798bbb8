"""A simulated CUDA device that is stricter than a real one.

In:  code that uses `device="cuda"`, run inside `with strict_cuda() as device:`.
Out: real numbers, computed on the CPU; `Refused` where CUDA's kernels would fail; counts of host
     synchronisations, of kernels launched, and of copies from pageable memory.

Tensors "on the GPU" are `CudaTensor`s: a CPU tensor in a wrapper that reports cuda:0. Fake tensors
are not enough: autograd asks a CUDA build for its device, and values that are read must exist.
FlashAttention is computed with plain products, without dropout.
"""

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

from cloze.model.encoder.operations.products import product_in_float32

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)
SMALL = 64
"""Transfers of up to this many float64 values or CPU tensor elements are allowed: sums over
ranks."""

READS = {
    *(aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default),
    *(aten.unique_dim.default, aten._unique2.default, aten.equal.default),
    *(aten.is_nonzero.default,),
}
"""Operations that synchronise the host with the device."""

FREE = {
    *(aten.view.default, aten._unsafe_view.default, aten.detach.default, aten.alias.default),
    *(aten.t.default, aten.transpose.int, aten.slice.Tensor, aten.select.int, aten.expand.default),
    *(aten.unbind.int, aten.split.Tensor, aten.as_strided.default, aten.unsqueeze.default),
    *(aten.squeeze.dim, aten.permute.default, aten.view.dtype, aten.empty_like.default),
    *(aten.new_empty.default, aten.split_with_sizes.default),
}
"""Operations that launch nothing."""

EQUAL_TYPES = {
    *(aten.native_layer_norm.default, aten.native_layer_norm_backward.default),
    *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default),
}
"""Operations whose CUDA kernels require the same dtype for all floating-point operands."""


PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
LARGE = 1024
"""Product operands are inspected from this number of elements."""


class Refused(AssertionError):
    """CUDA would not run this."""


@dataclass
class StrictCuda:
    """Everything that happened on the device."""

    reads: list[str] = field(default_factory=list)
    """Each host synchronisation, and its cause."""

    pageable: list[str] = field(default_factory=list)
    """Copies to the device from pageable memory."""

    unaligned: list[str] = field(default_factory=list)
    """Operands of products whose rows are not aligned to 16 bytes, which slows down tensor
    cores."""

    launches: Counter[str] = field(default_factory=Counter)
    """Kernels by operation; a fused or foreach operation counts once."""

    sizes: set[int] = field(default_factory=set)
    """Dtypes of the operands of matrix products."""

    pinned: dict[int, Tensor] = field(default_factory=dict)
    """Page-locked memory by address; kept, so that no other tensor gets the same address."""

    capturing: "StrictGraph | None" = None
    """The graph that is being captured, if any."""

    def reset(self) -> None:
        """Reset all counters."""
        self.reads.clear()
        self.pageable.clear()
        self.unaligned.clear()
        self.sizes.clear()
        self.launches.clear()


@dataclass
class StrictGraph:
    """A CUDA graph: records the launches during capture, and repeats them on the same memory.

    Capturing leaves no results: overwritten memory is restored.
    """

    again: list[Callable[[], None]] = field(default_factory=list)
    before: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Overwritten memory and its previous content, by the address of its storage."""

    made: set[int] = field(default_factory=set)
    """Storages in the graph's own memory."""

    def launched(self, run: Callable[[], Any], result: Any) -> None:
        """`run` has returned `result`; a replay writes its new result into the same tensors."""
        kept = [value for value in tree_flatten(result)[0] if isinstance(value, Tensor)]
        self.made.update(_storage(tensor) for tensor in kept)

        def replay() -> None:
            found = [value for value in tree_flatten(run())[0] if isinstance(value, Tensor)]
            for tensor, value in zip(kept, found, strict=True):
                if _storage(tensor) != _storage(value):
                    tensor.copy_(value)

        self.again.append(replay)

    def writes(self, tensor: Tensor) -> None:
        """Remember the content of `tensor`, if it is older than the graph."""
        place = _storage(tensor)
        if place not in self.made and place not in self.before:
            whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            self.before[place] = whole, whole.clone()

    def replay(self) -> None:
        """One launch."""
        assert _active is not None
        _active.launches["graph"] += 1
        for launch in self.again:
            launch()


@contextlib.contextmanager
def _captured(graph: StrictGraph, **_: object) -> Iterator[None]:
    assert _active is not None
    waited = len(_active.reads), len(_active.pageable)
    _active.capturing = graph
    try:
        yield
    finally:
        _active.capturing = None
    if waited != (len(_active.reads), len(_active.pageable)):
        raise Refused("a graph is captured while the host waits for the device")
    for memory, held in graph.before.values():
        memory.copy_(held)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _seed(seed: int) -> None:
    if _active is not None and _active.capturing is not None:
        raise Refused("a generator is seeded while a graph is captured")
    torch.manual_seed(seed)


_active: StrictCuda | None = None
_chosen = threading.local()
"""Whether this thread has chosen its GPU."""


def _require_own_device() -> None:
    """Threads start with GPU 0, where every rank would allocate until it chooses its own."""
    if threading.current_thread() is not threading.main_thread() and not hasattr(_chosen, "device"):
        raise Refused("a thread uses a GPU without having chosen its own")


@contextlib.contextmanager
def _stream(_: object) -> Iterator[None]:
    _require_own_device()
    yield


class _Event:
    """There are no streams: everything recorded is done."""

    def record(self) -> None:
        """Now."""
        _require_own_device()

    def synchronize(self) -> None:
        """Nothing to wait for."""
        _require_own_device()


class CudaTensor(torch.Tensor):
    """A tensor that reports cuda:0."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "CudaTensor":
        tensor: CudaTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            requires_grad=inner.requires_grad,
        )
        tensor.inner = inner.detach()
        return tensor

    device = property(lambda self: CUDA)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    def record_stream(self, stream: object) -> None:
        """Nothing: there are no streams."""

    def tolist(self) -> Any:
        """All values, read with one synchronisation."""
        assert _active is not None
        _active.reads.append("tolist")
        return self.inner.tolist()

    def __repr__(self, **_: object) -> str:
        return f"CudaTensor({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        assert _active is not None, f"{func} on a CudaTensor outside of strict_cuda()"
        if func is aten.copy_.default:
            return _copy(*args, **kwargs)
        if func is aten._flash_attention_forward.default:
            return tree_map(_wrap, _run(_flash, args, kwargs))
        if func is aten._flash_attention_backward.default:
            return tree_map(_wrap, _run(_flash_backward, args, kwargs))
        _check(func, [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)])
        if func in READS or _reads_a_size(func, args, kwargs):
            _active.reads.append(str(func))
        if func in PRODUCTS:
            _active.unaligned += [name for name in map(_unaligned, args) if name]
            _active.sizes.update(*(a.shape for a in args if isinstance(a, Tensor)))
        if func not in FREE:
            _active.launches[func.overloadpacket.__name__] += 1
        _before_writing(func, args, kwargs)
        compute = _scaled_mm if func is aten._scaled_mm.default else func
        wrapped = tree_map(_wrap, _run(compute, args, kwargs))
        return return_and_correct_aliasing(func, args, kwargs, wrapped)


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of `func` on the inner tensors; recorded while a graph is captured."""
    inner, named = tree_map(_unwrap, args), tree_map(_unwrap, kwargs)
    result = func(*inner, **named)
    if _active is not None and _active.capturing is not None:
        _active.capturing.launched(lambda: func(*inner, **named), result)
    return result


def _before_writing(func: Any, args: Any, kwargs: Any) -> None:
    """During capture, remember what `func` is about to overwrite."""
    if _active is None or _active.capturing is None:
        return
    for argument, given in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            for tensor in tree_flatten(given)[0]:
                _active.capturing.writes(_unwrap(tensor))
    for argument in func._schema.arguments:
        if argument.name in kwargs and argument.alias_info is not None:
            for tensor in tree_flatten(kwargs[argument.name])[0]:
                _active.capturing.writes(_unwrap(tensor))


def _unwrap(value: Any) -> Any:
    return value.inner if isinstance(value, CudaTensor) else value


def _wrap(value: Any) -> Any:
    return CudaTensor(value) if isinstance(value, Tensor) else value


def _check(func: Any, tensors: list[Tensor]) -> None:
    """Reject what CUDA rejects, and what would be slow there."""
    for tensor in tensors:
        if not isinstance(tensor, CudaTensor) and tensor.dim():
            raise Refused(f"{func}: operands on two devices, one is on the CPU: {tensor.shape}")
        if tensor.dtype == torch.float64 and tensor.numel() > SMALL:
            raise Refused(f"{func}: float64 of {tuple(tensor.shape)}")
    if func is aten._scaled_mm.default:
        _check_fp8(tensors[0], tensors[1])
    floating = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    if func is aten.native_layer_norm_backward.default:  # mean and deviation are float32
        floating = {t.dtype for t in tensors if t.is_floating_point() and t.shape[-1:] != (1,)}
    if func in EQUAL_TYPES and len(floating) > 1:
        raise Refused(
            f"{func}: expected one type for all operands, got {sorted(map(str, floating))}"
        )


def _scaled_mm(left: Tensor, right: Tensor, *scales_and_bias: Tensor, **_: object) -> Tensor:
    return product_in_float32(left, right, *scales_and_bias[:3])


def _check_fp8(left: Tensor, right: Tensor) -> None:
    """Reject FP8 products that cuBLAS lacks (torch: aten/src/ATen/native/cuda/Blas.cpp)."""
    types = {left.dtype, right.dtype}
    if not types <= {torch.float8_e4m3fn, torch.float8_e5m2} or types == {torch.float8_e5m2}:
        raise Refused(f"_scaled_mm of {left.dtype} and {right.dtype}")
    if left.stride(-1) != 1 or right.stride(0) != 1:
        raise Refused("_scaled_mm wants rows of the left and columns of the right one together")
    if left.shape[1] % 16 or right.shape[0] % 16 or right.shape[1] % 16:
        raise Refused(f"_scaled_mm of {tuple(left.shape)} and {tuple(right.shape)}: not of 16")


def _unaligned(operand: Any) -> str:
    """The problem with an operand of a product, or an empty string."""
    if not isinstance(operand, Tensor) or operand.dim() < 2 or operand.numel() < LARGE:
        return ""
    bytes_a_row = max(operand.stride()[-2:]) * operand.element_size()
    return f"{tuple(operand.shape)} {operand.dtype}" if bytes_a_row % 16 else ""


def _reads_a_size(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Boolean indexing must know how many elements are set; repeating, how many to create."""
    if func is aten.repeat_interleave.Tensor:
        return kwargs.get("output_size") is None
    indexing = (aten.index.Tensor, aten.index_put_.default, aten.index_put.default)
    return func in indexing and any(i is not None and i.dtype == torch.bool for i in args[1])


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    assert _active is not None
    if not isinstance(source, CudaTensor):
        _to_device(source)
    elif not isinstance(target, CudaTensor):
        if non_blocking and _is_pinned(target):
            _active.launches["copy to the host"] += 1
        else:
            _active.reads.append("copy to the host")
    _active.launches["copy_"] += 1
    _before_writing(aten.copy_.default, (target, source), {})
    _run(aten.copy_.default, (target, source), {})
    return target


def _is_pinned(tensor: Tensor) -> bool:
    assert _active is not None
    return tensor.untyped_storage().data_ptr() in _active.pinned


def _to_device(source: Tensor) -> None:
    assert _active is not None
    if source.dim() and not _is_pinned(source):
        _active.pageable.append(f"{tuple(source.shape)} {source.dtype}")


class _Functions(TorchFunctionMode):
    """Intercepts `device=` before torch requires a CUDA build."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.pin_memory:
            return _pinned(args[0].clone())
        if kwargs.pop("pin_memory", False):
            return _pinned(func(*args, **kwargs))
        if func in (torch.Tensor.to, torch.Tensor.cpu):
            return _moved(func, args, kwargs)
        if func is torch.as_tensor and isinstance(args[0], CudaTensor):
            return args[0].to(kwargs.get("dtype", args[0].dtype))
        elsewhere = kwargs.get("device") is None or torch.device(kwargs["device"]).type != "cuda"
        if elsewhere or func is torch._C._nn._parse_to:
            return func(*args, **kwargs)
        made = _run(func, args, {**kwargs, "device": "cpu"})
        if func in (torch.tensor, torch.as_tensor):
            _to_device(made)
        return CudaTensor(made)


def _pinned(tensor: Tensor) -> Tensor:
    assert _active is not None
    _active.pinned[tensor.untyped_storage().data_ptr()] = tensor
    return tensor


def _moved(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """`tensor.to(…)` and `tensor.cpu()`."""
    tensor, *rest = args
    given = [*rest, kwargs.get("device"), kwargs.get("dtype"), kwargs.get("other")]
    device, dtype = tensor.device, tensor.dtype
    if func is torch.Tensor.cpu:
        device = torch.device("cpu")
    for value in given:
        if isinstance(value, str | torch.device):
            device = torch.device(value)
        elif isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, Tensor):
            device, dtype = value.device, value.dtype
    if device.type == tensor.device.type:
        same: Tensor = torch.Tensor.to(tensor, dtype)
        return same
    assert _active is not None
    if isinstance(tensor, CudaTensor):
        _active.reads.append("copy to the host")
        return tensor.inner.to(dtype, copy=True)
    _to_device(tensor)
    return CudaTensor(tensor.detach().to(dtype, copy=True))


def _flash(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, *rest: Any, **how: Any
) -> tuple[Tensor, ...]:
    """FlashAttention over packed sequences with plain products, without dropout.

    `how`: the scale of the scores, and the visible distance.
    """
    if query.dtype not in (torch.bfloat16, torch.float16) or starts.dtype != torch.int32:
        raise Refused(f"flash attention wants bf16 and int32, got {query.dtype}, {starts.dtype}")
    if query.shape[-1] % 8:
        raise Refused(f"flash attention wants heads of a multiple of 8, got {query.shape[-1]}")
    _count("_flash_attention_forward")
    out = torch.empty_like(query)
    for at in _sequences(starts):
        weights = _attention(query[at], key[at], is_causal=rest[4], **how)
        v = value[at].float()
        out[at] = torch.einsum("hqk,khd->qhd", weights, v).to(out.dtype)
    nothing = torch.zeros(())
    return out, torch.zeros(query.shape[1], len(query)), nothing, nothing, nothing


def _flash_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor,
    starts: Tensor, *rest: Any, scale: float | None = None, **window: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    _count("_flash_attention_backward")
    found = [torch.empty_like(t) for t in (query, key, value)]
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    for at in _sequences(starts):
        weights = _attention(query[at], key[at], is_causal=rest[4], scale=scale, **window)
        d, q, k, v = (t[at].float() for t in (gradient, query, key, value))
        through = torch.einsum("qhd,khd->hqk", d, v)
        scores = factor * weights * (through - (through * weights).sum(-1, keepdim=True))
        found[0][at] = torch.einsum("hqk,khd->qhd", scores, k).to(query.dtype)
        found[1][at] = torch.einsum("hqk,qhd->khd", scores, q).to(query.dtype)
        found[2][at] = torch.einsum("hqk,qhd->khd", weights, d).to(query.dtype)
    return tuple(found)


def _sequences(starts: Tensor) -> list[slice]:
    return [slice(*pair) for pair in itertools.pairwise(starts.tolist())]


def _attention(
    query: Tensor,
    key: Tensor,
    *,
    is_causal: bool,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> Tensor:
    """Probabilities of one sequence, [heads, queries, keys]; no window means everything."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("qhd,khd->hqk", query.float(), key.float()) * factor
    ahead = torch.arange(len(key)) - torch.arange(len(query))[:, None]
    right = 0 if is_causal else window_size_right
    if right is not None:
        scores = scores.masked_fill(ahead > right, -torch.inf)
    if window_size_left is not None:
        scores = scores.masked_fill(-ahead > window_size_left, -torch.inf)
    return scores.softmax(-1)


def _count(kernel: str) -> None:
    assert _active is not None
    _active.launches[kernel] += 1


@contextlib.contextmanager
def strict_cuda() -> Iterator[StrictCuda]:
    """Within the context, `device="cuda"` works and is monitored."""
    global _active  # noqa: PLW0603 - __torch_dispatch__ has no other way to know
    grouped = torch.optim.Optimizer._group_tensors_by_device_and_dtype

    def on_cuda(lists: Any, with_indices: bool = False) -> Any:
        found = grouped(lists, with_indices)
        if not any(isinstance(tensor, CudaTensor) for tensor in tree_flatten(lists)[0]):
            return found
        return {(CUDA, dtype): value for (_, dtype), value in found.items()}

    def waited(*_: object) -> None:
        assert _active is not None
        _active.reads.append("synchronize")

    _active = StrictCuda()
    with (
        mock.patch.object(
            torch.optim.Optimizer, "_group_tensors_by_device_and_dtype", staticmethod(on_cuda)
        ),
        mock.patch("torch.cuda.device_count", lambda: 1),
        mock.patch("torch.cuda.manual_seed", _seed),
        mock.patch("torch.cuda.CUDAGraph", StrictGraph),
        mock.patch("torch.cuda.graph", _captured),
        mock.patch("torch.cuda.graph_pool_handle", mock.MagicMock()),
        mock.patch("torch.cuda.Stream", mock.MagicMock()),
        mock.patch("torch.cuda.stream", _stream),
        mock.patch("torch.cuda.set_device", lambda device: setattr(_chosen, "device", device)),
        mock.patch("torch.cuda.current_stream", mock.MagicMock()),
        mock.patch("torch.cuda.Event", _Event),
        mock.patch("torch.cuda.mem_get_info", lambda device: (139 << 30, 141 << 30)),
        mock.patch.object(CPU_Accelerator, "synchronize", waited),
        mock.patch("torch.__future__.get_overwrite_module_params_on_conversion", lambda: True),
        _Functions(),
    ):
        try:
            yield _active
        finally:
            _active = None
