"""What earlier stages of a run have made for reading its documents.

In:  a stage and its table.
Out: the stage, whose cleaning names the artifacts among the table's inputs.
"""

from typing import TypeVar

from cloze.artifacts.stage import StageTable
from cloze.pipeline.config.settings import (
    DedupStage,
    PairsStage,
    ScoresStage,
    TokensStage,
    VocabularyStage,
)

ROLES = ("boilerplate", "drop_list", "scores")
"""Roles of inputs, which are the names of settings in `[cleaning]`, too."""

Stage = TypeVar("Stage", ScoresStage, DedupStage, VocabularyStage, TokensStage, PairsStage)


def with_made_lists(stage: Stage, table: StageTable) -> Stage:
    """The stage with the lines, documents and scores that this run has listed, if it has any."""
    given = [role for role in ROLES if role in table.inputs and table.inputs[role].path]
    made = {role: table.input_path(role) for role in given}
    cleaning = stage.cleaning.model_copy(update=made)
    return stage.model_copy(update={"cleaning": cleaning})
