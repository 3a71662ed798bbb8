"""A folder's passages, loaded once and asked many questions.

In:  a model, a folder, and how to rank: by vectors, by words (BM25), or by both; on request a
     second model, which reads the first passages together with the question, and feedback: those
     like the first one move up.
Out: for each question the best passages, with their place, score, and rank by either.

    found = cloze.search("demo", "documents").ask("Who owns the garden?")
    found[0].file, found[0].line, found[0].text
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.artifacts import filesystem
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import say
from cloze.artifacts.runtime.arguments import checked
from cloze.flows.workspace import Workspace
from cloze.inference.collection import (
    AUTOMATIC,
    SearchedFolder,
    compact_vectors_of,
    graph_of,
    index_folder,
    index_words,
)
from cloze.model.config import TrainingMachine
from cloze.model.hugging_face.sentence_modules import QUERY
from cloze.model.inference.load import Model
from cloze.model.inference.ranks import ONE_PROCESS, load_over_ranks
from cloze.model.retrieval.fusion import (
    FEEDBACK_WEIGHT,
    RERANKER_WEIGHT,
    STANDING,
    WEIGHT,
    WITHIN,
    Ranking,
    best_rows,
    reranked,
    weight_of_vectors,
    with_feedback,
)
from cloze.model.retrieval.passage_index import (
    BATCH,
    PASSAGES,
    VECTORS,
    Passage,
    Vectors,
    open_vectors,
)
from cloze.model.retrieval.reranker import Reranker, load_reranker
from cloze.model.retrieval.scorer import PassageScores, Scorer
from cloze.named import model_directory, vectors_directory

MOST_QUESTIONS, MOST_SCORES = 64, 1 << 25
"""Questions answered together, and scores kept for them: 128 MB for each ranking."""

COMPACT_FROM = 100_000
"""Passages from which a single question first goes through int8 vectors; fewer are read as fast."""

WORDS = 100
"""Of a passage, about."""

RERANKED = 50
"""Passages that a reranker reads for each question, at most."""

# N passages, Q questions, H width, C candidates, D reranked ones


@dataclass(frozen=True)
class How:
    """How to search."""

    ranking: Ranking = "hybrid"
    """By vectors, by words (`lexical`), or by both."""
    weight: float | None = None
    """Weight of the vectors in `hybrid`; that of the words is the rest. None: `WEIGHT`, or less
    where by vectors the passages of the folder hardly stand out from each other."""
    language: str = AUTOMATIC
    """Whose stemmer and stopwords apply to words: one of Snowball's, `none`, or a guess."""
    words: int = WORDS
    """Words of a passage, about; it ends at the end of a sentence."""
    overlap: int = 0
    """Words at the end of a passage that the next one begins with, at most, on top of `words`."""
    graph: bool = False
    """Compare with a graph of the vectors instead of all, for millions of them."""
    rerank: str = ""
    """Model that reads the first passages together with the question, and whose scores count beside
    theirs: a run with a task `reranking`, its artifact, or a folder; empty: none."""
    depth: int = RERANKED
    """How many are the first."""
    rerank_weight: float = RERANKER_WEIGHT
    """Of the reranker's score, added to the one by which a passage was found."""
    feedback: float | None = None
    """Of the likeness of the first `depth` to the one that comes first, added to that sum; None:
    `FEEDBACK_WEIGHT` with a reranker, else 0."""

    @property
    def vectors_weight(self) -> float:
        """That of the vectors; the usual one before the folder is known."""
        return WEIGHT if self.weight is None else self.weight

    @property
    def feedback_weight(self) -> float:
        """That of likeness, as it applies."""
        usual = FEEDBACK_WEIGHT if self.rerank else 0.0
        return usual if self.feedback is None else self.feedback

    @property
    def reorders(self) -> bool:
        """Whether the first `depth` are ordered anew."""
        return bool(self.rerank or self.feedback_weight)

    def __post_init__(self) -> None:
        if self.rerank and self.ranking != "hybrid":
            raise UsageError(
                f"rerank with ranking {self.ranking}: a reranker orders the passages that vectors "
                "and words have found together; leave one of the two out"
            )
        if not 0 <= self.feedback_weight < math.inf:
            raise UsageError(f"feedback {self.feedback:g}: expected 0 or more")
        if self.feedback and self.ranking != "hybrid":
            raise UsageError(
                f"feedback with ranking {self.ranking}: likeness is by vectors and words, as "
                "hybrid ranking is; leave one of the two out"
            )
        if self.depth != RERANKED and not self.reorders:
            raise UsageError(f"depth {self.depth}: there is no reranker; name one with rerank")
        if not 0 <= self.rerank_weight < math.inf:
            raise UsageError(f"rerank_weight {self.rerank_weight:g}: expected 0 or more")
        if self.rerank_weight != RERANKER_WEIGHT and not self.rerank:
            raise UsageError(
                f"rerank_weight {self.rerank_weight:g}: there is no reranker; name one with rerank"
            )
        if self.depth < 1:
            raise UsageError(f"depth {self.depth}: expected at least 1 passage to rerank")
        if not 0 <= self.vectors_weight <= 1:
            raise UsageError(f"weight {self.weight:g}: expected a number from 0 to 1")
        if self.words < 1:
            raise UsageError(f"words {self.words}: expected at least 1 of each passage")
        if not 0 <= self.overlap < self.words:
            raise UsageError(
                f"overlap {self.overlap}: expected at least 0 and fewer than the {self.words} "
                "words of a passage"
            )


