"""Stage `tokens`: the corpus as token ids, each document once, shuffled into buckets.

In:  the corpus; a vocabulary artifact.
Out: `{split}-{bucket}.arrow` (artifacts/tables.py), tokenizer.json, vocab.txt, token_counts.json;
     as a record, the list of dropped documents.

    python -P -m pipeline.tokens --config TABLE.json [engine options]

One job in two halves: portions of the corpus become runs sorted by digest; ranges of digests, taken
from all runs, become buckets. What an interrupted attempt has finished of either is kept.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from artifacts import filesystem
from artifacts.config import parse
from artifacts.errors import IntegrityError, UsageError
from artifacts.manifest import FileEntry
from artifacts.program import run_program
from artifacts.progress import Progress, say
from artifacts.stage import StageTable
from artifacts.store import (
    FINISHED,
    Artifact,
    all_finished,
    commit,
    finished_files,
    open_artifact,
    put_bytes,
    put_json,
)
from pipeline.config import PipelineMachine, TokensStage
from pipeline.duplicates.drop_list import with_drop_list
from pipeline.runner.beam import Map, PCollection, Pipeline
from pipeline.runner.graph import Build, gather, run_graph, share_out, spread
from pipeline.runner.work_queue import Crew
from pipeline.shuffle.backend import Exchange
from pipeline.shuffle.beam_group_by_key import RunnerShuffle, partition_bits
from pipeline.shuffle.bucketing import BucketGroup, bucket_groups, write_group
from pipeline.shuffle.input_shards import MEGABYTE, Portion, portions
from pipeline.shuffle.local_spill import SpillFiles
from pipeline.shuffle.sorted_runs import RunCounts
from pipeline.shuffle.splits import TRAIN
from pipeline.shuffle.token_statistics import Statistics, statistics_of_entry, summary
from pipeline.shuffle.tokenise import WORK, Job, read_tokenizer
from pipeline.text.dropped import put_dropped

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt")


def make_tokens(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage: what is finished is kept, the rest is made, the manifest is written."""
    stage = with_drop_list(parse(TokensStage, table.config, source="stage tokens"), table)
    machine = parse(PipelineMachine, table.machine, source="stage tokens, machine")
    work = portions(stage.corpus)
    job = _job(table, stage)
    exchange = choose_exchange(work, job=job, machine=machine)
    graph, progress = _what_is_missing(work, exchange, job)
    run_graph(graph, machine=machine, options=options, progress=progress)
    groups = bucket_groups(exchange, job)
    if not groups:
        raise UsageError(_nothing_left(exchange.counts()))
    artifact = _commit(table, work=work, groups=groups, exchange=exchange, job=job)
    for leftover in (WORK, f"{FINISHED}/{WORK}"):
        filesystem.remove(filesystem.join(table.output, leftover))
    return artifact


def choose_exchange(work: Sequence[Portion], *, job: Job, machine: PipelineMachine) -> Exchange:
    """Spill files where all workers share this machine's disk, the runner's shuffle elsewhere."""
    if machine.runner == "local" and job.scratch:
        return SpillFiles(job, job.scratch, tuple(portion.name for portion in work))
    bits = partition_bits(sum(portion.size for portion in work))
    return RunnerShuffle(job, filesystem.join(job.output, WORK), bits)


def tokens_graph(
    pipeline: Pipeline, crew: Crew, *, work: list[Portion], exchange: Exchange, job: Job
) -> PCollection[str]:
    """Portions become runs, and all runs buckets; the names of the groups' counts come out."""
    runs = gather(exchange.graph(pipeline, work, crew), label="Runs")
    groups = runs | "Groups" >> Map(_groups_of_runs, exchange=exchange, job=job)
    return _written(share_out(groups, crew, label="Groups"), crew, exchange=exchange, job=job)


def buckets_graph(
    pipeline: Pipeline, crew: Crew, *, groups: list[BucketGroup], exchange: Exchange, job: Job
) -> PCollection[str]:
    """The second half of it, when all runs are there."""
    return _written(spread(pipeline, groups, crew), crew, exchange=exchange, job=job)


def _written(
    groups: PCollection[BucketGroup], crew: Crew, *, exchange: Exchange, job: Job
) -> PCollection[str]:
    write = Map(write_group, job=job, exchange=exchange, crew=crew)
    names: PCollection[str] = groups | "WriteBuckets" >> write
    return names


def _groups_of_runs(names: list[str], *, exchange: Exchange, job: Job) -> list[BucketGroup]:
    exchange.finish(names)
    return bucket_groups(exchange, job)


