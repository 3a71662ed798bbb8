"""`cloze prepare`, `vocabulary`, `tokens`, …: the chain up to one stage, without Prefect.

In:  a configuration; options for the engine after `--`.
Out: the finished artifact. What comes before it is made as well, unless it is there already.
"""

from collections.abc import Callable

from artifacts.errors import UsageError
from cloze.answer import Answer
from cloze.execution.console import watching
from cloze.options import WANTED, ConfigPath, EngineOption, Wanted
from flows.executor import execute
from flows.stages import PREPARE

StageCommand = Callable[..., Answer]


def _command(*stages: str) -> StageCommand:
    """A command that makes `stages`."""

    def command(config: ConfigPath, /, *options: EngineOption, wanted: Wanted = WANTED) -> Answer:
        """Make one stage of `config`."""
        _refuse_other_words(options)
        run, machine = wanted.run(config), wanted.machine()
        with watching():
            record = execute(run, machine, wanted=stages, options=options)
        made = {stage: record.stages[stage] for stage in stages}
        data = {stage: found.model_dump(mode="json") for stage, found in made.items()}
        lines = [f"{stage}: {found.directory}" for stage, found in made.items()]
        return Answer(data, "\n".join(lines), wanted.json)

    return command


def _refuse_other_words(options: tuple[str, ...]) -> None:
    """An engine would pass over a word without a dash, and so would a stage that is reused."""
    if options and not options[0].startswith("-"):
        raise UsageError(
            f"{options[0]}: options for the engine begin with a dash; "
            "to change a field of the configuration write --set KEY=VALUE"
        )


prepare = _command(*PREPARE)
dedup = _command("dedup")
vocabulary = _command("vocabulary")
tokens = _command("tokens")
examples = _command("examples")
pretrain = _command("pretrain")
finetune = _command("finetune")
evaluate = _command("evaluate")
report = _command("report")
