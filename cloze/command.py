"""The `cloze` command: subcommands, help, errors, exit codes.

In:  the command line.
Out: one result on standard output; everything else on standard error.

Exit codes: 0 success, 1 failure, 2 usage or configuration error, 130 interrupted, 143 terminated.
A subcommand's module is imported only when it runs. A user's mistake never produces a traceback.
"""

import gc
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter

from cloze.answer import Answer, print_lines
from cloze.artifacts.errors import ClozeError, UsageError, explained, is_panic
from cloze.artifacts.filesystem import UNDECODABLE
from cloze.artifacts.progress import say
from cloze.artifacts.runtime.program import Terminated, stops_raising

OUR_PACKAGES = ("cloze",)

EXTRA_WITH = {
    **dict.fromkeys(("apache_beam", "charset_normalizer", "zstandard"), "pipeline"),
    **dict.fromkeys(("deepspeed", "numpy", "safetensors", "scipy", "sklearn", "torch"), "model"),
    **dict.fromkeys(("Stemmer", "bm25s"), "model"),
    **dict.fromkeys(("jinja2", "matplotlib", "prefect"), "flows"),
    **dict.fromkeys(("onnx", "onnxruntime", "onnxscript", "transformers"), "onnx"),
    "gcsfs": "gs",
    "s3fs": "s3",
    "usearch": "index",
    "pycld2": "language",
    **dict.fromkeys(("resiliparse", "warcio"), "web"),
}
"""The extra of the distribution that installs each module."""

