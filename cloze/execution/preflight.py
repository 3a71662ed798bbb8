"""Checks before the first stage starts, for what a later one would refuse hours later.

In:  a run's configuration, valid in itself, a machine's, and what is planned.
Out: nothing, or a `UsageError`. Only files that the configuration names are read.

What contradicts itself within one table or between two is refused when it is read (flows/config.py,
model/config.py, pipeline/config/settings.py); here are the checks that look at the machine or at
files.
"""

import json
import resource
from collections.abc import Sequence

from artifacts.errors import UsageError
from artifacts.filesystem import is_local, located
from artifacts.store import open_artifact
from artifacts.tokenizer import read_vocabulary
from flows.config import MachineConfig, RunConfig
from flows.external_inputs import read_model_config
from flows.plan import PlannedStage
from flows.stages import chain, keyed_config
from model.config import DATASETS_PREFIX, MEASURING

LEAST_ADDRESS_SPACE = 4 << 30
"""Bytes. With 2 GiB Beam's threads cannot all be started, and those that were wait for the others;
with 3 GiB preparation works."""

POSITIONS = "max_position_embeddings"
"""The field of a model's config.json."""


def refuse_contradictions(
    run: RunConfig, machine: MachineConfig, planned: Sequence[PlannedStage]
) -> None:
    """Refuse what one of the stages that are to run would refuse."""
    stages = {stage.stage for stage in planned if stage.action == "run"}
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if resource.RLIM_INFINITY != allowed < LEAST_ADDRESS_SPACE:
        raise UsageError(
            f"ulimit -v allows {allowed / 1e9:.1f} GB of address space, of which threads reserve "
            f"more than they use; allow {LEAST_ADDRESS_SPACE >> 10} (kB) or more, or unlimited"
        )
    path = run.vocabulary.path
    if "vocabulary" in stages and path and is_local(path):
        try:
            read_vocabulary(located(path), lowercase=run.vocabulary.lowercase)
        except (UsageError, OSError) as error:
            raise UsageError(
                f"vocabulary.path = {path}: {error}; expected a vocab.txt or tokenizer.json of "
                "BERT's"
            ) from None
    if "pretrain" in stages:
        _check_training(run, machine)
        if run.pretrain.init:
            made = next((stage.directory for stage in planned if stage.stage == "vocabulary"), "")
            _check_initial_encoder(run, made)
    if "finetune" in stages:
        _check_tasks(run)


def _check_training(run: RunConfig, machine: MachineConfig) -> None:
    training, longest = machine.training, max(p.max_seq_length for p in run.pretrain.phases)
    optimizer = run.pretrain.optimizer.name
    if optimizer == "muon" and training.zero_stage:
        raise UsageError(
            f"pretrain.optimizer.name = muon with training.zero_stage = {training.zero_stage}: "
            "muon needs whole matrices, which ZeRO cuts into slices; set zero_stage = 0, or use "
            "adamw"
        )
    if optimizer in MEASURING and training.offload_optimizer:
        raise UsageError(
            f"pretrain.optimizer.name = {optimizer} with training.offload_optimizer: sums over "
            "ranks in its update want the masters on the GPU; leave out offload_optimizer"
        )
    if training.offload_optimizer and not training.zero_stage:
        raise UsageError(
            "training.offload_optimizer with training.zero_stage = 0: only ZeRO 1 to 3 keep the "
            "optimizer's state apart; set zero_stage = 1, 2 or 3"
        )
    if 0 < training.token_budget < longest:
        raise UsageError(
            f"training.token_budget = {training.token_budget}, pretrain.phases asks for sequences "
            f"of {longest} tokens; raise it to at least that, or set it to 0"
        )
    if (training.wandb or training.mlflow) and machine.jobs.launcher == "local":
        from model.training.monitoring.telemetry import check_installed

        check_installed(training)
    if run.pretrain.continue_from:  # only now: it takes torch along
        from model.training.continuation import check_continuation

        (stage,) = (one for one in chain(run) if one.name == "pretrain")
        finished = open_artifact(located(run.pretrain.continue_from))
        check_continuation(finished, keyed_config(stage))


def _check_initial_encoder(run: RunConfig, vocabulary: str) -> None:
    """Shape and tokenizer of the encoder to begin from; `vocabulary`: its artifact, if reused."""
    from model.hugging_face.encoder_files import read_shape, refuse_another_shape  # takes torch

    where, path = f"pretrain.init = {run.pretrain.init}", run.vocabulary.path
    shape, tokenizer = read_shape(located(run.pretrain.init))
    refuse_another_shape(shape, run.encoder, where=where)
    if vocabulary:
        digest = open_artifact(vocabulary).manifest.statistics["tokenizer_digest"]
    elif path and is_local(path):
        digest = read_vocabulary(located(path), lowercase=run.vocabulary.lowercase).digest
    elif path:
        return
    else:
        digest = ""
    if digest != tokenizer.digest:
        what = f"the run's is {digest[:12]}" if digest else "the run would learn its own"
        raise UsageError(
            f"{where}: its tokenizer is {tokenizer.digest[:12]}, {what}; set vocabulary.path to "
            "its tokenizer.json or vocab.txt (`cloze init FOLDER --from MODEL` writes all of it)"
        )


def _check_tasks(run: RunConfig) -> None:
    """The columns of every task's files, and whether a finished encoder has room for its texts."""
    encoder, tasks = run.finetune.encoder, run.finetune.tasks
    if encoder and tasks:
        try:
            positions = int(json.loads(read_model_config(located(encoder)))[POSITIONS])
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            positions = 0  # its config.json does not say
        longest = max(tasks, key=lambda task: task.max_seq_length)
        if 0 < positions < longest.max_seq_length:
            raise UsageError(
                f"task {longest.name}: max_seq_length {longest.max_seq_length}, but {encoder} has "
                f"{positions} positions; set it to {positions} or less"
            )
    own = []
    for task in tasks:
        files = (task.train, task.dev, task.test, *task.more.values())
        if task.train and not any(file.startswith(DATASETS_PREFIX) for file in files):
            own.append(task)
    if own:  # only now: it takes torch along
        from model.tasks.problems import load_tables

        for task in own:
            load_tables(task)
