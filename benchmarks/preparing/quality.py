"""How well scores of quality tell good text from junk, and how fast they are made.

    python benchmarks/preparing/quality.py --documents labelled.jsonl --labelled labelled.jsonl \
        --good good.jsonl

In:  JSON lines with `text`, `label` (1 is good) and `kind`; others of these, to make a
     model of; good text that is in neither.
Out: for the model of labelled documents and for the likelihood ratio: the area under the ROC curve
     over all documents, and of each kind of junk against all good ones; seconds of processor time
     of the stage, in one process.

The documents of the results are, in equal parts, good text (articles of Wikipedia, passages of
novels) and junk: stubs and lists of Wikipedia, lists of links of public repositories, navigation of
HTML documentation, logs of programs, and text in other languages.
"""

import json
import sys
import tempfile
import time
from itertools import accumulate
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.corpus import corpus_of
from benchmarks.measuring import Arguments, Figures, machine, write_result
from cloze.artifacts.stage import StageTable
from cloze.pipeline.config.settings import (
    CleaningConfig,
    QualityConfig,
    ScoresStage,
    SourceConfig,
)
from cloze.pipeline.quality.linear import area_under_curve
from cloze.pipeline.readers.input_shards import input_shards
from cloze.pipeline.readers.score_table import read_scores
from cloze.pipeline.scores import make_scores
from cloze.pipeline.text.filters import Reason
from cloze.pipeline.text.texts import read_texts


def measured(quality: QualityConfig, path: str, rows: dict[int, Figures]) -> Figures:
    """The separation and the seconds of one way to score; `rows` by their offset in the file."""
    corpus = corpus_of(path, reader="jsonl")
    stage = ScoresStage(seed=0, corpus=corpus, cleaning=CleaningConfig(), quality=quality)
    with tempfile.TemporaryDirectory() as folder:
        table = StageTable(
            stage="scores",
            format_version=1,
            config=stage.model_dump(mode="json"),
            output=f"{folder}/scores",
            machine={"worker_mode": "inline"},
        )
        started = time.process_time()
        artifact = make_scores(table, [])
        seconds = time.process_time() - started
        scores, places = [], []
        for shard in input_shards(corpus):
            for block in read_texts(shard, corpus=corpus, cleaning=CleaningConfig()):
                kept = block.reasons_D == Reason.KEPT
                found, _ = read_scores(artifact.directory).find(block.digests[kept])
                scores.append(found)
                # Offsets identify a document in its file: labels are looked up by them.
                places.append(block.positions_D[kept])
        known = artifact.manifest.statistics["sources"]["0"]["known_words"]
    scores_D = np.concatenate(scores).astype(float)
    labelled = [rows[place] for place in np.concatenate(places).tolist()]
    is_good = np.array([row["label"] == 1 for row in labelled])
    kinds = np.array([row["kind"] for row in labelled])
    size = Path(path).stat().st_size / 1e6
    return {
        "auc": round(area_under_curve(scores_D, is_good), 4),
        "auc_by_kind": {
            kind: round(area_under_curve(scores_D[which], is_good[which]), 4)
            for kind in sorted(set(kinds[~is_good].tolist()))
            # Good documents against one kind of bad ones at a time.
            if (which := is_good | (kinds == kind)).any()
        },
        "known_words": known,
        "seconds": round(seconds, 2),
        "mb_per_second": round(size / seconds, 2),
    }


def main() -> None:
    """Score the documents in both ways, and write the result."""
    parser = Arguments(__doc__, output="quality.json", documents=str, labelled=str)
    parser.add_options(good="")
    arguments = parser.parse_args()
    with open(arguments.documents, "rb") as file:
        lines = list(file)
    offsets = accumulate(map(len, lines), initial=0)
    rows = {offset: json.loads(line) for offset, line in zip(offsets, lines, strict=False)}
    kinds = [row["kind"] for row in rows.values()]
    with open(arguments.labelled, encoding="utf-8") as file:
        count = sum(1 for _ in file)
    ways = {"labelled": QualityConfig(labelled=arguments.labelled)}
    if arguments.good:
        good = SourceConfig(reader="jsonl", path=arguments.good)
        ways["good"] = QualityConfig(good=(good,))
    result: Figures = {
        "machine": machine(),
        "documents": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "labelled_documents": count,
        **{name: measured(quality, arguments.documents, rows) for name, quality in ways.items()},
    }
    write_result(arguments.output, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
