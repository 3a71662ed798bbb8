"""Pre-training losses: sums, and a masked-LM loss that takes few passes over the logits.

In:  transformed vectors of the masked tokens [M, H], word embeddings [V, H], bias [V], labels [M].
Out: the loss summed over the M tokens, and the number of correct predictions.

`masked_lm_loss` is the cross-entropy over the whole vocabulary; its logits are the widest tensor of
pre-training.

Up to the labels, the softmax is the gradient, so it is computed once, in the dtype of the logits,
and saved; torch's cross-entropy makes a float32 copy, its logarithm, and then the gradient. The
softmax denominators and the upstream gradient scale the [M, H] side of the products, never the [M,
V] side.

With native kernels the logits are [V, M]: maxima and sums run down the columns, one per vector
lane, and the products for logits and word gradients run twice as fast as with the vocabulary as
columns.

The released vocabulary of 30,522 is not a multiple of 8, but tensor cores need rows aligned to 16
bytes. On a GPU the products therefore use a vocabulary padded to a multiple of 64, with a bias of
minus infinity: the padding gets no probability and no gradient. Parameters, checkpoints and
artifacts keep their sizes.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from cloze.model.data.batch import NOT_PREDICTED
from cloze.model.encoder.operations.autograd import Context
from cloze.model.encoder.operations.native_kernels import kernels_for
from cloze.model.encoder.operations.products import affine, product, transposed_product, wide

# M masked tokens, V vocabulary, H width

VOCABULARY_MULTIPLE = 64
"""The vocabulary is padded to a multiple of this on a GPU: 128-byte rows in bfloat16."""


class PretrainingSums(NamedTuple):
    """Sums over one micro-batch; scalars on the model's device."""

    masked_lm_loss: Tensor
    """float32: cross-entropy in nats, summed over the M masked tokens."""

    next_sentence_loss: Tensor
    """float32: cross-entropy in nats, summed over the labelled sequences."""

    masked_lm_correct: Tensor
    """int64: masked tokens whose most likely word-piece is the label."""

    next_sentence_correct: Tensor
    """int64: sequences whose more likely class is the label."""

    def loss(self, masked: float | Tensor, labelled: float | Tensor) -> Tensor:
        """The training objective: both sums divided by their counts; infinity disables a loss.

        Parameters of a disabled loss get zero gradients, because other ranks would wait for missing
        ones.
        """
        return self.masked_lm_loss / masked + self.next_sentence_loss / labelled


def masked_lm_loss(
    vectors_MH: Tensor, words_VH: Tensor, bias_V: Tensor, labels_M: Tensor
) -> tuple[Tensor, Tensor]:
    """Loss in nats (float32) and number of correct predictions (int64), summed over the tokens."""
    native = kernels_for(vectors_MH) is not None
    function = _NativeCrossEntropy if native else _SummedCrossEntropy
    sums: tuple[Tensor, Tensor] = function.apply(vectors_MH, words_VH, bias_V, labels_M)  # type: ignore[no-untyped-call]  # torch has no types here
    return sums