class FoundPassage(NamedTuple):
    """A passage found for a question."""

    score: float
    """By which it is ranked: the cosine, the BM25 score, or their sum in standard deviations, to
    which shares of a reranker's score and of likeness to the first passage are added."""
    file: str
    line: int | None
    text: str
    title: str
    found_by: dict[str, int]
    """Its rank by `vectors` and by `lexical`, as far as either ranked it."""
    reranked_from: int | None = None
    """Its rank before a reranker, or feedback, ordered the first passages anew; else None."""


class Ranked(NamedTuple):
    """The first passages for one question, best first."""

    places_D: npt.NDArray[np.int64]
    """Which of the passages that have scores."""
    scores_D: Vectors
    """By which they are in this order."""
    before_D: npt.NDArray[np.int64] | None = None
    """Their ranks before reranking."""

    def over(self, scores_C: Vectors) -> Vectors:
        """[C] scores of the whole ranking, in which these passages come first, in this order."""
        found_C = scores_C.copy()
        # Scores with a reranker's cannot be compared with those without, so only the order is kept:
        # whatever was reranked stands above whatever was not.
        found_C[self.places_D] = scores_C.max() + np.arange(len(self.places_D), 0, -1)
        return found_C


@dataclass(frozen=True)
class ReadPassages:
    """The first passages for one question, and what they are ordered by."""

    places_D: npt.NDArray[np.int64]
    """In the order in which they were found."""
    found_D: Vectors
    """The scores by which they were."""
    read_D: Vectors
    """Those of the reranker; of what it has not read, the least that any other got. 0 without."""
    like: Callable[[int], Vectors]
    """[D] the likeness of all of them to one, by its number among them."""

    def scores(self, weight: float, feedback: float) -> Vectors:
        """[D] the sum of these scores, with a weight for the second and the third."""
        scores_D = reranked(self.found_D, self.read_D, weight=weight)
        if not feedback:
            return scores_D
        like_D = self.like(int(scores_D.argmax()))
        return with_feedback(scores_D, like_D, weight=feedback)

    def ranked(self, weight: float, feedback: float) -> Ranked:
        """In the order of that sum."""
        scores_D = self.scores(weight, feedback)
        order_D = np.argsort(-scores_D, kind="stable")
        return Ranked(self.places_D[order_D], scores_D[order_D], order_D + 1)


