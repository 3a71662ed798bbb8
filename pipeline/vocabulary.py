"""Stage `vocabulary`: a WordPiece tokenizer, learnt from the corpus or taken as given.

In:  the corpus; or an existing vocab.txt or tokenizer.json.
Out: tokenizer.json, vocab.txt.

    python -P -m pipeline.vocabulary --config TABLE.json [engine options]

It is learnt from a sample of the training documents, drawn by digest: the same documents whatever
the files are called and however they are cut, and never a held-out one.
"""

import os
from collections import Counter
from collections.abc import Iterator
from functools import partial

from artifacts import filesystem
from artifacts.config import parse
from artifacts.errors import UsageError
from artifacts.program import run_program
from artifacts.progress import Progress, say
from artifacts.stage import StageTable
from artifacts.store import Artifact, commit, put_bytes
from artifacts.tokenizer import WordPieceTokenizer, read_vocabulary
from pipeline.config import PipelineMachine, VocabularyStage
from pipeline.duplicates.drop_list import read_drop_list, with_drop_list
from pipeline.runner.beam import Map, PCollection, Pipeline
from pipeline.runner.graph import run_graph, spread
from pipeline.runner.scratch import attempt_directory
from pipeline.runner.work_queue import Crew
from pipeline.shuffle.input_shards import MEGABYTE, Portion, portions
from pipeline.tokenizer.learning import count_words, learn_pieces
from pipeline.tokenizer.pre_tokens import count_chunks
from pipeline.tokenizer.sampling import (
    Sampling,
    candidate_bytes,
    draw_sample,
    sample_limit,
    write_candidates,
)


def make_vocabulary(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage: take the given vocabulary, or draw the sample and learn from it."""
    stage = with_drop_list(parse(VocabularyStage, table.config, source="stage vocabulary"), table)
    if stage.vocabulary.path:
        tokenizer = _given(stage)
    else:
        machine = parse(PipelineMachine, table.machine, source="stage vocabulary, machine")
        tokenizer = _learnt(stage, machine, options=options, output=table.output)
    files = {"tokenizer.json": tokenizer.tokenizer_json(), "vocab.txt": tokenizer.vocab_txt()}
    return commit(
        table,
        [put_bytes(table.output, text.encode(), name=name) for name, text in files.items()],
        statistics={"tokenizer_digest": tokenizer.digest, "vocabulary_size": tokenizer.size},
    )


def candidates_graph(
    pipeline: Pipeline, crew: Crew, *, work: list[Portion], sampling: Sampling, directory: str
) -> PCollection[int]:
    """The candidates of all portions are written; the portions' numbers of documents come out."""
    sample = Map(_sample_portion, sampling=sampling, directory=directory, crew=crew)
    counts: PCollection[int] = spread(pipeline, work, crew) | "Sample" >> sample
    return counts


def _sample_portion(portion: Portion, *, sampling: Sampling, directory: str, crew: Crew) -> int:
    path = filesystem.join(directory, _candidates_name(portion))
    documents = write_candidates(path, portion, sampling)
    crew.report(MB=portion.size / MEGABYTE, documents=documents)
    return documents


def _candidates_name(portion: Portion) -> str:
    return f"{portion.name}.arrow"


def _given(stage: VocabularyStage) -> WordPieceTokenizer:
    return read_vocabulary(stage.vocabulary.path, lowercase=stage.vocabulary.lowercase)


def _learnt(
    stage: VocabularyStage, machine: PipelineMachine, *, options: list[str], output: str
) -> WordPieceTokenizer:
    work = portions(stage.corpus)
    wanted = stage.vocabulary.sample_bytes
    limit = sample_limit(wanted, sum(portion.size for portion in work))
    with attempt_directory(output) as scratch:
        local = machine.runner == "local" and filesystem.is_local(output)
        directory = scratch if local else filesystem.join(output, "work")
        while True:
            sampling = Sampling(stage.corpus, stage.cleaning, stage.seed, limit)
            run_graph(
                partial(candidates_graph, work=work, sampling=sampling, directory=directory),
                machine=machine,
                options=options,
                progress=_progress(work),
            )
            paths = list(_brought_here(work, directory, scratch))
            if limit >> 64 or candidate_bytes(paths) >= wanted:
                break
            limit = min(limit * 4, 1 << 64)
            say("vocabulary: the first sample was too small, drawing a larger one")
        tokenizer = _learn(paths, stage)
    if not local:
        filesystem.remove(directory)
    return tokenizer


def _brought_here(work: list[Portion], directory: str, scratch: str) -> Iterator[str]:
    """Local paths of all candidates' files."""
    for portion in work:
        path = os.path.join(scratch, _candidates_name(portion))
        if directory != scratch:
            filesystem.fetch_file(filesystem.join(directory, _candidates_name(portion)), path)
        yield path


def _progress(work: list[Portion]) -> Progress:
    total = sum(portion.size for portion in work) / MEGABYTE
    return Progress("vocabulary", total=total, unit="MB")


def _learn(paths: list[str], stage: VocabularyStage) -> WordPieceTokenizer:
    """The vocabulary learnt from the candidates at `paths`."""
    config = stage.vocabulary
    chunks: Counter[bytes] = Counter()
    drop_list = read_drop_list(stage.cleaning.drop_list)
    for text in draw_sample(paths, wanted_bytes=config.sample_bytes, drop_list=drop_list):
        chunks.update(count_chunks(text, lowercase=config.lowercase))
    if not chunks:
        raise UsageError(
            "corpus: no training document to learn a vocabulary from; "
            "look at the paths, the readers and [cleaning]"
        )
    words = count_words(chunks, lowercase=config.lowercase)
    say(f"vocabulary: learning {config.size:,} word-pieces from {len(words):,} distinct words")
    return WordPieceTokenizer(tuple(learn_pieces(words, size=config.size)), config.lowercase)


if __name__ == "__main__":
    run_program(make_vocabulary)
