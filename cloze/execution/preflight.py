"""Checks before the first stage starts, for errors that a later stage would report after hours.

In:  a valid configuration of a run, a machine's, and the planned stages.
Out: nothing, or a `UsageError`. Only files named in the configuration are read.

Contradictions within the configuration are reported when it is parsed (flows/config.py,
model/config.py, pipeline/config/settings.py); the checks here need the machine or the files.
"""

import json
import resource
from collections.abc import Sequence

from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import is_local, located
from cloze.artifacts.store import open_artifact
from cloze.artifacts.tokenizer import read_vocabulary
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.external_inputs import read_model_config
from cloze.flows.plan import PlannedStage
from cloze.flows.stages import chain, keyed_config
from cloze.model.config import DATASETS_PREFIX, MEASURING

LEAST_ADDRESS_SPACE = 4 << 30
"""Bytes. With 2 GiB Beam cannot start all its threads, and those that did start wait for the rest;
3 GiB suffice for preparation."""

POSITIONS = "max_position_embeddings"
"""The field of a model's config.json."""


def refuse_contradictions(
    run: RunConfig, machine: MachineConfig, planned: Sequence[PlannedStage]
) -> None:
    """Report now any error that one of the stages to run would report later."""
    stages = {stage.stage for stage in planned if stage.action == "run"}
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if resource.RLIM_INFINITY != allowed < LEAST_ADDRESS_SPACE:
        raise UsageError(
            f"ulimit -v allows {allowed / 1e9:.1f} GB of address space, of which threads reserve "
            f"more than they use; set it to {LEAST_ADDRESS_SPACE >> 10} (kB) or more, or unlimited"
        )
    path = run.vocabulary.path
    if "vocabulary" in stages and path and is_local(path):
        try:
            read_vocabulary(
                located(path),
                lowercase=run.vocabulary.lowercase,
                strip_accents=run.vocabulary.strip_accents,
            )
        except (UsageError, OSError) as error:
            raise UsageError(
                f"vocabulary.path = {path}: {error}; expected BERT's vocab.txt or tokenizer.json"
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
            "muon needs whole matrices, which ZeRO partitions; set zero_stage = 0, or use adamw"
        )
    if optimizer in MEASURING and training.offload_optimizer:
        raise UsageError(
            f"pretrain.optimizer.name = {optimizer} with training.offload_optimizer: its update "
            "reduces over ranks and needs the masters on the GPU; remove offload_optimizer"
        )
    if training.offload_optimizer and not training.zero_stage:
        raise UsageError(
            "training.offload_optimizer with training.zero_stage = 0: only ZeRO 1 to 3 can offload "
            "the optimizer's state; set zero_stage = 1, 2 or 3"
        )
    if 0 < training.token_budget < longest:
        raise UsageError(
            f"training.token_budget = {training.token_budget}, but pretrain.phases has sequences "
            f"of {longest} tokens; raise it to at least that, or set it to 0"
        )
    if (training.wandb or training.mlflow) and machine.jobs.launcher == "local":
        from cloze.model.training.telemetry import check_installed

        check_installed(training)
    if run.pretrain.continue_from:  # imported here because it imports torch
        from cloze.model.training.continuation import check_continuation

        (stage,) = (one for one in chain(run) if one.name == "pretrain")
        finished = open_artifact(located(run.pretrain.continue_from))
        check_continuation(finished, keyed_config(stage))


def _check_initial_encoder(run: RunConfig, vocabulary: str) -> None:
    """Check the initial encoder's shape and tokenizer; `vocabulary`: the artifact, if reused."""
    from cloze.model.hugging_face.source import read_shape, refuse_another_shape  # imports torch

    where, path = f"pretrain.init = {run.pretrain.init}", run.vocabulary.path
    shape, tokenizer = read_shape(located(run.pretrain.init))
    refuse_another_shape(shape, run.encoder, where=where)
    if vocabulary:
        digest = open_artifact(vocabulary).manifest.statistics["tokenizer_digest"]
    elif path and is_local(path):
        digest = read_vocabulary(
            located(path),
            lowercase=run.vocabulary.lowercase,
            strip_accents=run.vocabulary.strip_accents,
        ).digest
    elif path:
        return
    else:
        digest = ""
    if digest != tokenizer.digest:
        what = f"the run's is {digest[:12]}" if digest else "the run would train its own"
        raise UsageError(
            f"{where}: its tokenizer is {tokenizer.digest[:12]}, {what}; set vocabulary.path to "
            "its tokenizer.json or vocab.txt (`cloze init FOLDER --from MODEL` does so)"
        )


def _check_tasks(run: RunConfig) -> None:
    """Check every task's files and metrics, and that the encoder has enough positions."""
    encoder, tasks = run.finetune.encoder, run.finetune.tasks
    if encoder and tasks:
        try:
            positions = int(json.loads(read_model_config(located(encoder)))[POSITIONS])
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            positions = 0  # config.json lacks the field
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
    if own:  # imported here because it imports torch
        from cloze.model.tasks.problems import check_tables, for_all

        for_all(own, check_tables)
