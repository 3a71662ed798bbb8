"""A fine-tuned model as a judge of documents, for the stage `scores`.

In:  a saved classifier or regression of single texts; a text.
Out: its score: the probability of a label, or the number predicted; and how many of its words the
     tokenizer knows.

Texts are computed one at a time, by one thread of a CPU: a score is the same whatever the other
documents are, and however many workers there are.
"""

from collections.abc import Callable

import torch

from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.inference.predict import load_predictor
from cloze.model.tasks.problems import family_of

GOOD = "1"
"""The label of good text, unless another one is named."""

MOST_PIECES = 2
"""Of a word that the tokenizer knows: most words of its language have no more."""

LOOKED_UP = 200
"""Words at the beginning of a text that are looked up."""

Scored = tuple[float, int, int]
"""A score, words of the text, and how many of these the model knows."""


def open_scorer(location: str, task: str, label: str) -> Callable[[str], Scored]:
    """What scores a text by the model at `location`; raises `UsageError` for one that cannot."""
    # Workers are as many as cores already.
    torch.set_num_threads(1)
    predictor = load_predictor(location, task=task, device="cpu", precision="fp32")
    saved = predictor.saved.task
    where = f"quality.model = {location}: its task {saved.name}"
    family = family_of(saved.kind)
    if family.predicts not in ("label", "number") or family.required != ("text_a",):
        raise UsageError(
            f"{where} is {saved.kind}, which does not judge single texts; expected a model of the "
            "kind classification or regression, or quality.judged to make one of judged documents"
        )
    wanted = label or GOOD
    if family.predicts == "label" and wanted not in saved.labels:
        raise UsageError(
            f"{where} has no label {wanted!r}; it has {', '.join(saved.labels)}: set quality.label "
            "to that of good text"
        )
    if family.predicts == "number" and label:
        raise UsageError(f"{where} predicts numbers; remove quality.label")

    def score(text: str) -> Scored:
        (row,) = predictor.predict([text])
        # A probability rather than the label: only a number can be compared with a threshold.
        shares = row.get("probabilities")
        found = shares[wanted] if isinstance(shares, dict) else row["prediction"]
        assert isinstance(found, int | float)
        return float(found), *_known(text, predictor.tokenizer)

    return score


def _known(text: str, tokenizer: SubwordTokenizer) -> tuple[int, int]:
    # In how many pieces a word falls tells whether the model has seen its language.
    words = text.split(maxsplit=LOOKED_UP)[:LOOKED_UP]
    pieces = tokenizer.encode_all(words)
    is_known = [len(ids) <= MOST_PIECES and tokenizer.unk_id not in ids for ids in pieces]
    return len(words), sum(is_known)