@torch.no_grad()
def hits(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """Number of rows whose largest logit is at the label; the first of ties counts.

    On a CPU, max is ten times as fast as argmax, so argmax is computed only for rows where the
    label attains the maximum.
    """
    # Where no label is given (-1), class 0 is compared here, but no argmax equals the label below.
    if logits_NC.device.type == "cpu" and len(labels_N):
        at_label_N = logits_NC.gather(1, labels_N.clamp_min(0)[:, None]).squeeze(1)
        candidates = (at_label_N == logits_NC.amax(-1)).nonzero().squeeze(1)
        logits_NC, labels_N = logits_NC[candidates], labels_N[candidates]
    return (logits_NC.argmax(-1) == labels_N).sum()


def softmax_gradient(logits_MV: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of the summed loss with respect to the logits; loss; correct predictions.

    Rows labelled `NOT_PREDICTED` contribute to neither. The loss of a token is subject to the
    rounding of its bfloat16 probability: 0.002 nats, unbiased, a tenth of the effect of rounding
    its logits.
    """
    correct = hits(logits_MV, labels_M)
    gradient_MV = logits_MV.softmax(-1)
    predicted_M = labels_M != NOT_PREDICTED
    # Flat places of the labels: one value per row is read and changed in place.
    rows_M = torch.arange(len(labels_M), device=labels_M.device)
    places_M = rows_M * logits_MV.shape[1] + labels_M.clamp_min(0)
    probabilities_M = gradient_MV.view(-1)[places_M]
    # A bfloat16 probability can underflow to 0; the smallest normal number keeps the loss finite.
    losses_M = -wide(probabilities_M).clamp_min(torch.finfo(logits_MV.dtype).tiny).log()
    # The gradient of the cross-entropy is softmax - 1 at the label, and the softmax elsewhere.
    gradient_MV.view(-1)[places_M] = probabilities_M - 1.0
    gradient_MV.masked_fill_(~predicted_M[:, None], 0.0)
    return gradient_MV, torch.where(predicted_M, losses_M, 0.0).sum(), correct


def native_softmax_gradient(
    logits_VM: Tensor, bias_V: Tensor, labels_M: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As `softmax_gradient`, for transposed logits without bias: factors [M], loss, correct.

    The logits are overwritten with the gradient, up to the factors of their columns (float32).
    """
    native = kernels_for(logits_VM, bias_V)
    assert native is not None
    factors_M, losses_M = torch.empty(2, len(labels_M))
    hits_M = torch.empty(len(labels_M), dtype=torch.bool)
    native(
        "cross_entropy",
        *(*logits_VM.shape, logits_VM, bias_V.contiguous(), labels_M.contiguous()),
        *(factors_M, losses_M, hits_M),
    )
    return factors_M, losses_M.sum(), hits_M.sum()


class _Context(Context):
    vocabulary: int


class _SummedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, vectors_MH: Tensor, words_VH: Tensor, bias_V: Tensor, labels_M: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.vocabulary = len(bias_V)
        missing = -len(bias_V) % VOCABULARY_MULTIPLE
        if missing and bias_V.device.type != "cpu":
            words_VH = functional.pad(words_VH, (0, 0, 0, missing))
            bias_V = functional.pad(bias_V, (0, missing), value=-torch.inf)
        logits_MV = affine(vectors_MH, words_VH, bias_V)
        gradient_MV, loss, correct = softmax_gradient(logits_MV, labels_M)
        ctx.save_for_backward(vectors_MH, words_VH, gradient_MV)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx: _Context, upstream: Tensor, _: None) -> tuple[Tensor, Tensor, Tensor, None]:
        vectors_MH, words_VH, gradient_MV = ctx.saved_tensors
        # In float32: rounding the upstream gradient to bfloat16 would change the weight of this
        # loss relative to the next-sentence loss by up to 0.4 %.
        kind, factors_M1 = vectors_MH.dtype, upstream.expand(len(vectors_MH), 1)
        return (
            (wide(gradient_MV @ words_VH) * upstream).to(kind),
            (gradient_MV.mT @ (wide(vectors_MH) * upstream).to(kind))[: ctx.vocabulary],
            # column sums, weighted by the upstream gradient
            (factors_M1.mT.to(kind) @ gradient_MV)[0, : ctx.vocabulary],
            None,
        )


class _NativeCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, vectors_MH: Tensor, words_VH: Tensor, bias_V: Tensor, labels_M: Tensor
    ) -> tuple[Tensor, Tensor]:
        # The kernel adds the bias while it searches the maxima, and leaves the gradient in the
        # logits' memory.
        logits_VM = product(words_VH, vectors_MH.mT)
        factors_M, loss, correct = native_softmax_gradient(logits_VM, bias_V, labels_M)
        ctx.save_for_backward(vectors_MH, words_VH, logits_VM, factors_M)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx: Context, upstream: Tensor, _: None) -> tuple[Tensor, Tensor, Tensor, None]:
        vectors_MH, words_VH, gradient_VM, factors_M = ctx.saved_tensors
        # Every column of `gradient_VM` lacks its factor; together with the upstream gradient it is
        # applied to [M, H].
        kind, factors_M1 = vectors_MH.dtype, (factors_M * upstream)[:, None]
        if words_VH.shape[1] < len(factors_M):  # the smaller of the two is transposed
            dvectors_MH = transposed_product(words_VH, gradient_VM).mT
        else:
            dvectors_MH = transposed_product(gradient_VM, words_VH)
        return (
            (wide(dvectors_MH) * factors_M1).to(kind),
            product(gradient_VM, (wide(vectors_MH) * factors_M1).to(kind)),
            (gradient_VM @ factors_M1.to(kind))[:, 0],
            None,
        )
