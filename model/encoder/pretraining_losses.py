"""Losses of pre-training: their sums, and a masked-language-model loss with few passes.

In:  transformed vectors of the masked tokens [M, H], word embeddings [V, H], bias [V], labels [M].
Out: the loss summed over the M tokens, and how many of them are predicted correctly.

`masked_lm_loss` is the cross-entropy over the whole vocabulary; its logits are pre-training's
widest tensor.

Softmax is the gradient up to the labels, so it is computed once, in the dtype of the logits, and
kept; torch's own cross-entropy makes a float32 copy, its logarithm, and then the gradient. What a
row is divided by, and the upstream gradient, scale the [M, H] side of the products, never the
[M, V] one.

The released vocabulary of 30,522 is not a multiple of 8, and a GPU's tensor cores need rows at
multiples of 16 bytes. So on a GPU the products use a vocabulary padded to a multiple of 64 with
word-pieces whose bias is minus infinity: they get no probability and no gradient. Parameters,
checkpoints and artifacts keep their sizes.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from model.data.batch import NOT_ASKED
from model.encoder.operations.native_kernels import kernels_for
from model.encoder.operations.products import Context, affine, wide

# M masked tokens, V vocabulary, H width

VOCABULARY_MULTIPLE, NATIVE_VOCABULARY_MULTIPLE = 64, 256
"""The vocabulary is padded to the first on a GPU: rows of 128 bytes in bfloat16, what one read
fetches. With AMX, products with BERT's 30,522 columns have half the speed of those with 30,720."""


class PretrainingSums(NamedTuple):
    """Sums over one micro-batch; all are scalars on the model's device."""

    masked_lm_loss: Tensor
    """float32: cross-entropy in nats, summed over the M masked tokens."""

    next_sentence_loss: Tensor
    """float32: cross-entropy in nats, summed over the sequences that have a label."""

    masked_lm_correct: Tensor
    """int64: masked tokens whose most likely word-piece is the label."""

    next_sentence_correct: Tensor
    """int64: sequences whose more likely class is the label."""

    def loss(self, masked: float | Tensor, labelled: float | Tensor) -> Tensor:
        """The training objective: both sums divided by their counts; infinity leaves a loss out.

        The parameters of that loss then get zero gradients: ranks would wait for missing ones.
        """
        return self.masked_lm_loss / masked + self.next_sentence_loss / labelled


class Prediction(NamedTuple):
    """Sums over the masked tokens."""

    loss: Tensor
    """float32: nats."""

    correct: Tensor
    """int64: tokens whose most likely word-piece is the label."""


def masked_lm_loss(
    vectors_MH: Tensor, words_VH: Tensor, bias_V: Tensor, labels_M: Tensor
) -> Prediction:
    """Summed loss and number of correct predictions."""
    loss, correct = _SummedCrossEntropy.apply(vectors_MH, words_VH, bias_V, labels_M)  # type: ignore[no-untyped-call]  # torch has no types here
    return Prediction(loss, correct)


@torch.no_grad()
def hits(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """How many rows have their largest logit at the label; the first of equal ones counts.

    On a CPU, max is ten times as fast as argmax, so argmax is computed only for the rows where the
    label's logit is the maximum.
    """
    if logits_NC.device.type == "cpu" and len(labels_N):
        at_label_N = logits_NC.gather(1, labels_N.clamp_min(0)[:, None]).squeeze(1)
        candidates = (at_label_N == logits_NC.amax(-1)).nonzero().squeeze(1)
        logits_NC, labels_N = logits_NC[candidates], labels_N[candidates]
    return (logits_NC.argmax(-1) == labels_N).sum()


def softmax_gradient(
    logits_MV: Tensor, labels_M: Tensor, *, vocabulary: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradient of the summed loss with respect to the logits, which are overwritten; loss; hits.

    The gradient comes as a matrix and factors of its rows, float32 [M]. Rows labelled `NOT_ASKED`
    contribute to neither, nor do columns from `vocabulary` on.

    Without the native kernels a token's loss carries the rounding of its bfloat16 probability:
    0.002 nats, unbiased, a tenth of what the rounding of its logits is worth.
    """
    native = kernels_for(logits_MV)
    if native is not None:
        factors_M, losses_M = torch.empty(2, len(labels_M))
        hits_M = torch.empty(len(labels_M), dtype=torch.bool)
        sizes = (len(labels_M), vocabulary, logits_MV.shape[1])
        native("cross_entropy", *sizes, logits_MV, labels_M, factors_M, losses_M, hits_M)
        return logits_MV, factors_M, losses_M.sum(), hits_M.sum()
    correct = hits(logits_MV, labels_M)
    gradient_MV = logits_MV.softmax(-1)
    asked_M = labels_M != NOT_ASKED
    rows_M = torch.arange(len(labels_M), device=labels_M.device)
    places_M = rows_M * logits_MV.shape[1] + labels_M.clamp_min(0)
    probabilities_M = gradient_MV.view(-1)[places_M]
    losses_M = -wide(probabilities_M).clamp_min(torch.finfo(logits_MV.dtype).tiny).log()
    gradient_MV.view(-1)[places_M] = probabilities_M - 1.0
    gradient_MV.masked_fill_(~asked_M[:, None], 0.0)
    loss = torch.where(asked_M, losses_M, 0.0).sum()
    return gradient_MV, torch.ones_like(losses_M), loss, correct


class _Context(Context):
    vocabulary: int


class _SummedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, vectors_MH: Tensor, words_VH: Tensor, bias_V: Tensor, labels_M: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.vocabulary = len(bias_V)
        native = kernels_for(vectors_MH) is not None
        multiple = NATIVE_VOCABULARY_MULTIPLE if native else VOCABULARY_MULTIPLE
        missing = -len(bias_V) % multiple
        if missing and (native or bias_V.device.type != "cpu"):
            words_VH = functional.pad(words_VH, (0, 0, 0, missing))
            bias_V = functional.pad(bias_V, (0, missing), value=-torch.inf)
        logits_MV = affine(vectors_MH, words_VH, bias_V)
        gradient_MV, factors_M, loss, correct = softmax_gradient(
            logits_MV, labels_M, vocabulary=ctx.vocabulary
        )
        ctx.save_for_backward(vectors_MH, words_VH, gradient_MV, factors_M)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx: _Context, upstream: Tensor, _: None) -> tuple[Tensor, Tensor, Tensor, None]:
        vectors_MH, words_VH, gradient_MV, factors_M = ctx.saved_tensors
        # In float32: rounded to bfloat16 the upstream gradient would weigh this loss up to 0.4 %
        # wrong against the next-sentence one.
        factors_M1 = (factors_M * upstream)[:, None]
        kind = vectors_MH.dtype
        return (
            (wide(gradient_MV @ words_VH) * factors_M1).to(kind),
            (gradient_MV.mT @ (wide(vectors_MH) * factors_M1).to(kind))[: ctx.vocabulary],
            (factors_M1.mT.to(kind) @ gradient_MV)[0, : ctx.vocabulary],
            None,
        )