def _job(table: StageTable, stage: TokensStage) -> Job:
    vocabulary = open_artifact(table.input_path("vocabulary"))
    if vocabulary.digest != table.inputs["vocabulary"].digest:
        raise IntegrityError(
            f"{vocabulary.directory}: digest {vocabulary.digest[:12]}, the stage table says "
            f"{table.inputs['vocabulary'].digest[:12]}; the artifact was replaced: plan again"
        )
    scratch = ""
    if filesystem.is_local(table.output):
        scratch = filesystem.local_path(filesystem.join(table.output, WORK))
        os.makedirs(scratch, exist_ok=True)
    tokenizer = read_tokenizer(vocabulary.directory)
    return Job(
        stage=stage,
        vocabulary=vocabulary.directory,
        output=table.output,
        scratch=scratch,
        vocabulary_size=tokenizer.size,
        unk_id=tokenizer.unk_id,
    )


def _what_is_missing(work: list[Portion], exchange: Exchange, job: Job) -> tuple[Build, Progress]:
    """The graph of what earlier attempts have not finished."""
    missing = exchange.unfinished(work)
    if missing:
        if len(missing) < len(work):
            say(f"tokens: {len(work) - len(missing)} of {len(work)} portions are finished already")
        total = sum(portion.size for portion in missing) / MEGABYTE
        graph = partial(tokens_graph, work=missing, exchange=exchange, job=job)
        return graph, Progress("tokens", total=total, unit="MB")
    every = bucket_groups(exchange, job)
    finished = finished_files(job.output, [group.counts_name for group in every])
    groups = [group for group in every if group.counts_name not in finished]
    done = f"{len(every) - len(groups)} of {len(every)} groups"
    say(f"tokens: all {len(work)} portions and {done} are finished already")
    total = sum(len(group.buckets) for group in groups)
    graph = partial(buckets_graph, groups=groups, exchange=exchange, job=job)
    return graph, Progress("tokens", total=total, unit="buckets")


def _commit(
    table: StageTable,
    *,
    work: list[Portion],
    groups: list[BucketGroup],
    exchange: Exchange,
    job: Job,
) -> Artifact:
    counts = exchange.counts()
    entries = all_finished(job.output, [name for group in groups for name in group.names])
    vocabulary = open_artifact(job.vocabulary)
    copied = [
        put_bytes(job.output, vocabulary.read_bytes(name), name=name) for name in TOKENIZER_FILES
    ]
    occurrences = _occurrences(groups, job)
    splits = _split_statistics(entries)
    share = job.stage.corpus.heldout_share
    if share and splits.keys() == {TRAIN}:
        say(
            f"warning: of {counts.documents} documents none was drawn to be held out "
            f"(corpus.heldout_share = {share}), so nothing can be judged on unseen text; raise it, "
            "or hold out a source"
        )
    with exchange.dropped() as early, tempfile.TemporaryDirectory(dir=job.scratch or None) as local:
        paths = chain(early, _late_lists(groups, job.output, local))
        listed, dropped = put_dropped(paths, work=work, output=job.output, scratch=local)
    return commit(
        table,
        [*entries, *copied, put_json(job.output, occurrences, name="token_counts.json")],
        records=[listed],
        statistics={
            "tokenizer_digest": vocabulary.manifest.statistics["tokenizer_digest"],
            "vocabulary_size": job.vocabulary_size,
            "splits": splits,
            "documents_read": counts.documents,
            "damaged_documents": counts.damaged,
            "dropped": dropped,
        },
    )


def _late_lists(groups: list[BucketGroup], output: str, scratch: str) -> Iterator[str]:
    """Local paths of the lists of documents that were dropped for others of their bucket."""
    for entry in all_finished(output, [group.dropped_name for group in groups]):
        stored = filesystem.join(output, entry.stored_name)
        if entry.rows:
            with filesystem.brought_here(stored, scratch) as path:
                yield path


def _split_statistics(entries: list[FileEntry]) -> dict[str, Any]:
    totals: dict[str, Statistics] = {}
    for entry in entries:
        split = entry.statistics["split"]
        totals[split] = totals.get(split, Statistics()) + statistics_of_entry(entry)
    return {split: summary(total) for split, total in totals.items()}


def _occurrences(groups: list[BucketGroup], job: Job) -> list[int]:
    """How often each id occurs in the training split, each document once."""
    names = [group.counts_name for group in groups if group.split == TRAIN]
    total = np.zeros(job.vocabulary_size, dtype=np.int64)
    for entry in all_finished(job.output, names):
        content = filesystem.read_bytes(filesystem.join(job.output, entry.stored_name))
        total += np.frombuffer(content, dtype=np.int64)
    return [int(count) for count in total]


def _nothing_left(counts: RunCounts) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.dropped.items()))
    return (
        f"corpus: none of its {counts.documents} documents is left ({reasons or 'it has none'}); "
        "look at the paths, the reader and [cleaning]"
    )


if __name__ == "__main__":
    run_program(make_tokens)
