"""An encoder with another vocabulary: rows of the word embeddings, and of the MLM head's bias.

In:  an encoder, and a WordPiece tokenizer with more, fewer or other words than its own.
Out: the same encoder for that tokenizer. A token that both have keeps its row; one that is new gets
     the mean of the rows of the pieces that stood for it.
"""

from dataclasses import replace

import torch
from torch import Tensor

from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import SubwordTokenizer, WordPieceTokenizer
from cloze.model.hugging_face.model_files import ENCODER_PREFIX, WORD_EMBEDDINGS, EncoderFiles

OVER_VOCABULARY = (f"{ENCODER_PREFIX}{WORD_EMBEDDINGS}", "masked_lm.output_bias")
"""Our names of the parameters with a row for each token."""

# V tokens of a vocabulary


def with_vocabulary(files: EncoderFiles, tokenizer: SubwordTokenizer) -> EncoderFiles:
    """The encoder with the vocabulary of `tokenizer`, by the spelling of its tokens."""
    own = files.tokenizer
    if own.digest == tokenizer.digest:
        return files
    if not (isinstance(own, WordPieceTokenizer) and isinstance(tokenizer, WordPieceTokenizer)):
        raise UsageError(
            "an encoder's vocabulary can only be changed if it is WordPiece (BERT's), and so is "
            "the new one"
        )
    # By token of the new vocabulary: rows of the old one whose mean is its own.
    rows_V = [
        [own.ids[word]] if word in own.ids else [own.ids[piece] for piece in own.pieces(word)]
        for word in tokenizer.vocabulary
    ]
    changed = {
        name: _means(files.parameters[name], rows_V)
        for name in OVER_VOCABULARY
        if name in files.parameters
    }
    # It is no longer what its manifest and card describe.
    parameters = {**files.parameters, **changed}
    return replace(files, tokenizer=tokenizer, parameters=parameters, manifest=None)


def _means(values_V: Tensor, rows_V: list[list[int]]) -> Tensor:
    """The mean of some rows of `values_V` for each list of rows; one row alone stays as it is."""
    firsts = torch.tensor([rows[0] for rows in rows_V])
    result = values_V[firsts]
    for place, rows in enumerate(rows_V):
        if len(rows) > 1:
            result[place] = values_V[rows].mean(0)
    return result
