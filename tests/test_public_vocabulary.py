"""The public face speaks the field's vocabulary (CONTRIBUTING.md): retired names stay away.

The face is what a user reads: commands and their help, configuration keys and their descriptions,
headings of the report and of the documents.
"""

import ast
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from cloze.command import COMMANDS, exit_code
from cloze.flows.config import MachineConfig, RunConfig
from tests.conftest import PROJECT

RETIRED = {
    r"unwanted": "dedup, decontamination",
    r"excerpts?": "passage",
    r"word-pieces a word": "fertility, tokens per word",
    r"work(ed|s|ing)? off": "execute, run",
    r"(the|a) bench|crew": "executor, work queue",
    r"keepers?": "supervisor",
    r"rubbish": "garbage",
    r"redrawn|stored masks?": "dynamic, static masking",
    r"hidden words?": "masked tokens",
    r"nats (per|a) hidden word": "nats per masked token",
    r"first guesses that are right": "top-1 accuracy",
    r"neighbour counts?": "n-gram baseline",
    r"matrix_rate_share": "mfu",
    r"judg(e|es|ed|ing)": "evaluate, inspect",
    r"fits?\b(?= (of|per|a) )|the fits|many fits|each fit": "trial, run",
    r"mistakes": "errors, error analysis",
    r"published scores": "reference scores",
    r"portions?": "input shard",
    r"sketch(es)?": "cardinality estimate",
    r"told|tells": "log, report",
    r"random streams?": "counter-based random numbers",
}
"""A pattern of whole words, and what the field says."""


def headings_of_documents() -> Iterator[tuple[str, str]]:
    for path in [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]:
        fenced = False
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            fenced ^= line.startswith("```")
            if line.startswith("#") and not fenced:
                yield f"{path.relative_to(PROJECT)}:{number}", line


def help_texts() -> Iterator[tuple[str, str]]:
    for name in COMMANDS:
        shown = io.StringIO()
        with redirect_stdout(shown):
            assert exit_code([name, "--help"]) == 0
        yield f"cloze {name} --help", re.sub(r"[│╭╮╰╯─\s]+", " ", shown.getvalue())


def configuration_fields() -> Iterator[tuple[str, str]]:
    for model in (RunConfig, MachineConfig):
        schema = model.model_json_schema()
        for name, table in [(model.__name__, schema), *schema.get("$defs", {}).items()]:
            yield name, table.get("description", "")
            fields: dict[str, Any] = table.get("properties", {})
            for key, field in fields.items():
                yield f"{name}.{key}", f"{key} {field.get('description', '')}"


def report_texts() -> Iterator[tuple[str, str]]:
    """Templates without their markup, and every string of the module of headings and captions."""
    for path in sorted((PROJECT / "flows" / "report").rglob("*.j2")):
        text = re.sub(r"{[%{#].*?[%}#]}|<[^>]*>", " ", path.read_text(), flags=re.DOTALL)
        yield str(path.relative_to(PROJECT)), text
    wording = PROJECT / "flows" / "report" / "wording.py"
    for node in ast.walk(ast.parse(wording.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield f"flows/report/wording.py:{node.lineno}", node.value


@pytest.mark.parametrize(
    "face",
    [headings_of_documents, help_texts, configuration_fields, report_texts],
    ids=lambda face: face.__name__,
)
def test_no_retired_name_is_in_the_public_face(face: Any) -> None:
    found = [
        f"{where}: {match.group(0)!r}; the field says: {instead}"
        for where, text in face()
        for pattern, instead in RETIRED.items()
        for match in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE)
    ]
    assert found == []


def test_the_list_finds_what_it_looks_for() -> None:
    text = "the mistakes of each fit"
    assert [p for p in RETIRED if re.search(rf"\b(?:{p})\b", text)]
    assert Path(PROJECT / "flows" / "report" / "wording.py").exists()
