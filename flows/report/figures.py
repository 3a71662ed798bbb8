"""The figures of a run: by name for lists and comparisons, and the main ones for a terminal.

In:  the `summary.json` of a run.
Out: `{"package mlm_loss": 3.02, "tagging f1": 0.71, …}`; at most seven lines for a terminal.
"""

from collections.abc import Iterable, Mapping

from pydantic import ValidationError

from cloze.artifacts import filesystem
from cloze.artifacts.digests import digest_of
from cloze.artifacts.results import SeedScores
from cloze.flows.report import wording
from cloze.flows.report.summary import Summary
from cloze.flows.report.units import duration, memory, nats, percent
from cloze.flows.workspace import SUMMARY_NAME, Workspace

ROLES = ("baseline", "random", "pretrained")

ERROR = " ±"
"""Suffix of the name of a figure's standard error over the seeds."""

Figures = dict[str, float]

MOST_LINES = 7
MOST_ALONE = 2
"""Tasks that have a line each."""

NAME_WIDTH = 15


def read_summary(workspace: Workspace, run: str) -> Summary | None:
    """The summary of a run; None if it has no report, or one by another version of Cloze."""
    path = filesystem.join(workspace.run_folder(run), SUMMARY_NAME)
    try:
        return Summary.model_validate_json(filesystem.read_bytes(path))
    except (FileNotFoundError, ValidationError):
        return None


def figures(summary: Summary, *, roles: tuple[str, ...] = ROLES) -> Figures:
    """The figures for comparing runs, the headline first; task scores of systems in `roles`."""
    found: Figures = {}
    for model in summary.language_model:
        found[f"{model.split} mlm_loss"] = model.mlm_loss
        found[f"{model.split} mlm_accuracy"] = model.mlm_accuracy
        if model.initial_mlm_loss is not None:
            found[f"{model.split} initial_mlm_loss"] = model.initial_mlm_loss
        if model.next_sentence_accuracy is not None:
            found[f"{model.split} nsp_accuracy"] = model.next_sentence_accuracy
    for task in summary.tasks:
        for system in (system for system in task.systems if system.role in roles):
            # On test if it has labels, else on dev.
            scores = (system.test or system.dev).get(task.metric)
            if scores is not None:
                name = f"{task.name} {system.name} {task.metric}"
                found[name] = scores.mean
                if scores.standard_error:  # not of one seed, or of equal ones
                    found[f"{name}{ERROR}"] = scores.standard_error
    if summary.pretraining and summary.pretraining.tokens:
        found["tokens seen"] = float(summary.pretraining.tokens)
    return found


def judged_apart(summaries: Mapping[str, Summary]) -> list[str]:
    """A warning if the runs' losses are on different held-out text."""
    evaluated_on = {}
    for run, summary in summaries.items():
        inputs = {step.stage: step.inputs for step in summary.steps}.get("evaluate", {})
        own = inputs.get("examples")
        # An input that the configuration names has the digest of a list of one.
        evaluated_on[run] = inputs.get("heldout") or (own and digest_of([own]))
    first, *others = evaluated_on or {"": None}
    # Those without a loss have nothing to compare.
    apart = [
        run for run in others if evaluated_on[run] and evaluated_on[run] != evaluated_on[first]
    ]
    if not apart or not evaluated_on[first]:
        return []
    return [
        f"{', '.join(apart)}: evaluated on other held-out examples than {first}, so losses and "
        "accuracies are not comparable; set evaluate.heldout_examples to give runs the same ones, "
        "or pretrain.seed (cloze run --seeds) to repeat training on the same data"
    ]


def terminal_lines(summary: Summary) -> list[str]:
    """The title and the main results, most important first."""
    facts: list[tuple[str, str]] = []
    model = summary.headline
    if init := wording.initial_encoder(summary):
        changed = wording.before_and_after(model)
        facts.append(("started from", f"{init}; {changed}" if changed else init))
    if general := wording.before_and_after(wording.general_text(summary)):
        facts.append(("general text", general))
    if model:
        accuracy, loss = percent(model.count_model_accuracy), nats(model.count_model_loss)
        where = f"on {wording.split_name(summary, model.split)} (n-gram baseline {accuracy})"
        entropy = nats(model.unigram_entropy)
        compared = f"(n-gram baseline {loss}, unigram entropy {entropy})"
        facts.append(("MLM accuracy", f"{percent(model.mlm_accuracy)} {where}"))
        facts.append(("MLM loss", f"{nats(model.mlm_loss)} {compared}"))
    if made := summary.distillation:
        facts.append(("student", wording.student_kept(made)))
        facts.append(("faster", wording.student_faster(made)))
        facts.append(("size", wording.student_size(made)))
    if found := wording.unjudged(summary):
        facts.append(("not evaluated", found))
    # Only so many lines are shown: more tasks than two share theirs.
    facts += wording.many_tasks(summary) if len(summary.tasks) > MOST_ALONE else []
    for task in summary.tasks if len(summary.tasks) <= MOST_ALONE else ():
        if kept := wording.kept_for(summary, task):
            facts.append(("kept", wording.kept_words(kept)))
            continue
        if found := wording.search_found(summary, task):
            facts.append(("search", found))
        split, metric = wording.shown_split(task), wording.metric_name(task.metric)
        ours = [system for system in task.systems if system.role == "pretrained"]
        scores = wording.scores_on(ours[0], split).get(task.metric) if ours else None
        own = f"{metric} {wording.spread_words(scores)} on {split}. " if scores else ""
        facts.append(
            (
                wording.task_words(task.name),
                f"{own}{wording.verdict_sentence(summary, task)}".rstrip(),
            )
        )
    if model and model.next_sentence_accuracy is not None:
        majority = percent(model.next_sentence_majority or 0.0)
        accuracy = percent(model.next_sentence_accuracy)
        facts.append(("NSP accuracy", f"{accuracy} (majority {majority})"))
    seconds = sum(step.seconds or 0.0 for step in summary.steps)
    if seconds:
        peak = max((step.peak_memory or 0 for step in summary.steps), default=0)
        facts.append(("cost", duration(seconds) + (f", peak {memory(peak)}" if peak else "")))
    lines = [f"  {name:<{NAME_WIDTH}} {fact}" for name, fact in facts]
    return [summary.title, *lines][:MOST_LINES]


def mean_figures(runs: Iterable[str], space: Workspace) -> dict[str, SeedScores]:
    """The figures of finished runs by name, with the value of every run."""
    summaries = (read_summary(space, run) for run in runs)
    return over_seeds(
        (name, value)
        for summary in summaries
        if summary
        for name, value in figures(summary, roles=("pretrained",)).items()
        if not name.endswith(ERROR)
    )


def over_seeds(found: Iterable[tuple[str, float]]) -> dict[str, SeedScores]:
    """The scores of each figure over the runs that have it, from (name, value) of every run."""
    values: dict[str, list[float]] = {}
    for name, value in found:
        values.setdefault(name, []).append(value)
    return {name: SeedScores.of(seeds) for name, seeds in values.items()}
