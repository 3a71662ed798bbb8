"""Stage `examples`: masked MLM/NSP examples from tokens, bucket by bucket.

In:  a tokens artifact.
Out: `{split}-{length}-{bucket}.arrow` (artifacts/tables.py), with one record batch per copy; the
     tokenizer.

    python -P -m pipeline.examples --config TABLE.json [engine options]

No shuffle is needed: the buckets of the tokens artifact are random shares of the corpus already.
Buckets finished by an interrupted attempt are kept.
"""

import re
from collections.abc import Iterator
from functools import partial

import numpy as np

from artifacts.config import parse
from artifacts.progress import Progress, say
from artifacts.runtime.program import run_program
from artifacts.stage import StageTable
from artifacts.store import (
    Artifact,
    all_finished,
    commit,
    finished_files,
    open_input,
    put_bytes,
)
from artifacts.tokenizer import CONTINUATION, SubwordTokenizer, read_tokenizer_json
from pipeline.config.settings import ExamplesConfig, ExamplesStage, PipelineMachine
from pipeline.mlm.example_files import Bucket, Recipe, write_bucket
from pipeline.mlm.statistics import examples_summary
from pipeline.readers.documents import MEGABYTE
from pipeline.runner.execution import run_graph, scratch_directory
from pipeline.runner.graph import Collection, WorkQueue, spread
from pipeline.text.splits import TRAIN

TOKENS_NAME = re.compile(r"(?P<split>.+)-(?P<bucket>\d{5,})\.arrow")


def make_examples(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage: keep finished files, make the rest, write the manifest."""
    stage = parse(ExamplesStage, table.config, source="stage examples")
    machine = parse(PipelineMachine, table.machine, source="stage examples, machine")
    tokens = open_input(table, "tokens")
    tokenizer = read_tokenizer_json(tokens.path("tokenizer.json"))
    buckets = list(buckets_of(tokens, stage.examples))
    names = [name for bucket in buckets for name in bucket.names]
    finished = finished_files(table.output, names)
    if finished:
        say(f"examples: {len(finished)} of {len(names)} files are finished already")
    unfinished = [left for bucket in buckets if (left := bucket.without(finished)).max_seq_lengths]
    if unfinished:
        megabytes = sum(bucket.entry.size for bucket in unfinished) / MEGABYTE
        with scratch_directory(table.output) as scratch:
            graph = partial(
                example_graph,
                buckets=unfinished,
                recipe=recipe_of(stage, tokenizer),
                output=table.output,
                scratch=scratch if machine.runner == "local" else "",
            )
            progress = Progress("examples", total=megabytes, unit="MB")
            run_graph(
                graph,
                machine=machine,
                options=options,
                progress=progress,
                megabytes=megabytes,
                output=table.output,
            )
    entries = all_finished(table.output, names)
    copied = [
        put_bytes(table.output, tokens.read_bytes(name), name=name) for name in tokenizer.files()
    ]
    statistics = {
        "tokenizer_digest": tokenizer.digest,
        "vocabulary_size": tokenizer.size,
        "splits": examples_summary(entries),
    }
    return commit(table, [*entries, *copied], statistics=statistics)


def example_graph(
    queue: WorkQueue, *, buckets: list[Bucket], recipe: Recipe, output: str, scratch: str
) -> Collection[str]:
    """A job that writes the examples of each bucket and yields its name."""
    write = partial(write_bucket, recipe=recipe, output=output, scratch=scratch, queue=queue)
    return spread(buckets, queue).map("WriteExamples", write)


def recipe_of(stage: ExamplesStage, tokenizer: SubwordTokenizer) -> Recipe:
    """The settings common to all buckets."""
    return Recipe(
        seed=stage.seed,
        config=stage.examples,
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        mask_id=tokenizer.mask_id,
        vocabulary_size=tokenizer.size,
        continuation_V=np.array([word.startswith(CONTINUATION) for word in tokenizer.vocabulary]),
    )


def buckets_of(tokens: Artifact, config: ExamplesConfig) -> Iterator[Bucket]:
    """Every tokens file as a task; held-out splits get one copy, since only one is read."""
    for entry in tokens.manifest.files:
        name = TOKENS_NAME.fullmatch(entry.name)
        if name:
            yield Bucket(
                tokens=tokens.directory,
                entry=entry.model_copy(update={"statistics": {}}),
                split=name["split"],
                number=int(name["bucket"]),
                max_seq_lengths=config.max_seq_lengths,
                copies=config.copies if name["split"] == TRAIN else 1,
            )


if __name__ == "__main__":
    run_program(make_examples)
