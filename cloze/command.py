"""The `cloze` command: verbs, help, errors, exit codes.

In:  the command line.
Out: one result on standard output; everything else on standard error.

Exit codes: 0 done, 1 failed, 2 wrong use or configuration, 130 interrupted, 143 terminated. The
module of a verb is imported when the verb is used. A user's mistake never becomes a traceback.
"""

import json
import os
import re
import signal
import sys
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from cyclopts import App, CycloptsError

from artifacts.errors import ClozeError, explained
from artifacts.progress import say
from artifacts.runtime.program import Terminated
from cloze.answer import Answer, print_lines

OUR_PACKAGES = ("artifacts", "pipeline", "model", "flows", "cloze")

EXTRA_WITH = {
    **dict.fromkeys(("apache_beam", "charset_normalizer", "zstandard"), "pipeline"),
    **dict.fromkeys(("deepspeed", "numpy", "safetensors", "scipy", "sklearn", "torch"), "model"),
    **dict.fromkeys(("jinja2", "matplotlib", "prefect"), "flows"),
    **dict.fromkeys(("onnx", "onnxruntime", "onnxscript", "transformers"), "onnx"),
    "gcsfs": "gs",
    "s3fs": "s3",
    "usearch": "index",
}
"""The extra of `cloze` that installs a module."""


@dataclass(frozen=True)
class Verb:
    """One command."""

    where: str
    """`module:function`; imported when it is used."""
    purpose: str
    """What it does, in one sentence."""
    example: str
    """An example command line."""


STAGE = "cloze.execution.single_stage"
COMMANDS = {
    "init": Verb(
        "cloze.init.configuration:init",
        "Inspect a corpus and write a complete configuration for it.",
        "cloze init ~/documents --output documents.toml",
    ),
    "adapt": Verb(
        "cloze.execution.adaptation:adapt",
        "Continue the training of a given encoder on a folder of documents; report before, after.",
        "cloze adapt bert-base-uncased ~/documents --minutes 10",
    ),
    "run": Verb(
        "cloze.execution.run:run",
        "Run every stage from documents to report; existing artifacts are reused.",
        "cloze run configs/demo.toml --set pretrain.steps=500",
    ),
    "plan": Verb(
        "cloze.execution.planning:plan",
        "Show which stages a run would reuse or execute, why, and the time, disk and cost.",
        "cloze plan configs/wikipedia_books.toml --gigabytes 16",
    ),
    "prepare": Verb(
        f"{STAGE}:prepare",
        "Prepare the training data: vocabulary, tokens, examples.",
        "cloze prepare configs/text_folder.toml --set corpus.sources.0.path=~/documents",
    ),
    "dedup": Verb(
        f"{STAGE}:dedup",
        "Find near-duplicates and overlaps with evaluation sets, for tokens to drop.",
        "cloze dedup mine.toml --set dedup.near_duplicates.threshold=0.8",
    ),
    "vocabulary": Verb(
        f"{STAGE}:vocabulary",
        "Train a WordPiece vocabulary on the corpus.",
        "cloze vocabulary configs/demo.toml --set vocabulary.size=4096",
    ),
    "tokens": Verb(
        f"{STAGE}:tokens",
        "Clean, deduplicate and tokenise the corpus. Options for Beam follow after --.",
        "cloze tokens configs/demo.toml --on machine.toml -- --temp_location=gs://bucket/temp",
    ),
    "examples": Verb(
        f"{STAGE}:examples",
        "Make masked training examples from tokens. Options for Beam follow after --.",
        "cloze examples configs/demo.toml --set examples.masking.masked_lm_prob=0.2",
    ),
    "pretrain": Verb(
        f"{STAGE}:pretrain",
        "Pre-train the encoder. Options for DeepSpeed's launcher follow after --.",
        "cloze pretrain configs/demo.toml -- --num_accelerators 2 --bind_cores_to_rank",
    ),
    "finetune": Verb(
        f"{STAGE}:finetune",
        "Fine-tune the encoder on every task with every seed.",
        "cloze finetune configs/demo.toml --set finetune.seeds=[0,1]",
    ),
    "evaluate": Verb(
        f"{STAGE}:evaluate",
        "Evaluate the encoder on held-out examples, beside its baselines.",
        "cloze evaluate configs/demo.toml",
    ),
    "report": Verb(
        f"{STAGE}:report",
        "Write the report of a run.",
        "cloze report configs/demo.toml --set report.show_text=false",
    ),
    "ablations": Verb(
        "cloze.execution.ablations:ablations",
        "Repeat the paper's ablations at the size of a run: objective, size, masking.",
        "cloze ablations configs/demo.toml --table objective --table masking",
    ),
    "inspect": Verb(
        "cloze.inspection.inspect_artifact:inspect",
        "Show an artifact: its statistics, and its first documents or examples as text.",
        "cloze inspect demo/examples --rows 3",
    ),
    "fill-mask": Verb(
        "cloze.inference.mask_filling:fill_mask",
        "Predict the tokens behind every [MASK] of a text.",
        "cloze fill-mask demo 'numpy.zeros returns a new [MASK] of given shape.'",
    ),
    "predict": Verb(
        "cloze.inference.prediction:predict",
        "Apply a fine-tuned model to texts, JSON lines or a task file.",
        "cloze predict demo --task sentiment 'A film one remembers.'",
    ),
    "embed": Verb(
        "cloze.inference.embedding:embed",
        "Embed texts: one vector per text.",
        "cloze embed demo --output vectors.npy < texts.txt",
    ),
    "search": Verb(
        "cloze.inference.search:search",
        "Find the excerpts of a folder's documents that are nearest to a question.",
        "cloze search my-encoder ~/documents 'Who owns the garden?'",
    ),
    "submissions": Verb(
        "cloze.inference.submissions:submissions",
        "Collect predictions of unlabelled test files in the form that official servers take.",
        "cloze submissions glue glue-submission",
    ),
    "export": Verb(
        "cloze.inference.hugging_face:export_model",
        "Export a trained encoder or task model in Hugging Face's layout, with a model card.",
        "cloze export demo my-encoder",
    ),
    "import": Verb(
        "cloze.inference.hugging_face:import_model",
        "Import a model in Hugging Face's layout, to pre-train, fine-tune or evaluate it.",
        "cloze import bert-base-uncased",
    ),
    "runs": Verb(
        "cloze.inspection.runs:runs",
        "List the runs of the workspace.",
        "cloze runs --workspace runs",
    ),
    "show": Verb(
        "cloze.inspection.runs:show",
        "Show one run: its stages, what they cost, its figures.",
        "cloze show demo",
    ),
    "compare": Verb(
        "cloze.inspection.compare:compare",
        "Compare runs: where their configurations differ, and their figures side by side.",
        "cloze compare demo demo-deeper",
    ),
    "trace": Verb(
        "cloze.inspection.trace:trace",
        "Trace a score down to a document: score, model, shard, example, tokens, text.",
        "cloze trace demo --row 17",
    ),
    "gc": Verb(
        "cloze.inspection.gc:gc",
        "List artifacts that no run refers to, and delete them on demand.",
        "cloze gc --delete",
    ),
    "serve": Verb(
        "cloze.execution.serve:serve",
        "Serve the flows: wait for runs triggered from a Prefect server or its UI.",
        "cloze serve configs/demo.toml --port 4200",
    ),
    "doctor": Verb(
        "cloze.inspection.doctor:doctor",
        "Check this machine: what is installed, what is missing, and what that means.",
        "cloze doctor",
    ),
}
"""The commands, in the order in which users meet them."""