STAGE = "cloze.execution.single_stage"
COMMANDS = {
    "init": (
        "cloze.init.configuration:init",
        "Inspect a corpus and write a complete configuration for it.",
        "cloze init ~/documents --output documents.toml",
    ),
    "adapt": (
        "cloze.execution.adaptation:adapt",
        "Continue training an encoder on a folder of documents; compare it before and after.",
        "cloze adapt demo ~/documents --minutes 10",
    ),
    "distill": (
        "cloze.execution.distillation:distill",
        "Make a smaller encoder that learns from a larger one on a folder.",
        "cloze distill MODEL ~/documents --layers 3",
    ),
    "run": (
        "cloze.execution.run:run",
        "Run every stage from documents to report; existing artifacts are reused.",
        "cloze run configs/demo.toml --set pretrain.steps=500",
    ),
    "plan": (
        "cloze.execution.planning:plan",
        "Show which stages a run would reuse or execute, why, and the time, disk and cost.",
        "cloze plan configs/wikipedia_books.toml --gigabytes 16",
    ),
    "prepare": (
        f"{STAGE}:prepare",
        "Prepare the training data: vocabulary, tokens, examples.",
        "cloze prepare configs/text_folder.toml --set corpus.sources.0.path=~/documents",
    ),
    "boilerplate": (
        f"{STAGE}:boilerplate",
        "List lines that recur in many documents, which are removed before anything else.",
        "cloze boilerplate mine.toml --set corpus.sources.0.boilerplate={}",
    ),
    "scores": (
        f"{STAGE}:scores",
        "Score the quality of every document, by which cleaning.keep drops some.",
        "cloze scores mine.toml --set quality.labelled=labelled.jsonl",
    ),
    "dedup": (
        f"{STAGE}:dedup",
        "Find near-duplicates and overlaps with evaluation sets, which `tokens` then drops.",
        "cloze dedup mine.toml --set dedup.near_duplicates.threshold=0.8",
    ),
    "vocabulary": (
        f"{STAGE}:vocabulary",
        "Train a WordPiece vocabulary on the corpus.",
        "cloze vocabulary configs/demo.toml --set vocabulary.size=4096",
    ),
    "tokens": (
        f"{STAGE}:tokens",
        "Clean, deduplicate and tokenise the corpus. Options for Beam follow --.",
        "cloze tokens configs/demo.toml --on machine.toml -- --temp_location=gs://bucket/temp",
    ),
    "examples": (
        f"{STAGE}:examples",
        "Make masked training examples from tokens. Options for Beam follow --.",
        "cloze examples configs/demo.toml --set examples.masking.masked_lm_prob=0.2",
    ),
    "pretrain": (
        f"{STAGE}:pretrain",
        "Pre-train the encoder. Options for DeepSpeed's launcher follow --.",
        "cloze pretrain configs/demo.toml -- --num_accelerators 2 --bind_cores_to_rank",
    ),
    "finetune": (
        f"{STAGE}:finetune",
        "Fine-tune the encoder on every task with every seed.",
        "cloze finetune configs/demo.toml --set finetune.seeds=[0,1]",
    ),
    "evaluate": (
        f"{STAGE}:evaluate",
        "Evaluate the encoder and its fine-tuned tasks against baselines.",
        "cloze evaluate configs/demo.toml",
    ),
    "report": (
        f"{STAGE}:report",
        "Write the report of a run.",
        "cloze report configs/demo.toml --set report.show_text=false",
    ),
    "ablations": (
        "cloze.paper.ablations:ablations",
        "Repeat the paper's ablations (objective, size, masking) at the scale of a run.",
        "cloze ablations configs/demo.toml --table objective --table masking",
    ),
    "inspect": (
        "cloze.inspection.inspect_artifact:inspect",
        "Show an artifact: its statistics and its first documents or examples as text.",
        "cloze inspect demo/examples --rows 3",
    ),
    "documents": (
        "cloze.inspection.corpus_export:documents",
        "Write the documents that a run kept, as Parquet or JSON lines, with a card.",
        "cloze documents demo kept --format jsonl",
    ),
    "fill-mask": (
        "cloze.inference.prediction:fill_mask",
        "Predict the tokens behind every [MASK] of a text.",
        "cloze fill-mask demo 'numpy.zeros returns a new [MASK] of given shape.'",
    ),
    "predict": (
        "cloze.inference.prediction:predict",
        "Apply a fine-tuned model to texts, JSON lines or a task file.",
        "cloze predict demo --task tagging 'The parameter n : int or None'",
    ),
    "label": (
        "cloze.inference.labelling:label",
        "Choose the rows of a table to label next, and merge the labels that come back.",
        "cloze label texts.csv --from MODEL --next 50 --output next.csv",
    ),
    "embed": (
        "cloze.inference.vectors:embed",
        "Embed texts: one vector per text.",
        "cloze embed demo --output vectors.npy < texts.txt",
    ),
    "search": (
        "cloze.inference.search:search",
        "Find the passages of a folder that best match a question; evaluate it on yours.",
        "cloze search demo ~/documents 'Who owns the garden?'",
    ),
    "submissions": (
        "cloze.paper.submissions:submissions",
        "Collect predictions for unlabelled test files in the official servers' formats.",
        "cloze submissions glue glue-submission",
    ),
    "export": (
        "cloze.inference.exchange:export_model",
        "Export a trained encoder or task model in Hugging Face's layout, with a model card.",
        "cloze export demo my-encoder",
    ),
    "import": (
        "cloze.inference.exchange:import_model",
        "Import a model in Hugging Face's layout, to pre-train, fine-tune or evaluate it.",
        "cloze import bert-base-uncased",
    ),
    "runs": (
        "cloze.inspection.runs:runs",
        "List the runs of the workspace.",
        "cloze runs --workspace runs",
    ),
    "show": (
        "cloze.inspection.runs:show",
        "Show one run: its stages, their time and memory, its figures.",
        "cloze show demo",
    ),
    "compare": (
        "cloze.inspection.compare:compare",
        "Compare runs: differences in configuration, and figures side by side.",
        "cloze compare demo demo-deeper",
    ),
    "trace": (
        "cloze.inspection.trace:trace",
        "Trace a score back to a document: score, model, shard, example, tokens, text.",
        "cloze trace demo --row 17",
    ),
    "gc": (
        "cloze.inspection.runs:gc",
        "List artifacts that no run refers to; delete them with --delete.",
        "cloze gc --delete",
    ),
    "serve": (
        "cloze.execution.run:serve",
        "Serve the flows: execute runs triggered from a Prefect server or its UI.",
        "cloze serve configs/demo.toml --port 4200",
    ),
    "doctor": (
        "cloze.inspection.doctor:doctor",
        "Check this machine: what is installed, what is missing, and the consequences.",
        "cloze doctor",
    ),
}
"""The subcommands, in the order of the help: `module:function`, imported on use; what it does; an
example."""


def main() -> NoReturn:
    """Entry point."""
    # reopen closed streams: after `2>&-` the next file opened would become standard error
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)  # a child's own streams must not be missing either
            setattr(sys, name, open(number, mode))  # noqa: SIM115 - for the process's lifetime
        elif mode == "w":
            getattr(sys, name).reconfigure(errors="backslashreplace")  # LC_ALL=en_US.ISO-8859-1
    sys.exit(exit_code(sys.argv[1:]))


