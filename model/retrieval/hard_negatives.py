"""Stage negatives: passages that rank high for a query and are not relevant to it.

In:  an encoder; tasks whose rows are queries with their passages (`retrieval`, `reranking`).
Out: TASK/SPLIT.jsonl, the rows of each split with a list `negatives`: those of the file, then those
     mined among the passages of the split, hardest first.

The best passages by vectors and by words are taken in turn. What is nearly as close to the query as
its own passage is often an unlabelled answer, which would teach the opposite: passages within a
margin of its cosine are left out (Moreira et al. 2024), and so is every passage that is relevant to
the query in any row. Dev and test rows only get negatives where candidates come from the row
itself, as in reranking.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import JsonValue

from cloze.artifacts.config import parse
from cloze.artifacts.progress import Progress, say
from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, commit, open_artifact, put_bytes, scratch_directory
from cloze.model.config import NegativesConfig, NegativesStage, TrainingMachine
from cloze.model.hugging_face.sentence_modules import DOCUMENT, QUERY
from cloze.model.inference.load import Model, model_of, read_sentence_encoder
from cloze.model.retrieval.fusion import best_rows
from cloze.model.retrieval.lexical_index import FILES, LexicalIndex, write_lexical_index
from cloze.model.retrieval.passage_index import Vectors, cosines
from cloze.model.tasks.files.judgments import GRADE
from cloze.model.tasks.files.task_table import TaskTable
from cloze.model.tasks.problems import load_tables
from cloze.model.tasks.ranking import RankingTexts
from cloze.model.training.distributed import start_world
from cloze.model.training.start import restart_prepared, threads_per_rank
from cloze.model.training.waiting import patient_threads

QUERIES_AT_ONCE = 256

# Q queries, P passages of the split, H width


class Mined(NamedTuple):
    """The negatives of one row."""

    passages: list[int]
    """By number, hardest first."""
    close: int
    """How many others were within the margin."""


def make_negatives(table: StageTable, engine_options: list[str]) -> Artifact:
    """Run the stage."""
    config = parse(NegativesStage, table.config, source="stage table")
    machine = parse(TrainingMachine, table.machine, source="stage table, machine")
    labels = open_artifact(table.input_path("labels")) if "labels" in table.inputs else None
    loaded = [(task, load_tables(task, labels)) for task in config.tasks]
    threads = threads_per_rank(machine)
    world = start_world(machine, threads=threads)
    with patient_threads(threads):
        # One precision, so that the negatives are the same on every machine.
        encoder = read_sentence_encoder(table.input_path("encoder"))
        model = model_of(encoder, device=str(world.device), precision="fp32")
        files, statistics = [], {"rows": 0, "negatives": 0, "close": 0}
        for task, tables in loaded:
            for split, rows in tables.items():
                texts = RankingTexts(rows)
                # Retrieval is judged by ranking all passages, so only its training rows need
                # negatives; a reranker orders a list, and has to be given one on dev and test as
                # well.
                mined: Sequence[Mined] = [Mined([], 0)] * len(rows)
                if split == "train" or task.family.reranks:
                    mined = _mined(texts, model, config.negatives, output=table.output)
                    statistics["rows"] += len(mined)
                    statistics["negatives"] += sum(len(one.passages) for one in mined)
                    statistics["close"] += sum(one.close for one in mined)
                lines = _lines(rows, texts, mined)
                content = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines)
                name = f"{task.name}/{split}.jsonl"
                files.append(put_bytes(table.output, content.encode(), name=name))
    say(
        f"negatives: {statistics['negatives']:,} for {statistics['rows']:,} rows; "
        f"{statistics['close']:,} left out as perhaps relevant"
    )
    # What reading the files has left out, which fine-tuning reports.
    remarks = {
        task.name: {split: list(rows.remarks) for split, rows in tables.items()}
        for task, tables in loaded
    }
    return commit(table, files, statistics={**statistics, "remarks": remarks})


def _mined(
    texts: RankingTexts, model: Model, config: NegativesConfig, *, output: str
) -> list[Mined]:
    """The negatives of every row of a split."""
    queries, passages = texts.queries, texts.passages
    progress = Progress("negatives", len(queries) + len(passages), unit="texts")

    def vectors(listed: list[str], prompt: str) -> Vectors:
        found = []
        for vector in model.sentence_vectors(listed, prompt=prompt):
            found.append(vector)
            progress.advance(1)
        return np.stack(found)

    queries_QH, passages_PH = vectors(queries, QUERY), vectors(passages, DOCUMENT)
    if "lexical" not in config.by:
        return [*hard_negatives(texts, queries_QH, passages_PH, None, config)]
    with scratch_directory(output) as scratch:
        write_lexical_index(Path(scratch), passages, language=config.language)
        paths = {name: f"{scratch}/{name}" for name in FILES}
        lexical = LexicalIndex(paths, language=config.language)
        return [*hard_negatives(texts, queries_QH, passages_PH, lexical, config)]


def hard_negatives(
    texts: RankingTexts,
    queries_QH: Vectors,
    passages_PH: Vectors,
    lexical: LexicalIndex | None,
    config: NegativesConfig,
) -> Iterator[Mined]:
    """The negatives of each row.

    queries_QH, passages_PH: vectors of length 1 of `texts.queries` and `texts.passages`.
    lexical: BM25 over these passages, if words are one of the rankings.
    """
    numbers = {text: number for number, text in enumerate(texts.passages)}
    query_of = {text: number for number, text in enumerate(texts.queries)}
    # The rows of a query are mined together, and come back in the order of the file.
    rows = [(query_of[line[0]], numbers[line[1]]) for line in texts.lines]
    wanted: dict[int, set[int]] = {}
    for query, own in rows:
        wanted.setdefault(query, set()).add(own)
    found: dict[tuple[int, int], Mined] = {}
    for start in range(0, len(queries_QH), QUERIES_AT_ONCE):
        block_QP = cosines(passages_PH, queries_QH[start : start + QUERIES_AT_ONCE])
        for query, cosines_P in enumerate(block_QP, start=start):
            rankings_P = {"vectors": cosines_P}
            if lexical is not None:
                rankings_P["lexical"] = lexical.scores(texts.queries[query])
            for own in wanted[query]:
                chosen = [rankings_P[name] for name in config.by]
                found[query, own] = _of_row(cosines_P, chosen, own, texts.relevant[query], config)
    return (found[row] for row in rows)


def _of_row(
    cosines_P: Vectors,
    rankings_P: Sequence[Vectors],
    own: int,
    relevant: Mapping[int, float],
    config: NegativesConfig,
) -> Mined:
    """The best of each ranking in turn, among what is clearly less close than the row's own."""
    # A passage nearly as close as the row's own is perhaps right, too, and only not labelled so:
    # learning that it is wrong would do harm. The margin is relative, since encoders use different
    # parts of the scale of cosines; it is by vectors even where words rank.
    nearness = float(cosines_P[own])
    allowed_P: npt.NDArray[np.bool_] = cosines_P < nearness - config.margin * abs(nearness)
    # Of those within the margin, all that are known to be relevant belong there: they are no doubt.
    close = int(np.count_nonzero(~allowed_P)) - sum(not allowed_P[one] for one in relevant)
    allowed_P[[*relevant]] = False
    orders = []
    for scores_P in rankings_P:
        # What has no word in common with the query is no hard negative by words.
        is_ranked_P = allowed_P if scores_P is cosines_P else allowed_P & (scores_P > 0)
        order = best_rows(np.where(is_ranked_P, scores_P, -np.inf), config.count)
        orders.append([number for number in order.tolist() if is_ranked_P[number]])
    # The best by vectors, the best by words, the second best by vectors, …: both kinds of mistakes,
    # however differently the two score.
    in_turn = (number for numbers in zip_longest(*orders) for number in numbers)
    chosen = dict.fromkeys(number for number in in_turn if number is not None)
    return Mined([*chosen][: config.count], close)


def _lines(
    rows: TaskTable, texts: RankingTexts, mined: Sequence[Mined]
) -> Iterator[dict[str, JsonValue]]:
    """The rows of a split with their negatives."""
    others = {name: rows.columns[name] for name in ("document", GRADE) if rows.has(name)}
    for row, (line, one) in enumerate(zip(texts.lines, mined, strict=True)):
        query, passage, *own = line
        negatives = dict.fromkeys(chain(own, (texts.passages[number] for number in one.passages)))
        kept = {name: cells[row] for name, cells in others.items()}
        yield {"query": query, "passage": passage, "negatives": [*negatives], **kept}


if __name__ == "__main__":
    restart_prepared()
    run_program(make_negatives)
