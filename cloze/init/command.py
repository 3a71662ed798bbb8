"""`cloze init`: a complete configuration for one's own corpus.

In:  a file, folder, glob or URL.
Out: a TOML file with the reader that fits and sizes that suit the amount of text, each explained;
     and, for a person, what the samples say about the corpus.
"""

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from artifacts.config import parse
from artifacts.errors import UsageError
from artifacts.filesystem import write_bytes
from cloze.answer import Answer
from cloze.init.corpus_facts import fact_lines
from cloze.init.corpus_samples import Look, look
from cloze.options import OUTPUT, Output
from flows.config import RunConfig

Source = Annotated[str, Parameter(help="File, folder, glob or URL of the corpus.")]
Target = Annotated[
    Path | None, Parameter(name="--output", help="File to write; without it, standard output.")
]
Name = Annotated[
    str, Parameter(help="The run's name; by default the corpus's.", show_default=False)
]
Vocabulary = Annotated[
    Path | None,
    Parameter(
        help="A vocab.txt or tokenizer.json, for example Google's: how many word-pieces a word has."
    ),
]


@dataclass(frozen=True)
class Size:
    """What suits so much text."""

    below: float
    """Bytes of text."""
    settings: str
    """Tables of the configuration."""


TOY = """\
# Little text: a small encoder, in about ten minutes on two processor cores.
[vocabulary]
size = 8192

[examples]
max_seq_lengths = [64]
copies = 4

[encoder]
preset = "tiny"
max_position_embeddings = 64
initializer_range = 0.05  # 128 wide instead of 768: the reference's 0.02 stays on the plateau

[pretrain]
steps = 10000
batch_size = 32
phases = [{ max_seq_length = 64, share = 1.0 }]
evaluate_every = 500
evaluation_examples = 512

[pretrain.optimizer]
learning_rate = 2e-3  # small encoders bear twenty times the paper's rate
warmup_steps = 300
bias_correction = true  # without it so short a warm-up overshoots, and only word counts are learnt

[evaluate]
examples = 4000
"""
"""After its first line this is the end of configs/text_folder.toml, word for word."""

MIDDLE = """\
# Some text: a small encoder (4 layers of 512), some hours on one GPU.
[vocabulary]
size = 16384

[examples]
max_seq_lengths = [128, 512]
copies = 5

[encoder]
preset = "small"

[pretrain]
steps = 100_000  # the first thing to change
batch_size = 256
evaluate_every = 1000

[pretrain.optimizer]
learning_rate = 5e-4
warmup_steps = 5_000
"""
PAPER = """\
# Much text: the paper's BERT-base, all values its own; days on eight GPUs. `cloze plan` says more.
[encoder]
preset = "base"

[pretrain]
steps = 1_000_000
batch_size = 256
"""
SIZES = (Size(2e8, TOY), Size(2e9, MIDDLE), Size(float("inf"), PAPER))


def init(
    source: Source,
    /,
    *,
    output_file: Target = None,
    name: Name = "",
    vocabulary: Vocabulary = None,
    output: Output = OUTPUT,
) -> Answer:
    """Write a configuration."""
    found = look(source)
    text = written(found, name or _name(source))
    run = parse(RunConfig, tomllib.loads(text), source="the new configuration")
    facts = list(fact_lines(found, run, vocabulary=vocabulary))
    data = {
        "reader": found.reader,
        "text_bytes": found.text_bytes,
        "documents": found.documents,
        "odd": found.odd,
        "facts": facts,
    }
    if output_file is None:
        comments = "\n".join(f"# {fact}" for fact in facts)
        return Answer({"configuration": text, **data}, f"{comments}\n{text.rstrip()}", output.json)
    if output_file.exists():
        raise UsageError(f"{output_file}: exists already; choose another --output")
    write_bytes(str(output_file), text.encode())
    lines = [*facts, f"{output_file}: {found.why}", f"next: cloze plan {output_file}"]
    return Answer({"file": str(output_file), **data}, "\n".join(lines), output.json)


def written(found: Look, name: str) -> str:
    """The configuration as TOML."""
    size = next(size for size in SIZES if found.text_bytes < size.below)
    field = f'text_field = "{found.text_field}"\n' if found.text_field else ""
    files = f"{found.files:,} file{'s' if found.files > 1 else ''}"
    return f"""\
# {files}, about {found.text_bytes / 1e6:,.1f} MB of text; {found.why}.
name = "{name}"
seed = 12345

[[corpus.sources]]
reader = "{found.reader}"
path = {json.dumps(found.path)}
{field}
[corpus]
heldout_share = {_heldout_share(found):.3g}  # of the documents, for judging

{size.settings}"""


def _heldout_share(found: Look) -> float:
    """A smaller share of more text; of few documents more, or there would be none."""
    share = 0.02 if found.text_bytes < 2e8 else 0.01 if found.text_bytes < 2e9 else 0.001
    return max(share, min(0.2, 20 / max(found.documents, 1)))


def _name(source: str) -> str:
    """A run's name made from the corpus's."""
    last = re.sub(r"[*?\[\]]", "", source.rstrip("/*")).rsplit("/", 1)[-1].partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "_", last).strip("_-") or "corpus"
