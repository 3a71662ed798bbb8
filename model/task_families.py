"""The families of tasks by their `kind`: what configurations and plans know of each.

In:  nothing; no framework is imported, and a family's own module only when its data is read.
Out: `TASK_FAMILIES`. To add a family, write a subclass of `Problem` (model/tasks/base.py) in a
     module of its own and name it here. Everything else about it is an attribute or method of it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskFamily:
    """A registration: where the family is, and what is decided before its module is imported."""

    problem: str
    """Its subclass of `Problem`, as `module:name`."""

    metrics: tuple[str, ...] = ()
    """The metrics that a task can configure, where these do not depend on its data; empty: they
    are checked when that is read."""

    settings: tuple[str, ...] = ()
    """Settings of a task that only some families know. Others refuse them, since a setting that is
    not followed would be taken for one that made no difference."""

    is_chosen: bool = False
    """Whether `[finetune.choose]` compares its `Problem.approaches`."""

    ranks: bool = False
    """Whether rows are queries with passages, to which `[negatives]` applies."""

    compares_vectors: bool = False
    """Whether the encoder's own vectors are trained, without a head: `Problem.reads` is vectors."""

    parts: str = ""
    """The column that lists the parts of an example that are predicted one by one (a sentence's
    words), which a file may have one a line; empty: an example has one prediction."""

    @property
    def reranks(self) -> bool:
        """Whether every passage is read together with its query."""
        return self.ranks and not self.compares_vectors


TASK_FAMILIES: dict[str, TaskFamily] = {
    "classification": TaskFamily(
        "cloze.model.tasks.classification:Classification",
        settings=("class_weights",),
        is_chosen=True,
    ),
    "pair_classification": TaskFamily(
        "cloze.model.tasks.classification:PairClassification",
        settings=("class_weights", "compare_texts"),
        is_chosen=True,
    ),
    "multi_label_classification": TaskFamily(
        "cloze.model.tasks.classification:MultiLabel",
        # Accuracy requires all labels of a text to be correct.
        metrics=("f1_micro", "f1_macro", "accuracy"),
        settings=("class_weights", "compare_texts", "label_separator", "threshold", "thresholds"),
        is_chosen=True,
    ),
    "regression": TaskFamily(
        "cloze.model.tasks.classification:Regression", settings=("compare_texts",), is_chosen=True
    ),
    "tagging": TaskFamily(
        "cloze.model.tasks.tagging:Tagging", settings=("document_context",), parts="words"
    ),
    "span": TaskFamily("cloze.model.tasks.span:Spans", settings=("span",)),
    "multiple_choice": TaskFamily("cloze.model.tasks.multiple_choice:MultipleChoice"),
    "retrieval": TaskFamily(
        "cloze.model.tasks.retrieval:Retrieval",
        settings=("retrieval", "collection"),
        ranks=True,
        compares_vectors=True,
    ),
    "reranking": TaskFamily(
        "cloze.model.tasks.reranking:Reranking", settings=("reranking", "collection"), ranks=True
    ),
}

RANKING_KINDS = tuple(kind for kind, family in TASK_FAMILIES.items() if family.ranks)
