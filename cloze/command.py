"""The `cloze` command: verbs, help, errors, exit codes.

In:  the command line.
Out: one result on standard output; everything else on standard error.

Exit codes: 0 done, 1 failed, 2 wrong use or configuration, 130 interrupted, 143 terminated. The
module of a verb is imported when the verb is used. A person's mistake never becomes a traceback.
"""

import json
import signal
import sys
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from cyclopts import App, CycloptsError

from artifacts.errors import ClozeError
from artifacts.program import Terminated
from artifacts.progress import say
from cloze.answer import Answer, put_lines

OUR_PACKAGES = ("artifacts", "pipeline", "model", "flows", "cloze")

EXTRA_WITH = {
    **dict.fromkeys(("apache_beam", "datasketch", "zstandard"), "pipeline"),
    **dict.fromkeys(("deepspeed", "numpy", "safetensors", "scipy", "sklearn", "torch"), "model"),
    **dict.fromkeys(("jinja2", "matplotlib", "prefect"), "flows"),
    "gcsfs": "gs",
    "s3fs": "s3",
}
"""The extra of ours that a module comes with."""


@dataclass(frozen=True)
class Verb:
    """One command."""

    where: str
    """`module:function`; imported when it is used."""
    purpose: str
    """What it is for."""
    example: str
    """A command line that works."""


STAGES = "cloze.execution.stages"
COMMANDS = {
    "init": Verb(
        "cloze.init.command:init",
        "Look at a corpus and write a complete configuration for it.",
        "cloze init ~/documents --output documents.toml",
    ),
    "run": Verb(
        "cloze.execution.run:run",
        "Work off the whole chain, from documents to report; what is there already is reused.",
        "cloze run configs/demo.toml --set pretrain.steps=500",
    ),
    "plan": Verb(
        "cloze.execution.plan:plan",
        "Say what a run would reuse, what it would make and why, and what that would take.",
        "cloze plan configs/wikipedia_books.toml --gigabytes 16",
    ),
    "prepare": Verb(
        f"{STAGES}:prepare",
        "Turn documents into examples: vocabulary, tokens, examples.",
        "cloze prepare configs/text_folder.toml --set corpus.sources.0.path=~/documents",
    ),
    "dedup": Verb(
        f"{STAGES}:dedup",
        "List near-duplicates and overlaps with evaluation sets, to be dropped.",
        "cloze dedup mine.toml --set dedup.near_duplicates.threshold=0.8",
    ),
    "vocabulary": Verb(
        f"{STAGES}:vocabulary",
        "Learn a WordPiece vocabulary from the corpus.",
        "cloze vocabulary configs/demo.toml --set vocabulary.size=4096",
    ),
    "tokens": Verb(
        f"{STAGES}:tokens",
        "Clean, deduplicate and tokenise the corpus. Options for Beam follow after --.",
        "cloze tokens configs/demo.toml --on machine.toml -- --temp_location=gs://bucket/temp",
    ),
    "examples": Verb(
        f"{STAGES}:examples",
        "Make masked examples from tokens. Options for Beam follow after --.",
        "cloze examples configs/demo.toml --set examples.masking.masked_lm_prob=0.2",
    ),
    "pretrain": Verb(
        f"{STAGES}:pretrain",
        "Pre-train the encoder. Options for DeepSpeed's launcher follow after --.",
        "cloze pretrain configs/demo.toml -- --num_accelerators 2 --bind_cores_to_rank",
    ),
    "finetune": Verb(
        f"{STAGES}:finetune",
        "Fine-tune the encoder on every task, with every seed, in one launch.",
        "cloze finetune configs/demo.toml --set finetune.seeds=[0,1]",
    ),
    "evaluate": Verb(
        f"{STAGES}:evaluate",
        "Judge the encoder on held-out examples, beside its baselines.",
        "cloze evaluate configs/demo.toml",
    ),
    "report": Verb(
        f"{STAGES}:report",
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
        "Look into an artifact: its figures, and its first documents or examples as text.",
        "cloze inspect demo/examples --rows 3",
    ),
    "fill-mask": Verb(
        "cloze.inference.fill_mask:fill_mask",
        "Fill every [MASK] of a text with the likeliest words.",
        "cloze fill-mask demo 'numpy.zeros returns a new [MASK] of given shape.'",
    ),
    "predict": Verb(
        "cloze.inference.predict:predict",
        "Let a fine-tuned model judge texts, JSON lines or a file.",
        "cloze predict demo --task sentiment 'A film one remembers.'",
    ),
    "embed": Verb(
        "cloze.inference.embed:embed",
        "Turn texts into vectors, one a text.",
        "cloze embed demo --output vectors.npy < texts.txt",
    ),
    "export": Verb(
        "cloze.inference.export:export",
        "Write a trained encoder in Hugging Face's layout, with a model card.",
        "cloze export demo my-encoder",
    ),
    "import": Verb(
        "cloze.inference.import_model:import_model",
        "Take a model in Hugging Face's layout into the workspace, to train on or to judge.",
        "cloze import bert-base-uncased",
    ),
    "runs": Verb(
        "cloze.inspection.runs:runs",
        "List the runs of the workspace.",
        "cloze runs --workspace runs",
    ),
    "show": Verb(
        "cloze.inspection.show:show",
        "Show one run: its stages, what they cost, its figures.",
        "cloze show demo",
    ),
    "compare": Verb(
        "cloze.inspection.compare:compare",
        "Compare two runs: where their configurations differ, and their figures side by side.",
        "cloze compare demo demo-deeper",
    ),
    "trace": Verb(
        "cloze.inspection.trace:trace",
        "Trace a score down to a document: score, model, shard, example, tokens, text.",
        "cloze trace demo --row 17",
    ),
    "gc": Verb(
        "cloze.inspection.gc:gc",
        "List what no run names any more, and remove it on demand.",
        "cloze gc --delete",
    ),
    "serve": Verb(
        "cloze.execution.serve:serve",
        "Wait for runs that are triggered from a Prefect server and its pages.",
        "cloze serve configs/demo.toml --port 4200",
    ),
    "doctor": Verb(
        "cloze.inspection.doctor:doctor",
        "Look at this machine: what is there, what is missing, and what that means.",
        "cloze doctor",
    ),
}
"""The verbs, in the order in which one meets them."""