ANSWERED = (
    *(CycloptsError, ClozeError, ImportError, OSError, MemoryError),
    *(KeyboardInterrupt, Terminated),
)
"""Exceptions that end a command with one line; any other is a bug of ours, with its traceback."""

UNDECODABLE = re.compile("[\ud800-\udfff]")
"""Stands for a byte of a file name or an argument that Python could not decode (PEP 383)."""

FORMER_NAMES = {"unwanted": "dedup"}
"""Commands that were renamed; the next version refuses the former name."""


def main() -> NoReturn:
    """Entry point."""
    # closed streams are opened: after `2>&-` the next file opened would be standard error
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, mode))  # noqa: SIM115 - as long as the process
        elif mode == "w":
            getattr(sys, name).reconfigure(errors="backslashreplace")  # LC_ALL=en_US.ISO-8859-1
    sys.exit(exit_code(sys.argv[1:]))


def exit_code(arguments: list[str]) -> int:
    """Run the command in `arguments`; every outcome becomes at most one line and a code."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        os.getcwd()
    except FileNotFoundError:
        say("error: the working directory has been deleted; cd to another one")
        return 1
    if odd := next(filter(UNDECODABLE.search, [os.getcwd(), *arguments]), ""):
        say(
            f"error: {ascii(odd)[1:-1]}: not in {sys.getfilesystemencoding()}, the encoding of "
            "file names here; rename it, or where it is UTF-8 set PYTHONUTF8=1"
        )
        return 2
    if arguments and (name := FORMER_NAMES.get(arguments[0])):
        say(
            f"warning: cloze {arguments[0]} is now called cloze {name}; "
            "the next version refuses the former name"
        )
        arguments = [name, *arguments[1:]]
    try:
        answer = application()(
            arguments, result_action="return_value", print_error=False, exit_on_error=False
        )
    except ANSWERED as error:
        message, code = _explained(error)
        say(f"error: {message}" if code in (1, 2) else message)
        if "--json" in arguments:
            print(json.dumps({"error": message, "exit_code": code}))
        return code
    if not isinstance(answer, Answer):
        return 0
    print_lines([str(answer)])
    return answer.exit_code


def application() -> App:
    """The command with its verbs."""
    app = App(
        name="cloze",
        help="From a folder of documents to an evaluated BERT encoder.",
        help_flags=("--help", "-h"),
        suppress_keyboard_interrupt=False,
    )
    for position, (name, verb) in enumerate(COMMANDS.items()):
        text = f"{verb.purpose}\n\nExample: `{verb.example}`"
        app.command(verb.where, name=name, help=text, sort_key=position)
    return app


def _explained(error: BaseException) -> tuple[str, int]:
    """The message for `error`, and the exit code; a bug of our own is raised again."""
    if isinstance(error, CycloptsError):
        return " ".join(str(error).split()), 2
    if isinstance(error, ClozeError):
        return str(error), error.exit_code
    if isinstance(error, ImportError):
        cause = error.__cause__ or error
        name = (getattr(cause, "name", None) or "").partition(".")[0]
        if not isinstance(cause, ModuleNotFoundError) or name in OUR_PACKAGES:
            raise error
        wanted = f"'cloze[{EXTRA_WITH[name]}]'" if name in EXTRA_WITH else name
        return f"{name} is not installed; pip install {wanted}", 1
    if isinstance(error, OSError | MemoryError):
        return explained(error), 1
    if isinstance(error, Terminated):
        return "terminated; the same command continues from here", 143
    return "interrupted; the same command continues from here", 130


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:
    raise Terminated