class Search:
    """The passages of a folder, ready to be asked."""

    def __init__(
        self,
        model: str,
        folder: str,
        *,
        space: Workspace,
        how: How,
        others: Sequence[str] = (),
        machine: TrainingMachine = ONE_PROCESS,
    ) -> None:
        """Load the model and the indexes, which are made first if there are none.

        `others` are files in the folder that are no documents of it. The vectors of many passages
        are computed by the ranks of `machine`.
        """
        self._reranker: Reranker | None = None
        if how.rerank:  # first: what is no reranker should not cost an index
            self._reranker = load_reranker(model_directory(how.rerank, space, stage="finetune"))
        directory = vectors_directory(model, space)
        self._model = _loaded(model, directory, machine)
        searched = SearchedFolder(folder, how.words, how.overlap, others)
        self.index = index_folder(self._model, directory, searched, space=space)
        self.how = replace(how, weight=_weight(how, self.index.manifest.statistics["standing"]))
        matrix_NH = open_vectors(self.index.path(VECTORS))
        self._passages = pa.ipc.open_file(pa.memory_map(self.index.path(PASSAGES)))
        lexical = graph = compact = None
        if how.ranking != "vectors":
            lexical = index_words(self.index, language=how.language, space=space)
        if how.ranking != "lexical":
            graph = graph_of(self.index, space) if how.graph else None
            if not graph and len(matrix_NH) >= COMPACT_FROM:
                compact = compact_vectors_of(self.index, space)
        self._scorer = Scorer(matrix_NH, lexical, self.how.vectors_weight, graph, compact)

    def __len__(self) -> int:
        """The number of passages."""
        return len(self._scorer.matrix_NH)

    def passage(self, row: int) -> Passage:
        """One passage, its file relative to the working directory."""
        batch = self._passages.get_batch(row // BATCH)
        found = Passage(*(column[row % BATCH].as_py() for column in batch.columns))
        if filesystem.is_local(found.file):
            found = found._replace(file=os.path.relpath(found.file))
        return found

    @checked
    def ask(self, question: str, *, top_k: int = 5) -> list[FoundPassage]:
        """The best `top_k` passages for one question, best first."""
        return next(self.ask_all([question], top_k=top_k))

    @checked
    def ask_all(self, questions: Iterable[str], *, top_k: int = 5) -> Iterator[list[FoundPassage]]:
        """The same for a stream of questions."""
        if top_k < 1:
            raise UsageError(f"top_k {top_k}: expected at least 1 passage")
        if self.how.reorders and top_k > self.how.depth:
            raise UsageError(
                f"top_k {top_k}: only the first {self.how.depth} passages are reranked; raise depth"
            )
        for scores in self.scores(_asked(questions), top_k=top_k):
            yield self._found(scores, top_k)

    def scores(
        self, questions: Iterable[str], *, top_k: int | None = None
    ) -> Iterator[PassageScores]:
        """The scores of passages for each question.

        They are those of all passages, or if `top_k` are wanted, of some with the first `top_k`
        among them; by a graph most of these.
        """
        if self.how.reorders and top_k is not None:
            top_k = max(top_k, self.how.depth)
        stream = iter(questions)
        # Several questions share one pass over the vectors, which are read from disk or memory at
        # its speed; but a score for each question and passage has to fit into memory.
        together = max(1, min(MOST_QUESTIONS, MOST_SCORES // len(self)))
        while batch := list(islice(stream, together)):
            vectors_QH = None
            if self.how.ranking != "lexical":
                vectors_QH = np.stack([*self._model.sentence_vectors(batch, prompt=QUERY)])
            yield from self._scorer.scores(batch, vectors_QH, top_k=top_k)

    def ranked(self, scores: PassageScores, count: int) -> Ranked:
        """The first `count` passages; if the first `depth` are ordered anew, all of these."""
        if self.how.reorders:
            return self.read(scores).ranked(self.how.rerank_weight, self.how.feedback_weight)
        ranked_C = scores.ranked(self.how.vectors_weight)
        places_D = best_rows(ranked_C, count)
        return Ranked(places_D, ranked_C[places_D])

    def read(self, scores: PassageScores) -> ReadPassages:
        """The first passages, read by the reranker if there is one."""
        ranked_C = scores.ranked(self.how.vectors_weight)
        # It reads whole texts, which costs a thousand times a cosine: only the first `depth`.
        places_D = best_rows(ranked_C, self.how.depth)
        found_D = ranked_C[places_D]
        rows_D = places_D if scores.rows_C is None else scores.rows_C[places_D]

        # Whoever tries several weights asks for the same few first ones again.
        @cache
        def like(first: int) -> Vectors:
            row, spread = int(rows_D[first]), scores.spreads["vectors"]
            return self._scorer.like(row, self.passage(row).indexed, rows_D, spread=spread)

        if not self._reranker:
            return ReadPassages(places_D, found_D, np.zeros_like(found_D), like)
        # Nor what is far behind the first: it is hardly ever right, and most of `depth` is.
        near = int(np.count_nonzero(found_D >= found_D[0] - WITHIN))
        texts = [self.passage(row).indexed for row in rows_D[:near].tolist()]
        read = self._reranker.scores(scores.question, texts)
        # With the least score of all, the others stay behind these, in their order.
        read_D = np.concatenate([read, np.full(len(found_D) - near, read.min(), np.float32)])
        return ReadPassages(places_D, found_D, read_D, like)

    def _found(self, scores: PassageScores, top_k: int) -> list[FoundPassage]:
        ranked = self.ranked(scores, top_k)
        found = []
        for number, place in enumerate(ranked.places_D[:top_k].tolist()):
            ranks = {
                name: scores.rank(name, place)
                for name, one_C in scores.by.items()
                # BM25 ranks nothing that shares no word with the question; a rank among zeros would
                # be chance.
                if name == "vectors" or one_C[place] > 0
            }
            if ranks:
                row = place if scores.rows_C is None else int(scores.rows_C[place])
                before = None if ranked.before_D is None else int(ranked.before_D[number])
                score = float(ranked.scores_D[number])
                found.append(FoundPassage(score, *self.passage(row), ranks, before))
        return found


def _weight(how: How, standing: float | None) -> float:
    """The weight of the vectors, if it is not given by how far passages stand out by them."""
    if how.weight is not None or how.ranking != "hybrid" or standing is None:
        return how.vectors_weight
    if (weight := weight_of_vectors(standing)) < WEIGHT:
        say(
            f"search: vectors count {weight:g}, not {WEIGHT:g}: by them the middle of a passage is "
            f"only {standing:.1f} deviations nearer to it than to others ({STANDING:g} where an "
            "encoder knows the language and subject); --evaluate or --weight decides better"
        )
    return weight


def _asked(questions: Iterable[str]) -> Iterator[str]:
    """The questions; a blank one, to which every passage is as near, is refused."""
    for number, question in enumerate(questions, start=1):
        if not question.strip():
            raise UsageError(f"question {number} is blank; leave it out")
        yield question


def _loaded(name: str, directory: str, machine: TrainingMachine) -> Model:
    """The model, whose vectors can be compared by cosine."""
    # One precision on every machine: the key of an index does not contain it.
    model = load_over_ranks(directory, precision="fp32", machine=machine)
    if model.modules is None:
        say(f"{name} was not trained for retrieval (no modules.json): expect a rough ranking")
    elif model.modules.similarity != "cosine":
        raise UsageError(
            f"{name}: its vectors are to be compared by {model.modules.similarity}, and search "
            "compares by cosine; use `cloze embed` and rank yourself"
        )
    return model