def main() -> NoReturn:
    """Entry point."""
    sys.exit(exit_code(sys.argv[1:]))


def exit_code(arguments: list[str]) -> int:
    """Do what `arguments` say; every outcome becomes at most one line and a code."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        answer = application()(
            arguments, result_action="return_value", print_error=False, exit_on_error=False
        )
    except (CycloptsError, ClozeError, ImportError, KeyboardInterrupt, Terminated) as error:
        message, code = _explained(error)
        return _refused(message, arguments, code=code)
    return _given(answer) if isinstance(answer, Answer) else 0


def application() -> App:
    """The command with its verbs."""
    app = App(
        name="cloze",
        help="From a folder of documents to an evaluated BERT encoder.",
        help_flags=("--help", "-h"),
        suppress_keyboard_interrupt=False,
    )
    for place, (name, verb) in enumerate(COMMANDS.items()):
        text = f"{verb.purpose}\n\nExample: `{verb.example}`"
        app.command(verb.where, name=name, help=text, sort_key=place)
    return app


def _given(answer: Answer) -> int:
    put_lines([str(answer)])
    return answer.exit_code


def _explained(error: BaseException) -> tuple[str, int]:
    """What to say about `error`, and the exit code."""
    if isinstance(error, CycloptsError):
        return " ".join(str(error).split()), 2
    if isinstance(error, ClozeError):
        return str(error), error.exit_code
    if isinstance(error, ImportError):
        return _missing_part(error), 1
    if isinstance(error, Terminated):
        return "terminated; the same command goes on from here", 143
    return "interrupted; the same command goes on from here", 130


def _missing_part(error: ImportError) -> str:
    """What to install, if a library is missing; a fault of our own is raised again."""
    cause = error.__cause__ or error
    name = (getattr(cause, "name", None) or "").partition(".")[0]
    if not isinstance(cause, ModuleNotFoundError) or name in OUR_PACKAGES:
        raise error
    wanted = f"'cloze[{EXTRA_WITH[name]}]'" if name in EXTRA_WITH else name
    return f"{name} is not installed; pip install {wanted}"


def _refused(message: str, arguments: list[str], *, code: int) -> int:
    say(f"error: {message}" if code in (1, 2) else message)
    if "--json" in arguments:
        print(json.dumps({"error": message, "exit_code": code}))
    return code


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:
    raise Terminated