def exit_code(arguments: list[str]) -> int:
    """Run the command in `arguments`; an error becomes one line and an exit code.

    Exceptions other than those handled here are bugs, and keep their traceback.
    """
    with stops_raising() as stopped:
        return _exit_code(arguments, stopped)


def _exit_code(arguments: list[str], stopped: Callable[[], BaseException | None]) -> int:
    if not os.environ.get("COLUMNS", "80").strip("0"):
        del os.environ["COLUMNS"]  # a help without width would be laid out for ever
    try:
        os.getcwd()
    except FileNotFoundError:
        say("error: the working directory has been deleted; cd to another one")
        return 1
    # Python passes bytes that it cannot decode as lone surrogates, which fail later, when they are
    # written.
    if odd := next(filter(UNDECODABLE.search, [os.getcwd(), *arguments]), ""):
        say(
            f"error: {ascii(odd)[1:-1]}: not valid {sys.getfilesystemencoding()}, the encoding of "
            "file names here; rename it, or set PYTHONUTF8=1 if it is UTF-8"
        )
        return 2
    try:
        answer = run_command(arguments)
        if not isinstance(answer, Answer):
            return 0
        print_lines([str(answer)])
    except BaseException as error:
        message, code = failure(stopped() or error)
    else:
        return answer.exit_code
    say(f"error: {message}" if code in (1, 2) else message)
    if "--json" in arguments:
        with suppress(OSError):
            print_lines([json.dumps({"error": message, "exit_code": code})])
    return code


def run_command(arguments: list[str]) -> object:
    """Parse `arguments`, and run the subcommand that they name; what it returns."""
    app = application()
    require_values(app, arguments)
    # This imports the subcommand's module, and with it most of what it needs.
    command, bound, _ = app.parse_args(arguments, print_error=False, exit_on_error=False)
    if not gc.isenabled():  # as cloze/__main__.py left it; in other programs it is not ours
        gc.freeze()  # what has been imported stays until the end
        gc.enable()
    result: object = command(*bound.args, **bound.kwargs)
    return result


def failure(error: BaseException) -> tuple[str, int]:
    """Message and exit code of an error that is no bug; any other is raised again."""
    if isinstance(error, CycloptsError):
        return " ".join(str(error).split()), 2
    if isinstance(error, ClozeError):
        return str(error), error.exit_code
    if isinstance(error, ImportError):
        return missing_package(error), 1
    # Where a class is made, Python wraps a signal that arrives meanwhile.
    arrived = error.__cause__ if isinstance(error, RuntimeError) else error
    if isinstance(arrived, Terminated):
        return "terminated; run the same command to resume", 143
    if isinstance(arrived, KeyboardInterrupt):
        return "interrupted; run the same command to resume", 130
    # A panic in Rust is no `Exception`.
    if isinstance(error, OSError | MemoryError) or is_panic(error):
        return explained(error), 1
    raise error


def application() -> App:
    """The command with its subcommands."""
    app = App(
        name="cloze",
        help="From a folder of documents to an evaluated BERT encoder.",
        help_flags=("--help", "-h"),
        suppress_keyboard_interrupt=False,
        # no option has a negative form, and an empty default says nothing
        default_parameter=Parameter(
            negative="", show_default=lambda value: str(value) if value else None
        ),
    )
    for position, (name, (where, purpose, example)) in enumerate(COMMANDS.items()):
        text = f"{purpose}\n\nExample: `{example}`"
        app.command(where, name=name, help=text, sort_key=position)
    return app


def require_values(app: App, arguments: Sequence[str]) -> None:
    """Refuse an option with an empty value, which a shell makes of a variable that is not set.

    It would otherwise be as if the option had not been given.
    """
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for option, value in pairwise([*options, "the end"]):
        name, _, own = option.partition("=")
        if name.startswith("--") and (own == "" if "=" in option else value == ""):
            known = app[arguments[0]].assemble_argument_collection()
            if any(name in one.names and one.token_count()[0] for one in known):
                raise UsageError(f"{name}: its value is empty; name something, or leave it out")


def missing_package(error: ImportError) -> str:
    """How to install the missing package; an import error within Cloze itself is raised again."""
    cause = error.__cause__ or error
    name = (getattr(cause, "name", None) or "").partition(".")[0]
    if not isinstance(cause, ModuleNotFoundError) or name in OUR_PACKAGES:
        raise error
    wanted = f"'cloze-encoder[{EXTRA_WITH[name]}]'" if name in EXTRA_WITH else name
    return f"{name} is not installed; pip install {wanted}"
