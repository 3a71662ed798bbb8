"""Stage `vocabulary`: a WordPiece tokenizer, learnt from the corpus, or any taken as given.

In:  the corpus; or an existing vocab.txt or tokenizer.json.
Out: tokenizer.json, and of WordPiece vocab.txt.

    python -P -m pipeline.vocabulary --config TABLE.json [engine options]

It is learnt from a sample of the training documents, drawn by digest: the same documents whatever
the files are called and however they are cut, and never a held-out one.
"""

import os
from collections import Counter
from functools import partial

from artifacts import filesystem
from artifacts.config import parse
from artifacts.errors import UsageError
from artifacts.progress import Progress, say
from artifacts.runtime.program import run_program
from artifacts.stage import StageTable
from artifacts.store import WORK, Artifact, commit, put_bytes
from artifacts.tokenizer import WordPieceTokenizer, read_vocabulary
from pipeline.config.stage_tables import PipelineMachine, VocabularyStage
from pipeline.duplicates.drop_list import read_drop_list, with_drop_list
from pipeline.readers.input_shards import CorpusFiles, InputShard
from pipeline.runner.execution import run_graph
from pipeline.runner.graph import Collection, spread
from pipeline.runner.scratch import scratch_directory
from pipeline.runner.work_queue import WorkQueue
from pipeline.tokenizer.learning import (
    Sampling,
    candidate_bytes,
    count_words,
    draw_sample,
    learn_pieces,
    sample_limit,
    write_candidates,
)
from pipeline.tokenizer.pre_tokens import count_pre_tokens


def make_vocabulary(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage: take the given vocabulary, or draw the sample and learn from it."""
    stage = with_drop_list(parse(VocabularyStage, table.config, source="stage vocabulary"), table)
    config = stage.vocabulary
    if config.path:
        tokenizer = read_vocabulary(config.path, lowercase=config.lowercase)
        if not tokenizer.prepares_corpora:
            raise UsageError(
                f"{config.path}: strips accents, splits Chinese or has added tokens otherwise than "
                "BERT; a corpus is tokenised with vocab.txt and vocabulary.lowercase alone"
            )
    else:
        machine = parse(PipelineMachine, table.machine, source="stage vocabulary, machine")
        with scratch_directory(table.output) as scratch:
            paths = _sample(stage, machine, options=options, output=table.output, scratch=scratch)
            tokenizer = learn(paths, stage)
    return commit(
        table,
        [put_bytes(table.output, file, name=name) for name, file in tokenizer.files().items()],
        statistics={"tokenizer_digest": tokenizer.digest, "vocabulary_size": tokenizer.size},
    )


def candidates_graph(
    queue: WorkQueue, *, shards: list[InputShard], sampling: Sampling, directory: str
) -> Collection[int]:
    """The candidates of all shards are written; the shards' numbers of documents come out."""
    sample = partial(sample_shard, sampling=sampling, directory=directory, queue=queue)
    return spread(shards, queue).map("Sample", sample)


def sample_shard(shard: InputShard, *, sampling: Sampling, directory: str, queue: WorkQueue) -> int:
    """Write a shard's candidates into `directory`; returns its number of documents."""
    path = filesystem.join(directory, f"{shard.name}.arrow")
    documents = write_candidates(path, shard, sampling)
    queue.report(MB=shard.megabytes, documents=documents)
    return documents


def learn(paths: list[str], stage: VocabularyStage) -> WordPieceTokenizer:
    """The vocabulary learnt from the candidates at `paths`."""
    config = stage.vocabulary
    pre_tokens: Counter[bytes] = Counter()
    drop_list = read_drop_list(stage.cleaning.drop_list)
    for text in draw_sample(
        paths,
        wanted_bytes=config.sample_bytes,
        drop_list=drop_list,
        corpus=stage.corpus,
    ):
        pre_tokens.update(count_pre_tokens(text, lowercase=config.lowercase))
    if not pre_tokens:
        raise UsageError(
            "corpus: no training document to learn a vocabulary from; "
            "look at the paths, the readers and [cleaning]"
        )
    words = count_words(pre_tokens, lowercase=config.lowercase)
    say(f"vocabulary: learning {config.size:,} word-pieces from {len(words):,} distinct words")
    return WordPieceTokenizer(tuple(learn_pieces(words, size=config.size)), config.lowercase)


def _sample(
    stage: VocabularyStage,
    machine: PipelineMachine,
    *,
    options: list[str],
    output: str,
    scratch: str,
) -> list[str]:
    """Local paths of files of candidates that hold enough text, or all there is."""
    files = CorpusFiles(stage.corpus, output)
    shards = files.shards()
    wanted = stage.vocabulary.sample_bytes
    limit = sample_limit(wanted, sum(shard.size for shard in shards))
    local = machine.runner == "local" and filesystem.is_local(output)
    directory = scratch if local else filesystem.join(output, WORK)
    paths = [os.path.join(scratch, f"{shard.name}.arrow") for shard in shards]
    while True:
        sampling = Sampling(stage.corpus, stage.cleaning, stage.seed, limit)
        total = sum(shard.megabytes for shard in shards)
        run_graph(
            partial(candidates_graph, shards=shards, sampling=sampling, directory=directory),
            machine=machine,
            options=options,
            progress=Progress("vocabulary", total=total, unit="MB"),
            megabytes=total,
            output=output,
        )
        for path in paths if directory != scratch else ():
            filesystem.fetch_file(filesystem.join(directory, os.path.basename(path)), path)
        if limit >> 64 or candidate_bytes(paths) >= wanted:
            break
        limit = min(limit * 4, 1 << 64)
        say("vocabulary: the first sample was too small, drawing a larger one")
    files.require_unchanged()
    filesystem.remove(filesystem.join(output, WORK))
    return paths


if __name__ == "__main__":
    run_program(make_vocabulary)
