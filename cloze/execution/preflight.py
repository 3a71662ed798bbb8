"""The checked plan of a run: errors now that a later stage would report after hours.

In:  the configurations of a run and a machine.
Out: the run's `Plan`, to be shown or executed, or a `UsageError`. Only files named in the
     configuration are read.

Each rule is asked where it lives: contradictions within a configuration when it is parsed, those
between run and machine by the plan itself (flows/plan.py), and here those of training and of the
task families, whose modules import torch and are therefore imported only when asked.
"""

import json
from collections.abc import Sequence

from cloze.artifacts.filesystem import located
from cloze.artifacts.store import open_artifact
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.external_inputs import Digests, read_model_config
from cloze.flows.plan import Plan
from cloze.flows.stages import keyed_config
from cloze.model.config import DATASETS_PREFIX

POSITIONS = "max_position_embeddings"
"""The field of a model's config.json."""


def checked_plan(
    run: RunConfig,
    machine: MachineConfig,
    *,
    wanted: Sequence[str] = (),
    digests: Digests | None = None,
    options: Sequence[str] = (),
) -> Plan:
    """The plan of `run`, or of the `wanted` stages, none of which will refuse to start.

    `options`: those after `--`, for the engine of the last stage.
    """
    plan = Plan(run, machine, wanted=wanted, digests=digests)
    plan.check(options)
    if "pretrain" in plan.to_run:
        _check_pretraining(plan)
    if run.negatives and "negatives" in plan.to_run and "lexical" in run.negatives.by:
        from cloze.model.retrieval.lexical_index import analyzer

        analyzer(run.negatives.language)  # refuses a language that it does not know
    if "finetune" in plan.to_run:
        _check_tasks(run)
        if run.vocabulary.words and run.finetune.encoder:
            from cloze.model.hugging_face.source import read_shape

            _, tokenizer = read_shape(located(run.finetune.encoder))
            _check_tokenizer(plan, tokenizer, where=f"finetune.encoder = {run.finetune.encoder}")
    return plan


def _check_pretraining(plan: Plan) -> None:
    recipe, training = plan.run.pretrain, plan.machine.training
    # Other launchers run the program elsewhere, with packages that cannot be seen from here.
    if (training.wandb or training.mlflow) and plan.machine.jobs.launcher == "local":
        from cloze.model.training.telemetry import check_installed

        check_installed(training)
    if recipe.continue_from:
        from cloze.model.training.continuation import check_continuation

        finished = open_artifact(located(recipe.continue_from))
        check_continuation(finished, keyed_config(plan.stages["pretrain"]))
    if recipe.init:
        from cloze.model.hugging_face.source import read_shape, refuse_another_shape

        where = f"pretrain.init = {recipe.init}"
        shape, tokenizer = read_shape(located(recipe.init))
        refuse_another_shape(shape, plan.run.encoder, where=where)
        _check_tokenizer(plan, tokenizer, where=where)


def _check_tokenizer(plan: Plan, tokenizer: SubwordTokenizer, *, where: str) -> None:
    """Check an initial encoder's tokenizer, unless the run's is not known yet."""
    from cloze.model.hugging_face.source import refuse_another_tokenizer

    run = plan.run
    # The run's tokenizer as far as it is known: from a finished stage or a given file. One that it
    # would train itself is never the encoder's.
    made = plan.finished.get("vocabulary")
    if made and not run.vocabulary.words:  # with words, what they are added to is compared
        digest = made.manifest.statistics["tokenizer_digest"]
    elif given := plan.given_vocabulary():
        digest = given.digest
    elif run.vocabulary.path:
        return
    else:
        digest = ""
    refuse_another_tokenizer(tokenizer.digest, digest, where=where)


def _check_tasks(run: RunConfig) -> None:
    """Check every task's files and metrics, and that the encoder has enough positions."""
    encoder, tasks = run.finetune.encoder, run.finetune.tasks
    if encoder:
        try:
            positions = int(json.loads(read_model_config(encoder))[POSITIONS])
        except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
            positions = 0  # config.json lacks the field
        for task in tasks if positions > 0 else ():
            task.check_positions(positions)
    own = []
    # Only files of one's own; data sets by name would be downloaded here.
    for task in tasks:
        files = (task.train, task.dev, task.test, task.weights, *task.more.values())
        if task.train and not any(file.startswith(DATASETS_PREFIX) for file in files):
            own.append(task)
    if own:
        from cloze.model.tasks.problems import check_tables, for_all

        for_all(own, lambda task: check_tables(task, choice=run.finetune.choice_for(task)))
