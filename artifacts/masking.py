"""The replacement of predicted tokens, for masks that are stored and for those drawn in training.

In:  the ids of the tokens to predict, with random bits for each.
Out: the ids that the encoder reads instead: mostly [MASK], sometimes another word-piece.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cloze.artifacts.arrays import Mask, UInt64s

Ids = npt.NDArray[np.integer]

# M predicted tokens


@dataclass(frozen=True)
class Replacement:
    """The paper's rule (section 3.1, A.1): [MASK], a random word-piece, or the token itself."""

    mask_id: int
    """Id of [MASK]."""

    vocabulary_size: int
    """Random word-pieces are drawn from [0, vocabulary_size)."""

    mask_share: float
    """Share replaced by [MASK] (paper: 0.8)."""

    random_share: float
    """Share replaced by a random word-piece (paper: 0.1); the rest stays."""

    def __call__(
        self, ids_M: Ids, fates_M: UInt64s, words_M: Ids | None = None, *, bits: int
    ) -> tuple[Ids, Mask, Mask]:
        """The new ids; which of them are [MASK], and which are random.

        fates_M: `bits` random bits each, which decide. words_M: random word-pieces; None: derived
        from the fates, which are uniform again within their share.
        """
        until_mask = round(self.mask_share * 2**bits)
        until_random = round((self.mask_share + self.random_share) * 2**bits)
        masked_M = fates_M < np.uint64(until_mask)
        random_M = ~masked_M & (fates_M < np.uint64(until_random))
        new_M = np.where(masked_M, ids_M.dtype.type(self.mask_id), ids_M)
        random = np.flatnonzero(random_M)
        if words_M is None:
            within = (fates_M[random] - np.uint64(until_mask)) * np.uint64(self.vocabulary_size)
            new_M[random] = within // np.uint64(max(until_random - until_mask, 1))
        else:
            new_M[random] = words_M[random]
        return new_M, masked_M, random_M
