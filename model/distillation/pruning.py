"""A student's vocabulary: the word-pieces of the texts it learns on, and no others.

In:  parameters, a WordPiece tokenizer, the ids that occur in the texts.
Out: the tokenizer with fewer pieces, and the parameters without the rows of the others. A text of
     kept pieces has the same tokens as before, since the longest piece wins and is among them; any
     other word is spelt with shorter pieces, down to single characters.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import SPECIAL_TOKENS, SubwordTokenizer, WordPieceTokenizer
from cloze.model.hugging_face.changed_vocabulary import OVER_VOCABULARY
from cloze.model.hugging_face.sentence_modules import SentenceModules
from cloze.model.hugging_face.term_vectors import TermVectors
from cloze.model.tasks.features import Places

CONTINUATION = "##"


def kept_pieces(tokenizer: SubwordTokenizer, used: NDArray[np.generic]) -> Places:
    """Ids of the pieces that stay, in their order: those `used`, special ones and characters."""
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise UsageError(
            "prune_vocabulary: the teacher's tokenizer is no WordPiece, and only such a vocabulary "
            "can be pruned; leave it out"
        )
    always = {*SPECIAL_TOKENS, *(word.text for word in tokenizer.added)}
    others = [
        number
        for number, piece in enumerate(tokenizer.vocabulary)
        if piece in always or len(piece.removeprefix(CONTINUATION)) == 1
    ]
    kept: Places = np.union1d(used.astype(np.int64), np.array(others, np.int64))
    return kept


def pruned_tokenizer(tokenizer: SubwordTokenizer, kept: Places) -> SubwordTokenizer:
    """The tokenizer with the pieces `kept`."""
    return replace(tokenizer, vocabulary=tuple(tokenizer.vocabulary[one] for one in kept))


def pruned_modules(modules: SentenceModules | None, kept: Places) -> SentenceModules | None:
    """The modules with the vectors of the terms `kept`, under their new ids."""
    if modules is None:
        return None
    rows = torch.from_numpy(kept)
    steps = (
        step.renumbered(rows) if isinstance(step, TermVectors) else step for step in modules.steps
    )
    # Without any term there is nothing to add.
    left = [one for one in steps if not isinstance(one, TermVectors) or len(one.ids_K)]
    return replace(modules, steps=tuple(left))


def pruned_parameters(parameters: Mapping[str, Tensor], kept: Places) -> dict[str, Tensor]:
    """The parameters with the rows `kept` of those over the vocabulary."""
    rows = torch.from_numpy(kept)
    return {
        name: value[rows] if name in OVER_VOCABULARY else value
        for name, value in parameters.items()
    }
