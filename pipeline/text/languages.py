"""The languages of documents, as pycld2 tells them (the extra `language`).

In:  a block of cleaned documents; ISO 639 codes.
Out: the languages of each document; the share of its text in given ones.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from cloze.artifacts.errors import UsageError
from cloze.pipeline.readers.documents import DocumentBlock

Shares = npt.NDArray[np.float64]

_CODES = {"iw": "he", "jw": "jv", "zh-Hant": "zh"}
"""Codes of CLD2 that are others today."""


def language_shares(block: DocumentBlock, languages: Sequence[str]) -> Shares:
    """The share of each document's text in one of the `languages`, (D,)."""
    wanted = set(languages)
    told = told_languages(block)
    return np.array(
        [sum(share for code, share in of if code in wanted) for of in told], dtype=np.float64
    )


def told_languages(block: DocumentBlock) -> list[list[tuple[str, float]]]:
    """The up to three languages of each document with their shares of its text, largest first.

    None for text of a few words. Raises `UsageError` without the extra `language`.
    """
    try:
        import pycld2
    except ImportError:
        raise UsageError(
            "cleaning.languages: pycld2, which tells languages, is not installed; install the "
            "extra `language`, or remove cleaning.languages"
        ) from None
    raw = block.text.tobytes()
    told: list[list[tuple[str, float]]] = []
    for start, end in pairwise([0, *block.ends.tolist()]):
        try:
            _, _, found = pycld2.detect(raw[start:end])
        except pycld2.error:  # it refuses characters that Unicode does not assign
            found = ()
        told.append(
            [(_CODES.get(code, code), share / 100) for _, code, share, _ in found if code != "un"]
        )
    return told
