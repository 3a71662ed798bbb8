"""Stage `examples`: tokens become masked MLM/NSP examples, bucket by bucket.

In:  a tokens artifact.
Out: `{split}-{length}-{bucket}.arrow` (artifacts/tables.py), tokenizer.json, vocab.txt.

    python -P -m pipeline.examples --config TABLE.json [engine options]

No shuffle is needed: the buckets of the tokens artifact are random shares of the corpus already.
Buckets an interrupted attempt has finished are kept.
"""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from artifacts.config import parse
from artifacts.errors import IntegrityError
from artifacts.manifest import FileEntry
from artifacts.program import run_program
from artifacts.progress import Progress, say
from artifacts.stage import StageTable
from artifacts.store import Artifact, all_finished, commit, finished_files, open_artifact, put_bytes
from artifacts.tables import examples_name
from artifacts.tokenizer import CONTINUATION, WordPieceTokenizer, read_tokenizer_json
from pipeline.config import ExamplesConfig, ExamplesStage, PipelineMachine
from pipeline.mlm.example_files import (
    Bucket,
    Destination,
    Recipe,
    statistics_of_entry,
    write_bucket,
)
from pipeline.mlm.packing_batches import SpecialIds
from pipeline.mlm.statistics import Statistics, summary
from pipeline.runner.beam import Map, PCollection, Pipeline
from pipeline.runner.graph import run_graph, spread
from pipeline.runner.scratch import attempt_directory
from pipeline.runner.work_queue import Crew
from pipeline.shuffle.input_shards import MEGABYTE

TRAIN = "train"
TOKENS_NAME = re.compile(r"(?P<split>.+)-(?P<bucket>\d{5,})\.arrow")


def make_examples(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage: what is finished is kept, the rest is made, the manifest is written."""
    stage = parse(ExamplesStage, table.config, source="stage examples")
    machine = parse(PipelineMachine, table.machine, source="stage examples, machine")
    tokens = _open_tokens(table)
    tokenizer = _tokenizer(tokens)
    buckets = list(_buckets(tokens, stage.examples))
    unfinished = list(_unfinished(buckets, table.output))
    if unfinished:
        recipe = _recipe(stage, tokenizer)
        _make(unfinished, table.output, recipe=recipe, machine=machine, options=options)
    entries = all_finished(table.output, _names(buckets))
    copied = [
        put_bytes(table.output, tokens.read_bytes(name), name=name)
        for name in ("tokenizer.json", "vocab.txt")
    ]
    return commit(table, [*entries, *copied], statistics=_statistics(entries, tokenizer))


def example_graph(
    pipeline: Pipeline, buckets: list[Bucket], *, recipe: Recipe, place: Destination, crew: Crew
) -> PCollection[str]:
    """Each bucket is one piece of work; the names of the finished ones come out."""
    write = Map(write_bucket, recipe=recipe, destination=place, crew=crew)
    names: PCollection[str] = spread(pipeline, buckets, crew) | "WriteExamples" >> write
    return names


def _make(
    buckets: list[Bucket],
    output: str,
    *,
    recipe: Recipe,
    machine: PipelineMachine,
    options: list[str],
) -> None:
    megabytes = sum(bucket.entry.size for bucket in buckets) / MEGABYTE
    progress = Progress("examples", total=megabytes, unit="MB")
    with attempt_directory(output) as scratch:
        place = Destination(output, scratch if machine.runner == "local" else "")
        run_graph(
            lambda pipeline, crew: example_graph(
                pipeline, buckets, recipe=recipe, place=place, crew=crew
            ),
            machine=machine,
            options=options,
            progress=progress,
        )


def _open_tokens(table: StageTable) -> Artifact:
    tokens = open_artifact(table.input_path("tokens"))
    if tokens.digest != table.inputs["tokens"].digest:
        raise IntegrityError(
            f"{tokens.directory}: digest {tokens.digest[:12]}, the stage table says "
            f"{table.inputs['tokens'].digest[:12]}; the artifact was replaced: plan the run again"
        )
    return tokens


def _tokenizer(tokens: Artifact) -> WordPieceTokenizer:
    with tempfile.TemporaryDirectory() as scratch:
        local = tokens.stage_files(scratch, ["tokenizer.json"])
        return read_tokenizer_json(local.path("tokenizer.json"))


def _recipe(stage: ExamplesStage, tokenizer: WordPieceTokenizer) -> Recipe:
    return Recipe(
        seed=stage.seed,
        config=stage.examples,
        special=SpecialIds(tokenizer.cls_id, tokenizer.sep_id),
        mask_id=tokenizer.mask_id,
        vocabulary_size=tokenizer.size,
        continuation_V=np.array([word.startswith(CONTINUATION) for word in tokenizer.vocabulary]),
    )


def _buckets(tokens: Artifact, config: ExamplesConfig) -> Iterator[Bucket]:
    """Every tokens file as a piece of work; held-out splits get one copy: no more is read."""
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


def _unfinished(buckets: list[Bucket], output: str) -> Iterator[Bucket]:
    """The buckets with the lengths that an earlier attempt has not left finished."""
    wanted = _names(buckets)
    finished = finished_files(output, wanted)
    if finished:
        say(f"examples: {len(finished)} of {len(wanted)} files are finished already")
    for bucket in buckets:
        lengths = tuple(
            length
            for length in bucket.max_seq_lengths
            if examples_name(bucket.split, length, bucket.number) not in finished
        )
        if lengths:
            yield replace(bucket, max_seq_lengths=lengths)


def _names(buckets: list[Bucket]) -> list[str]:
    return [
        examples_name(bucket.split, length, bucket.number)
        for bucket in buckets
        for length in bucket.max_seq_lengths
    ]


def _statistics(entries: list[FileEntry], tokenizer: WordPieceTokenizer) -> dict[str, Any]:
    counts: dict[str, dict[str, Statistics]] = {}
    for entry in entries:
        lengths = counts.setdefault(entry.statistics["split"], {})
        length = str(entry.statistics["max_seq_length"])
        lengths[length] = lengths.get(length, Statistics()) + statistics_of_entry(entry)
    return {
        "tokenizer_digest": tokenizer.digest,
        "vocabulary_size": tokenizer.size,
        "splits": {
            split: {length: summary(found) for length, found in lengths.items()}
            for split, lengths in counts.items()
        },
    }


if __name__ == "__main__":
    run_program(make_examples)
