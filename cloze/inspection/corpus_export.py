"""`cloze documents`: the documents that a run kept, as files that others read.

In:  a run with a finished stage `tokens`, whose corpus is still there.
Out: a folder with Parquet files or JSON lines for each source, a card with sources, counts and
     rules, and corpus.toml, with which `cloze prepare` reads the same documents.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import tomli_w
from pyarrow import parquet
from pydantic import JsonValue

from cloze.answer import Answer
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import naming_full_disk
from cloze.artifacts.progress import say
from cloze.artifacts.runtime.temporary import temporary_directory
from cloze.artifacts.store import Artifact
from cloze.flows.workspace import run_artifact
from cloze.inspection.run_corpus import tokens_stage
from cloze.options import PLACE, Place, RunName, reading_artifacts
from cloze.pipeline.config.settings import TokensStage
from cloze.pipeline.kept_documents import SCHEMA, kept_documents, line_break_of

FILE_BYTES = 256 << 20
"""Bytes of text in a file."""

CARD, CORPUS = "README.md", "corpus.toml"

Format = Literal["parquet", "jsonl"]


@reading_artifacts
def documents(
    run: RunName,
    directory: Path,
    /,
    *,
    format: Format = "parquet",
    place: Place = PLACE,
) -> Answer:
    """Write the documents that a run kept.

    :param directory: A new or empty folder. It appears when all is written; a command that was
        interrupted starts again.
    :param format: Parquet, or JSON lines.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory}: exists and is not an empty folder; name a new one")
    space = place.space()
    artifact = run_artifact(space, run, stage="tokens")
    stage = tokens_stage(space, run, artifact)
    say(f"documents: reading the corpus of {run} again")
    beside = directory.absolute().parent
    beside.mkdir(parents=True, exist_ok=True)
    with naming_full_disk(str(beside)), temporary_directory(str(beside)) as ours:
        partial = Path(ours) / directory.name
        partial.mkdir()
        counts = _write(kept_documents(artifact, stage), partial, form=format)
        corpus = _corpus(stage, counts, name=run, directory=directory, form=format)
        (partial / CORPUS).write_text(tomli_w.dumps(corpus), "utf-8")
        (partial / CARD).write_text(_card(artifact, stage, counts, run=run), "utf-8")
        os.replace(partial, directory)  # refused if files have come into it meanwhile
    total = sum(of_split for of in counts.values() for of_split in of.values())
    by_source: dict[str, JsonValue] = {str(number): dict(of) for number, of in counts.items()}
    data: dict[str, JsonValue] = {
        "directory": str(directory),
        "documents": total,
        "by_source": by_source,
    }
    text = f"{directory}: {total:,} documents; cloze prepare {directory / CORPUS} reads them"
    return Answer(data, text, place.json)


def _write(
    tables: Iterable[tuple[int, pa.Table]], folder: Path, *, form: Format
) -> dict[int, Counter[str]]:
    """Write the documents of each source; returns their number by source and split."""
    counts: dict[int, Counter[str]] = {}
    files: Counter[int] = Counter()
    for source, group in _files(tables):
        table = pa.concat_tables(group)
        counts.setdefault(source, Counter()).update(table["split"].to_pylist())
        path = folder / f"source-{source}-{files[source]:05}.{form}"
        files[source] += 1
        if form == "parquet":
            parquet.write_table(table, path, compression="zstd")
            continue
        with open(path, "w", encoding="utf-8") as sink:
            for row in table.to_pylist():
                sink.write(json.dumps(row, ensure_ascii=False) + "\n")
    return counts


def _files(tables: Iterable[tuple[int, pa.Table]]) -> Iterator[tuple[int, list[pa.Table]]]:
    """The tables of each file, all of one source and of about `FILE_BYTES`."""
    waiting: list[pa.Table] = []
    before = size = 0
    for source, table in tables:
        # One source per file, as each is a source of the new configuration.
        if waiting and (source != before or size >= FILE_BYTES):
            yield before, waiting
            waiting, size = [], 0
        waiting.append(table)
        before, size = source, size + table["text"].nbytes
    if waiting:
        yield before, waiting


KEPT_FIELDS = {"name", "share", "weight", "heldout", "heldout_documents"}
"""Fields of a source that are about its documents and not about the files that they came from."""


def _corpus(
    stage: TokensStage,
    counts: Mapping[int, Mapping[str, int]],
    *,
    name: str,
    directory: Path,
    form: Format,
) -> dict[str, Any]:
    """A configuration that reads what was written as it was read."""
    sources = []
    for number in sorted(counts):
        config = stage.corpus.sources[number]
        sources.append(
            {
                "reader": form,
                # A pattern, since a large source has several files.
                "path": f"{directory.absolute()}/source-{number}-*.{form}",
                # What a line break ends in them depends on the source, so it is written down.
                "line_break": line_break_of(stage.corpus, number),
                **config.model_dump(include=KEPT_FIELDS, exclude_defaults=True),
            }
        )
    return {
        "name": f"{name}-documents",
        "seed": stage.seed,
        "corpus": {
            "heldout_share": stage.corpus.heldout_share,
            "abbreviations": list(stage.corpus.abbreviations),
            "sources": sources,
        },
    }


def _card(
    artifact: Artifact,
    stage: TokensStage,
    counts: Mapping[int, Mapping[str, int]],
    *,
    run: str,
) -> str:
    """What the documents are, and how they were chosen."""
    statistics = artifact.manifest.statistics
    total = sum(sum(of.values()) for of in counts.values())
    rows = [
        (
            config.path or ", ".join(config.packages),
            config.reader,
            ", ".join(f"{count:,} {split}" for split, count in counts.get(number, {}).items()),
        )
        for number, config in enumerate(stage.corpus.sources)
    ]
    edits = statistics.get("edits", {})
    return "\n".join(
        [
            f"# Documents of the run {run}",
            "",
            f"{total:,} of {statistics['documents_read']:,} documents read, cleaned: one paragraph "
            "per line, or a sentence where the source had these.",
            "",
            "| source | reader | documents |",
            "|---|---|---|",
            *(f"| {path} | {reader} | {kept or '0'} |" for path, reader, kept in rows),
            "",
            "| dropped as | documents |",
            "|---|---|",
            *(f"| {reason} | {count:,} |" for reason, count in statistics["dropped"].items()),
            "",
            *(
                ["| removed or masked | times |", "|---|---|"]
                + [f"| {name} | {count:,} |" for name, count in edits.items()]
                + [""]
                if edits
                else []
            ),
            "Columns: " + ", ".join(f"`{name}`" for name in SCHEMA.names) + ".",
            "",
            *_rules(stage),
            f"`cloze prepare {CORPUS}` reads the same documents; its `path`s name this folder, so "
            "change them if it is moved. The licences are those of the sources.",
            "",
            f"Tokens artifact: `{artifact.digest}`.",
            "",
        ]
    )


def _rules(stage: TokensStage) -> list[str]:
    """Lines of the card: the rules for all sources, and those of sources with their own."""
    shared = stage.cleaning.model_dump(mode="json", exclude_defaults=True)
    for directory in ("boilerplate", "drop_list", "scores"):
        shared.pop(directory, None)  # it is one of this machine
    lines = ["Rules (`[cleaning]`):", "", f"```toml\n{tomli_w.dumps(shared)}```", ""]
    for source in stage.corpus.sources:
        if source.cleaning is not None:
            path = source.path or ", ".join(source.packages)
            own = tomli_w.dumps(source.cleaning.model_dump(mode="json", exclude_defaults=True))
            lines += [f"In place of these, those of {path}:", "", f"```toml\n{own}```", ""]
    return lines
