"""`cloze search`: the passages of a folder that best match a question; how often they are right.

In:  a model, a folder of documents, and questions; with --evaluate, questions with right answers;
     with --rerank, a second model, which reads the first passages with the question.
Out: for each question the best passages with file, line, score, and the ranking that found them;
     with --evaluate, how good the rankings are, and the questions for which the right passage is
     not among the first ten.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import tee
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cloze.answer import Answer, print_array, print_lines
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import on_one_line, say
from cloze.flows.report.units import plural
from cloze.flows.workspace import writable_workspace
from cloze.inference.collection import AUTOMATIC
from cloze.inference.input_texts import ModelName, Text, texts_or_lines
from cloze.inference.search_evaluation import evaluate_search
from cloze.inference.searcher import RERANKED, WORDS, FoundPassage, How, Search
from cloze.model.retrieval.fusion import RERANKER_WEIGHT, Ranking
from cloze.model.retrieval.questions import read_questions
from cloze.options import PLACE, Place, reading_artifacts

SHOWN_BY = {"vectors": "vectors", "lexical": "words"}


@Parameter(name="*")
@dataclass(frozen=True)
class Cut:
    """How documents are cut into passages."""

    words: int = WORDS
    """Approximate words per passage, which ends at a sentence boundary."""

    overlap: int = 0
    """Words at the end of a passage, in whole sentences, that the next one begins with."""


CUT = Cut()


@Parameter(name="*")
@dataclass(frozen=True)
class RankedBy:
    """How passages are ranked."""

    hybrid: bool = False
    """Rank by vectors and words together: the default."""

    vectors: bool = False
    """Rank by vectors alone."""

    lexical: bool = False
    """Rank by words alone (BM25)."""

    weight: float | None = None
    """Weight of the vectors in hybrid ranking, from 0 to 1; that of the words is the rest. By
    default 0.65, or less where by vectors the passages hardly stand out from each other."""

    language: str = AUTOMATIC
    """Language whose stemmer and stopwords apply to words: english, german, …; none; by default a
    guess."""

    index: bool = False
    """For millions of vectors: search a graph of them, built once, instead of comparing with all.
    How many of the nearest it finds is measured and logged. Needs the extra `index`."""

    rerank: str = ""
    """Model that reads the first passages together with the question, and whose scores count beside
    theirs: a run with a task of the kind `reranking`, or the folder of a cross-encoder."""

    depth: int = RERANKED
    """How many passages it reads for each question, at most: none that are far behind the first."""

    rerank_weight: float = RERANKER_WEIGHT
    """Share of its score that is added to the one by which a passage was found; --evaluate tries
    others."""

    feedback: float | None = None
    """Weight of likeness to the passage that comes first, by which the others of the first --depth
    move up: for questions that many passages answer. By default 0.3 with --rerank, else 0;
    --evaluate tries others."""

    def how(self, cut: Cut) -> How:
        """The same for the searcher."""
        given: list[Ranking] = [
            name for name in ("hybrid", "vectors", "lexical") if getattr(self, name)
        ]
        if len(given) > 1:
            raise UsageError(f"{' '.join(f'--{one}' for one in given)}: expected only one of these")
        ranking = given[0] if given else "hybrid"
        if self.index and ranking == "lexical":
            raise UsageError("--index --lexical: the graph is one of vectors; leave one out")
        if self.weight is not None and ranking != "hybrid":
            raise UsageError(
                f"--weight --{ranking}: a weight is for vectors and words together; leave one out"
            )
        if self.feedback and ranking != "hybrid":
            raise UsageError(
                f"--feedback --{ranking}: likeness is by vectors and words, as hybrid ranking is; "
                "leave one out"
            )
        if self.rerank and ranking != "hybrid":
            raise UsageError(
                f"--rerank --{ranking}: a reranker orders the passages that vectors and words have "
                "found together; leave one out"
            )
        return How(
            ranking=ranking,
            weight=self.weight,
            language=self.language,
            words=cut.words,
            overlap=cut.overlap,
            graph=self.index,
            rerank=self.rerank,
            depth=self.depth,
            rerank_weight=self.rerank_weight,
            feedback=self.feedback,
        )


RANKED_BY = RankedBy()

NOTHING_FOUND = "  nothing found: no passage has a word of it (stopwords apart)"
"""With `--lexical` alone: vectors always find something."""


@reading_artifacts
def search(
    model: ModelName,
    folder: str,
    /,
    *questions: Text,
    questions_file: Annotated[Path | None, Parameter(name="--evaluate")] = None,
    top_k: int = 5,
    cut: Cut = CUT,
    by: RankedBy = RANKED_BY,
    place: Place = PLACE,
) -> Answer | None:
    """Search a folder.

    :param folder: File, folder, glob or URL of the documents.
    :param top_k: Number of passages for each question.
    :param questions_file: CSV or JSON lines with columns `question` and at least one of `file`,
        `passage`, `answer`; or a folder in BEIR's layout. Report how good the rankings are.
    """
    how = by.how(cut)
    if how.graph:
        import_module("usearch.index")  # report a missing library early
    if top_k < 1:
        raise UsageError(f"--top-k {top_k}: expected at least 1")
    space, machine = writable_workspace(place.machine().workspace), place.training()
    if questions_file:
        if questions or how.graph:
            raise UsageError(
                "--evaluate ranks the whole collection for the questions of its file; leave out "
                "--index and other questions"
            )
        asked = read_questions(str(questions_file))
        ours = (str(questions_file),)
        searched = Search(model, folder, space=space, how=how, others=ours, machine=machine)
        found = evaluate_search(searched, asked)
        return Answer(found.data(), found.text(), place.json)
    searched = Search(model, folder, space=space, how=how, machine=machine)
    answers = _answers(searched, _filled(texts_or_lines(questions)), top_k=top_k)
    if place.json:
        print_array(
            {"question": question, "passages": [one._asdict() for one in passages]}
            for question, passages in answers
        )
        return None
    for question, passages in answers:
        found_lines = [line for one in passages for line in shown(one)]
        print_lines([question, *(found_lines or [NOTHING_FOUND])])
    return None


def _filled(questions: Iterator[str]) -> Iterator[str]:
    """Those that ask for anything; the number of the others is logged."""
    asked = blank = 0
    for question in questions:
        if question.strip():
            asked += 1
            yield question
        else:
            blank += 1
    if blank:
        say(f"search: {plural(blank, 'blank question')} left out")
    if not asked:
        say("search: nothing was asked: name questions, or give them on standard input")


def _answers(
    searched: Search, questions: Iterator[str], *, top_k: int
) -> Iterator[tuple[str, list[FoundPassage]]]:
    asked, repeated = tee(questions)
    return zip(repeated, searched.ask_all(asked, top_k=top_k), strict=False)


def shown(found: FoundPassage) -> list[str]:
    """A passage in two lines: score, place and what found it; its text."""
    file = on_one_line(found.file)
    where = f"{file}, line {found.line}" if found.line else file
    ranks = ", ".join(f"{SHOWN_BY[name]} {rank:,}" for name, rank in found.found_by.items())
    if found.reranked_from:
        ranks += f"; reranked from {found.reranked_from}"
    title = f"{found.title}: " if found.title else ""
    return [f"  {found.score:.3f}  {where}  ({ranks})", f"         {title}{found.text}"]
