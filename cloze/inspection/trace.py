"""`cloze trace`: score ← model ← examples ← tokens ← document, one line each.

An encoder that came finished is followed as far as this workspace knows it.

In:  a run, and which training example to follow down to its document.
Out: every step with its digest, from the score to the words.
"""

from typing import Annotated

from cyclopts import Parameter

from artifacts.store import Artifact
from artifacts.tokenizer import read_tokenizer_json
from cloze.answer import Answer
from cloze.inspection.artifact_text import show_document, show_example
from cloze.inspection.example_origin import find_example, find_origin
from cloze.options import PLACE, Place, RunName
from cloze.tables import columns
from flows.figures import figures, read_summary
from flows.inventory import ancestors
from flows.record import read_record, run_artifact
from flows.workspace import Workspace

Row = Annotated[int, Parameter(help="Which example to follow, counted from 0.")]
Split = Annotated[str, Parameter(help="Of which split.")]

SHOWN_CHARACTERS = 400
"""Longer texts are cut; --json has them whole."""

Story = list[tuple[str, str, str]]
"""(what, digest, words)."""


def trace(run: RunName, /, *, row: Row = 0, split: Split = "train", place: Place = PLACE) -> Answer:
    """Trace a run's score down to a document."""
    space = place.space()
    finished = read_record(space, run).stages
    last = next((stage for stage in ("evaluate", "finetune") if stage in finished), "pretrain")
    found = ancestors(run_artifact(space, run, stage=last), store=space.store)
    story = [*_score(run, space, found), *_model(found), *_data(found, split=split, row=row)]
    data = [dict(zip(("what", "digest", "words"), step, strict=True)) for step in story]
    lines = [(what, digest[:12], _cut(words)) for what, digest, words in story]
    return Answer(data, columns(lines), place.json)


def _cut(words: str) -> str:
    return words if len(words) <= SHOWN_CHARACTERS else f"{words[:SHOWN_CHARACTERS]}…"


def _score(run: str, space: Workspace, found: dict[str, Artifact]) -> Story:
    if "evaluate" not in found:
        return []
    summary = read_summary(space, run)
    known = figures(summary) if summary else {}
    words = ", ".join(f"{name} {value:.4g}" for name, value in list(known.items())[:3])
    return [("score", found["evaluate"].digest, words)]


def _model(found: dict[str, Artifact]) -> Story:
    if "pretrain" not in found:
        return _given(found)
    manifest = found["pretrain"].manifest
    encoder, recipe = manifest.config["encoder"], manifest.config["pretrain"]
    size = f"{encoder['num_hidden_layers']}×{encoder['hidden_size']}"
    words = f"{size} encoder after {recipe['steps']:,} steps of {recipe['batch_size']} examples"
    weights = manifest.file("model.safetensors")
    return [
        ("model", found["pretrain"].digest, words),
        ("weights", weights.sha256, f"{weights.stored_name}, {weights.size:,} bytes"),
    ]


def _given(found: dict[str, Artifact]) -> Story:
    """An encoder that came finished: an imported one has a source."""
    user = found.get("evaluate") or found["finetune"]
    imported = found.get("import")
    source = f"imported from {imported.manifest.execution['source']}" if imported else "as given"
    return [("model", user.manifest.inputs["encoder"], f"finished encoder, {source}")]


def _data(found: dict[str, Artifact], *, split: str, row: int) -> Story:
    if "examples" not in found:
        return []
    examples, tokens = found["examples"], found["tokens"]
    example = find_example(examples, split=split, row=row)
    origin = find_origin(example, tokens)
    tokenizer = read_tokenizer_json(tokens.path("tokenizer.json"))
    shown, document = (
        show_example(example.values, tokenizer),
        show_document(origin.values, tokenizer),
    )
    digest = origin.values["document_digest"].hex()
    place = f"row {example.row} of {example.file.rows}, copy {example.copy}"
    return [
        ("examples", examples.digest, f"{len(examples.manifest.files)} files"),
        ("shard", example.file.sha256, f"{example.file.name}, {place}: {shown.title}"),
        ("example", "", shown.text.replace("\n", " ")),
        ("tokens", tokens.digest, f"made of corpus {tokens.manifest.inputs['corpus'][:12]}"),
        ("shard", origin.file.sha256, f"{origin.file.name}, row {origin.row}"),
        ("document", digest, document.title.partition(", ")[2]),
        ("text", "", document.text.replace("\n", " ")),
    ]
