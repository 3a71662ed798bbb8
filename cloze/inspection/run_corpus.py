"""The corpus from which a run's tokens were made.

In:  the name of a run; its artifact `tokens`.
Out: the settings with which to read its corpus again; a `Survey` of it.
"""

from cloze.artifacts.errors import UsageError
from cloze.artifacts.store import Artifact
from cloze.flows.config import RunConfig
from cloze.flows.workspace import Workspace, list_runs, read_record, run_artifact
from cloze.pipeline.config.settings import TokensStage
from cloze.pipeline.survey.results import Survey
from cloze.pipeline.survey.survey import survey


def tokens_stage(space: Workspace, run: str, artifact: Artifact) -> TokensStage:
    """The settings with which `artifact` was made, with the places of its inputs."""
    record = read_record(space, run)
    config = RunConfig.model_validate(record.config)
    assert config.corpus  # the run has tokens
    cleaning = config.cleaning
    if "boilerplate" in artifact.manifest.inputs:
        lines = run_artifact(space, run, stage="boilerplate").directory
        cleaning = cleaning.model_copy(update={"boilerplate": lines})
    if "scores" in record.stages:
        scores = run_artifact(space, run, stage="scores").directory
        cleaning = cleaning.model_copy(update={"scores": scores})
    return TokensStage(seed=config.seed, corpus=config.corpus, cleaning=cleaning)


def survey_run(name: str, artifact: Artifact, space: Workspace) -> Survey:
    """Read the corpus of `RUN/tokens` again.

    Raises `UsageError` if `name` is a directory, which does not say where its corpus is.
    """
    run, _, _ = name.partition("/")
    if run not in list_runs(space) or run_artifact(space, run, stage="tokens") != artifact:
        raise UsageError(
            f"--page: {name} is the directory of an artifact, which does not know where its corpus "
            "is; name it as RUN/tokens"
        )
    dedup = RunConfig.model_validate(read_record(space, run).config).dedup
    drop_list = run_artifact(space, run, stage="dedup") if dedup.near_duplicates else None
    return survey(artifact, tokens_stage(space, run, artifact), run=run, drop_list=drop_list)
