"""The wording of the report: names of splits and systems, verdicts, and opening sentences.

In:  parts of a `Summary`.
Out: plain text. Verdicts follow the evaluation's own rule (artifacts/results.py).
"""

import re
import statistics
from collections.abc import Mapping
from typing import NamedTuple

from cloze.artifacts.results import (
    GENERAL,
    TASK_SPLITS,
    UNTOUCHED,
    WIN_DIFFERENCE,
    Calibration,
    Candidate,
    Choice,
    Comparison,
    ErrorExample,
    LabelErrorCounts,
    LabelScore,
    LanguageModelScore,
    Measured,
    Outcome,
    SeedScores,
    SystemScore,
    TaskScore,
    plus_minus,
)
from cloze.artifacts.significance import MIN_SEEDS
from cloze.flows.report.summary import (
    Distillation,
    EncoderFacts,
    GridPoint,
    KeptEncoder,
    Summary,
)
from cloze.flows.report.units import (
    MINUS,
    duration,
    integer,
    nats,
    percent,
    plural,
    points,
    short,
    size,
)
from cloze.model.task_families import TASK_FAMILIES

SYSTEMS = {
    "random": "random initialisation",
    "pretrained": "pre-trained",
    "pretrained-ensemble": "pre-trained, ensemble of seeds",
    "majority": "majority class",
    "lookup": "look-up table",
    "word_overlap": "word overlap",
    "bm25": "BM25",
    UNTOUCHED: "encoder before training",
}

PREDICTORS = {"random": "untrained", "count": "n-gram baseline"}

METRICS = {
    "f1": "F1",
    "entity_f1": "entity F1",
    "matthews": "Matthews correlation",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "exact_match": "exact match",
    "balanced_accuracy": "balanced accuracy",
    "f1_macro": "macro F1",
    "f1_micro": "micro F1",
    "ndcg@10": "nDCG@10",
    "mrr@10": "MRR@10",
}


OUTCOMES = {
    "win": "ahead of {against}",
    "gain": "slightly ahead of {against}",
    "loss": "behind {against}",
    "none": "not clearly apart from {against}",
    "undecided": "no verdict, few or equal seeds",
}
"""Verdicts in a list of tasks."""


def split_name(summary: Summary, split: str) -> str:
    """The name of a held-out split in the text: `held-out package rich`."""
    if split == "heldout":
        return "held-out documents"
    if split == GENERAL:
        return "general text"
    sources = summary.corpus.sources if summary.corpus else ()
    named = ", ".join(source.what for source in sources if source.split == split)
    return f"held-out {split} {named}" if 0 < len(named) <= 24 else f"held-out {split}"


def system_name(name: str, task: TaskScore | None = None) -> str:
    """The name of a system in the text; an encoder that `task` compares with itself is adapted."""
    if name == "pretrained" and task and any(one.name == UNTOUCHED for one in task.systems):
        return "adapted"
    return SYSTEMS.get(name, name.replace("_", " "))


def task_name(name: str) -> str:
    """A task's name as a heading; with capitals, as in SST-2, it is an official one and stays."""
    words = task_words(name)
    return words if _is_official(name) else words.capitalize()


def task_words(name: str) -> str:
    """A task's name within a sentence."""
    words = name.replace("_", " ")
    return words if _is_official(name) else words.replace("-", " ")


def _is_official(name: str) -> bool:
    return any(letter.isupper() for letter in name)


def many_tasks(summary: Summary) -> list[tuple[str, str]]:
    """The scores of all tasks on one line, and their verdicts on another, as (name, fact)."""
    by_split: dict[str, list[str]] = {}
    by_outcome: dict[str, list[str]] = {}
    ahead = []
    for task in summary.tasks:
        split, name = shown_split(task), task_words(task.name)
        for system in (one for one in task.systems if one.role == "pretrained"):
            if scores := scores_on(system, split).get(task.metric):
                by_split.setdefault(split, []).append(f"{name} {100 * scores.mean:.1f}")
                break
        if comparison := deciding_comparison(task):
            against = _against(comparison)
            words = OUTCOMES[comparison.outcome].format(against=against)
            by_outcome.setdefault(words, []).append(name)
        if better := better_baseline(summary, task):
            ahead.append(f"{better} on {name}")
    everyone = "; ".join(f"{', '.join(found)} on {split}" for split, found in by_split.items())
    verdicts = [f"{words}: {', '.join(names)}" for words, names in by_outcome.items()]
    verdicts += [f"better without an encoder: {', '.join(ahead)}"] if ahead else []
    facts = [(f"{len(summary.tasks)} tasks", everyone), ("verdicts", "; ".join(verdicts))]
    return [(name, fact) for name, fact in facts if fact]


def shape(encoder: EncoderFacts) -> str:
    """The encoder's architecture on one line."""
    size_ = f"{encoder.layers} layers × {encoder.hidden_size}, {encoder.heads} heads"
    # Presets of other families have the family in their name.
    name = encoder.preset if "BERT" in encoder.preset else f"BERT-{encoder.preset}"
    known = f"{name}: " if encoder.preset else ""
    counted = f", {short(encoder.parameters)} parameters" if encoder.parameters else ""
    return f"{known}{size_}, {integer(encoder.vocabulary_size)} word-pieces{counted}"


def lede(summary: Summary) -> list[str]:
    """The report's opening sentences, about the parts that the run has."""
    sentences = (
        _starting_point(summary),
        f"Kept: {kept_words(summary.kept)}." if summary.kept else "",
        f"Not evaluated: {found}." if (found := unjudged(summary)) else "",
        *(f"Search: {found}." for task in summary.tasks if (found := search_found(summary, task))),
        _heldout_quality(summary),
        _training_data(summary),
        _baselines_ahead(summary),
    )
    return [sentence for sentence in sentences if sentence]


def deciding_comparison(task: TaskScore) -> Comparison | None:
    """What a task is compared with first.

    The encoder as it was before this training, else random initialisation, else the strongest
    baseline.
    """
    by_name = {comparison.against: comparison for comparison in task.comparisons}
    # The strongest baseline leaves the smallest difference.
    strongest = min(by_name.values(), key=lambda c: c.difference, default=None)
    return by_name.get(UNTOUCHED) or by_name.get("random") or strongest


class Finding(NamedTuple):
    """What is said of a task first."""

    amount: str
    """The difference: `+5.3 ± 0.6 points`."""
    outcome: Outcome
    sentence: str


def finding(summary: Summary, task: TaskScore) -> Finding | None:
    """What `cloze adapt` decided by search, else the verdict on the deciding comparison, if any."""
    if kept := kept_for(summary, task):
        outcome: Outcome = "win" if kept.replaces else "none"
        amount = f"{points(kept.difference)} points"
        return Finding(amount, outcome, f"Kept: {kept_words(kept)}.")
    comparison = deciding_comparison(task)
    if comparison is None:
        return None
    sentence = verdict_sentence(summary, task)
    return Finding(in_points(comparison), comparison.outcome, sentence)


def short_finding(summary: Summary, task: TaskScore) -> str:
    """The sentence of `finding`; of what was kept, which stands above, its name."""
    if kept := kept_for(summary, task):
        return f"Kept: {candidate_name(kept.kept_share, kept.kept_terms)}."
    found = finding(summary, task)
    return found.sentence if found else ""


def unjudged(summary: Summary) -> str:
    """That nobody has compared an encoder with the one it was trained from, if so."""
    made_up = any(has_made_up_queries(summary, task) for task in summary.tasks)
    if summary.kept or not made_up:
        return ""
    return (
        "nobody has decided whether this encoder searches better than the one it was trained from; "
        "repeat `cloze adapt`, which does and keeps settings that were edited, or compare both by "
        "`cloze search --evaluate`"
    )


def kept_for(summary: Summary, task: TaskScore) -> KeptEncoder | None:
    """What `cloze adapt` decided, if this is the task that trained the encoder."""
    return summary.kept if is_search(task) else None


def is_search(task: TaskScore) -> bool:
    """Whether it trains the encoder's own vectors, with which `cloze search` ranks."""
    return TASK_FAMILIES[task.kind].compares_vectors


def kept_words(kept: KeptEncoder) -> str:
    """Which encoder was kept, and what it is worth."""
    # Three outcomes: nothing beats the original, something does for certain, or not for certain.
    if not (kept.share or kept.terms):
        return f"the original encoder, the best on {kept.chosen_by}"
    before, after = (100 * score for score in (kept.before, kept.before + kept.difference))
    gain = (
        f"nDCG@10 {before:.1f} → {after:.1f}, {points(kept.difference)} "
        f"[{points(kept.low)}, {points(kept.high)}] (99 %) on {kept.reported_by}"
    )
    if kept.later:
        later, low, high = map(points, kept.later)
        gain += f"; if their passages came after the terms' fit, {later} [{low}, {high}]"
    what = candidate_name(kept.share, kept.terms)
    if kept.words:
        what += f" with {kept.words:,} words added"
    if kept.replaces:
        return f"{what}, chosen on {kept.chosen_by}: {gain}"
    much = f" by {100 * kept.margin:.1f}" if kept.margin else ""
    return f"the original encoder; {what} is not better{much} for certain: {gain}"


def candidate_name(share: float, terms: float) -> str:
    """An encoder at some share of the way from the original weights to the trained ones."""
    names = {0.0: "the original encoder", 1.0: "the trained encoder"}
    name = names.get(share, f"{share:.0%} of the change")
    return f"{name} with term vectors × {terms:g}" if terms else name


def has_made_up_queries(summary: Summary, task: TaskScore) -> bool:
    """Whether the queries of the shown split are words of their own passages."""
    pairs, tuned = (summary.configuration.get(name) for name in ("pairs", "finetune"))
    if not isinstance(pairs, dict) or pairs.get("kind") != "spans" or not isinstance(tuned, dict):
        return False
    # A task may have files of its own, in which people may have asked.
    files = ("train", "folder", shown_split(task))
    tasks = tuned.get("tasks")
    return not any(
        one.get(file)
        for one in (tasks if isinstance(tasks, list) else ())
        for file in files
        if isinstance(one, dict) and one.get("name") == task.name
    )


def has_random(summary: Summary) -> bool:
    """Whether the same architecture was also trained from random weights."""
    return any(system.role == "random" for task in summary.tasks for system in task.systems)


def compared_with(summary: Summary) -> str:
    """What the section on fine-tuning compares the encoder with."""
    if has_random(summary):
        return (
            "the same architecture trained from random weights with the same data, seeds and recipe"
        )
    found = map(deciding_comparison, summary.tasks)
    itself = any(one is not None and one.against == UNTOUCHED for one in found)
    return f"{'itself before training and ' if itself else ''}baselines without an encoder"


def verdict_words(comparison: Comparison) -> str:
    """The verdict on pre-training, or on adapting an encoder, in one sentence."""
    against = _against(comparison)
    training = "Adapting" if comparison.against == UNTOUCHED else "Pre-training"
    amount = in_points(comparison, sign=False)
    margin = f"{100 * WIN_DIFFERENCE:.0f}-point margin"
    seeds = plural(comparison.seeds, "seed")
    few = comparison.seeds < MIN_SEEDS
    why = f"fewer than {MIN_SEEDS}" if few else "equal differences for all of them"
    p_value = comparison.corrected
    significance = "" if p_value is None else f" (p = {p_value:.2g})"
    return {
        "win": f"{training} wins: {amount} over {against}{significance}.",
        "gain": (
            f"A gain of {amount} over {against}{significance}, below the {margin} set in advance."
        ),
        "loss": f"{training} loses: {amount} below {against}{significance}.",
        "none": (f"No clear difference from {against}: {in_points(comparison)}{significance}."),
        "undecided": (
            f"{in_points(comparison)} against {against} with {seeds}: no verdict with "
            f"{why}; set finetune.seeds."
        ),
    }[comparison.outcome]


def _against(comparison: Comparison) -> str:
    """What an encoder is compared with, within a sentence."""
    article = "the " if comparison.against == UNTOUCHED else ""
    return f"{article}{system_name(comparison.against)}"


def verdict_sentence(summary: Summary, task: TaskScore) -> str:
    """The verdict, and the baseline without an encoder that does better than ours, if any."""
    comparison = deciding_comparison(task)
    if comparison is None:
        return ""
    better = better_baseline(summary, task)
    named = f" {better[:1].upper()}{better[1:]} does better." if better else ""
    return f"{verdict_words(comparison)}{named}"


def better_baseline(summary: Summary, task: TaskScore) -> str:
    """The baseline without an encoder that does better, with its score: `look-up table (45.4)`.

    None by made-up queries: a search for words finds the passage that they were taken from.
    """
    comparison = deciding_comparison(task)
    if comparison is None or has_made_up_queries(summary, task):
        return ""
    means = [
        (scores.mean, system)
        for system in task.systems
        if (scores := scores_on(system, comparison.split).get(comparison.metric))
    ]
    ours = [mean for mean, system in means if system.name == comparison.system]
    others = [
        (mean, system.name)
        for mean, system in means
        if system.role == "baseline" and system.name != UNTOUCHED
    ]
    if not ours or not others or max(others)[0] <= ours[0]:
        return ""
    return f"{system_name(max(others)[1])} ({100 * max(others)[0]:.1f})"


def in_points(comparison: Comparison, *, sign: bool = True) -> str:
    """`+5.3 ± 0.6 points`."""
    amount = points(comparison.difference)
    shown = amount if sign else amount.lstrip(f"+{MINUS}")
    return f"{shown}{plus_minus(comparison.standard_error)} points"


def scores_on(system: SystemScore, split: str) -> dict[str, SeedScores]:
    """A system's scores on dev or test, by metric."""
    return system.test if split == "test" else system.dev


def reference_shown(task: TaskScore, *, split: str) -> tuple[float, str] | None:
    """The published score in percent and its label, on this split if known, else on the other."""
    scores = [score for score in task.published if score.metric == task.metric]
    score = min(scores, key=lambda score: score.split != split, default=None)
    return (100 * score.value, f"{score.system} {100 * score.value:.1f}") if score else None


def spread_words(spread: SeedScores) -> str:
    """`87.3 ± 0.4`, in percent; a single value, or equal ones, have no error."""
    return f"{100 * spread.mean:.1f}{plus_minus(spread.standard_error)}"


class SearchedGrid(NamedTuple):
    """What the cells of a grid gave for one system on one task, in percent."""

    task: str
    system: str
    chosen: GridPoint
    cells: int
    lowest: float
    median: float


def searched_grids(summary: Summary) -> list[SearchedGrid]:
    """The grids by task and system: how much the choice of a cell is worth."""
    found: dict[tuple[str, str], list[GridPoint]] = {}
    for point in summary.grid:
        found.setdefault((point.task, point.system), []).append(point)
    rows = []
    for (task, system), cells in found.items():
        scores = [100 * point.dev for point in cells]
        chosen = next(point for point in cells if point.chosen)
        spread = (len(scores), min(scores), statistics.median(scores))
        rows.append(SearchedGrid(task_name(task), system_name(system), chosen, *spread))
    return rows


def tallies(summary: Summary) -> dict[str, list[bool]]:
    """For each model, which top-1 predictions are correct, in sentences with known answers."""
    found: dict[str, list[bool]] = {}
    for guesses in (one for filled in summary.sentences if filled.judged for one in filled.guesses):
        found.setdefault(guesses.system, []).append(guesses.correct == 0)
    return found


def metric_name(metric: str) -> str:
    """The name of a metric in the text."""
    return METRICS.get(metric, metric.replace("_", " "))


def shown_split(task: TaskScore) -> str:
    """The split of verdicts and figures: test if it has labels, else dev."""
    comparison = deciding_comparison(task)
    if comparison:
        return comparison.split
    return "test" if any(system.test for system in task.systems) else "dev"


def task_sizes(task: TaskScore) -> str:
    """`400 train, 1,500 test`."""
    known = [split for split in TASK_SPLITS if split in task.examples]
    others = [split for split in task.examples if split not in TASK_SPLITS]
    return ", ".join(f"{integer(task.examples[split])} {split}" for split in known + others)


def label_scores(task: TaskScore) -> tuple[LabelScore, ...]:
    """Precision, recall and F1 of each label; empty if the task has no labels or too many.

    For multi-label tasks they are means over the pre-trained trials.
    """
    if task.confusion:
        return task.confusion.by_label()
    scores = next((one.test or one.dev for one in task.systems if one.role == "pretrained"), {})
    prefix = "label_f1_"
    labels = [name.removeprefix(prefix) for name in scores if name.startswith(prefix)]
    return tuple(
        LabelScore(
            label=label,
            precision=scores[f"label_precision_{label}"].mean,
            recall=scores[f"label_recall_{label}"].mean,
            f1=scores[f"{prefix}{label}"].mean,
        )
        for label in labels
    )


def wrong_tags(error: ErrorExample) -> list[tuple[str, str, str]]:
    """A tagging error word by word: (word, gold, predicted), with empty tags if correct.

    Empty for other tasks, and if the text was shortened and no longer matches its tags.
    """
    words, truth, answer = error.text.split(), error.gold.split(), error.predicted.split()
    if not 1 < len(words) <= len(truth) == len(answer):
        return []
    return [
        (word, *(("", "") if right == given else (right, given)))
        for word, right, given in zip(words, truth, answer, strict=False)
    ]


def training_facts(summary: Summary) -> list[tuple[str, str]]:
    """The known facts about pre-training, as (name, value)."""
    training = summary.pretraining
    if training is None:
        return []
    phases = ", then ".join(
        f"{percent(share, digits=0)} at {length} tokens" for length, share in training.phases
    )
    rate = training.tokens / training.seconds if training.tokens and training.seconds else None
    ranks = f", {training.ranks} processes" if (training.ranks or 1) > 1 else ""
    precision = f", {summary.encoder.precision}" if summary.encoder else ""
    device = f"{training.device}{ranks}{precision}"
    facts = [
        ("encoder", shape(summary.encoder) if summary.encoder else ""),
        ("steps", f"{integer(training.steps)} of {integer(training.batch_size)} sequences"),
        ("lengths", phases),
        ("word-pieces seen", short(training.tokens) if training.tokens else ""),
        ("time in training", duration(training.seconds) if training.seconds else ""),
        ("throughput", f"{short(rate)} word-pieces / s" if rate else ""),
        ("device", device if training.device else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _training_data(summary: Summary) -> str:
    training = summary.pretraining
    if training is None:
        return ""
    splits = summary.corpus.splits if summary.corpus else ()
    what = f"{size(splits[0].bytes)} of text" if splits and splits[0].bytes else "the corpus"
    seen = f", {short(training.tokens)} word-pieces" if training.tokens else ""
    time = f" in {duration(training.seconds)}" if training.seconds else ""
    device = {"": "", "cpu": " on the CPU"}.get(training.device, f" on {training.device}")
    text = f"It was trained on {what} for {integer(training.steps)} steps{seen}{time}{device}."
    if summary.language_model:
        return text
    return (
        f"{text} No text was held out, so this report cannot show how well it models unseen text: "
        "raise corpus.heldout_share, or hold out a source."
    )


def initial_encoder(summary: Summary) -> str:
    """The encoder that pre-training started from, as configured; empty for random weights.

    An artifact's directory is shortened to `artifact a2f3a546b0a7`.
    """
    pretrain = summary.configuration.get("pretrain")
    init = str(pretrain.get("init") or "") if isinstance(pretrain, dict) else ""
    key = re.search(r"/([0-9a-f]{12})[0-9a-f]{52}/?$", init)
    return f"artifact {key[1]}" if key else init


def encoder_name(model: LanguageModelScore | None) -> str:
    """The trained encoder beside others, among them perhaps the one that it came from."""
    adapted = model is not None and model.initial_mlm_loss is not None
    return "adapted encoder" if adapted else "this encoder"


def predictor_name(system: str, summary: Summary) -> str:
    """A model that fills masked sentences."""
    return PREDICTORS.get(system) or encoder_name(summary.headline)


def training_name(summary: Summary) -> str:
    """The heading of the training on text: an encoder that came trained is adapted."""
    return "Adaptation" if initial_encoder(summary) else "Pre-training"


def search_found(summary: Summary, task: TaskScore) -> str:
    """Retrieval scores before and after training on the same queries; empty for other tasks.

    And after `cloze adapt`, which has decided among other passages.
    """
    if kept_for(summary, task):
        return ""
    split = shown_split(task)
    given = next((one for one in task.systems if one.name == UNTOUCHED), None)
    ours = next((one for one in task.systems if one.role == "pretrained"), None)
    if not given or not ours:
        return ""
    before, after = (
        ", ".join(
            f"{metric_name(metric)} {spread_words(scores[metric])}"
            # once, if that is the main metric
            for metric in dict.fromkeys((task.metric, "recall@1"))
            if metric in scores
        )
        for scores in (scores_on(given, split), scores_on(ours, split))
    )
    queries = plural(task.examples[split], "held-out query", many="held-out queries")
    found = f"before {before}; after {after}; {queries}"
    gains = [one.difference for one in task.comparisons if one.against == UNTOUCHED]
    worse = "no better: keep using the encoder it started from"
    return f"{found}; {worse}" if max(gains, default=0.0) <= 0 else found


def general_text(summary: Summary) -> LanguageModelScore | None:
    """The scores on general text, from outside the corpus, if it was evaluated."""
    return next((model for model in summary.language_model if model.split == GENERAL), None)


def before_and_after(model: LanguageModelScore | None) -> str:
    """Loss and accuracy of the initial and the trained encoder; empty if one is unknown."""
    if model is None or model.initial_mlm_loss is None or model.initial_mlm_accuracy is None:
        return ""
    return (
        f"MLM loss {nats(model.initial_mlm_loss)} and top-1 accuracy "
        f"{percent(model.initial_mlm_accuracy)} before, {nats(model.mlm_loss)} and "
        f"{percent(model.mlm_accuracy)} after"
    )


def _starting_point(summary: Summary) -> str:
    """The encoder's starting point, unless it was random weights."""
    pretrain = summary.configuration.get("pretrain")
    finished = pretrain.get("continue_from") if isinstance(pretrain, dict) else None
    if finished:
        artifact = "/".join(part[:12] for part in str(finished).split("/")[-2:])
        return (
            f"Training continued from the end of {artifact}, with that run's optimizer state and "
            "a second learning-rate warm-up; steps and times include both runs."
        )
    init = initial_encoder(summary)
    if init:
        start = f"Training started from the encoder {init}, not from random weights"
        model = summary.headline
        found = before_and_after(model)
        if not found or not model:
            return f"{start}."
        text = f"{start}: {found}, on the {split_name(summary, model.split)}."
        general = before_and_after(general_text(summary))
        return f"{text} On general text: {general}." if general else text
    if summary.pretraining or not (summary.encoder and summary.tasks):
        return ""
    trials = sum(system.trials for task in summary.tasks for system in task.systems)
    return (
        f"The encoder was trained elsewhere and fine-tuned here: {plural(trials, 'trial')} on "
        f"{plural(len(summary.tasks), 'task')}."
    )


def _heldout_quality(summary: Summary) -> str:
    model = summary.headline
    if model is None:
        return ""
    where, gain = split_name(summary, model.split), model.unigram_entropy - model.mlm_loss
    predicted = "the masked tokens"
    if summary.pretraining and summary.pretraining.objective == "next_token":
        predicted += ", each predicted from the text on one side,"
    return (
        f"On the {where}, which it has never seen, its top-1 accuracy on {predicted} is "
        f"{percent(model.mlm_accuracy)}, against {percent(model.count_model_accuracy)} for the "
        f"n-gram baseline and {percent(model.unigram_accuracy)} for always predicting the most "
        f"frequent word-piece. Its MLM loss is {nats(model.mlm_loss)}, "
        f"{nats(abs(gain))} {'below' if gain > 0 else 'above'} the unigram entropy."
    )


def _baselines_ahead(summary: Summary) -> str:
    """A sentence that names the baselines without an encoder that do better."""
    model = summary.headline
    ahead = []
    if model and model.count_model_loss < model.mlm_loss:
        ahead.append(
            f"in MLM loss the n-gram baseline ({nats(model.count_model_loss)} against "
            f"{nats(model.mlm_loss)})"
        )
    correct = {system: sum(hits) for system, hits in tallies(summary).items()}
    if correct.get("count", 0) > correct.get("pretrained", 0):
        total = sum(filled.judged for filled in summary.sentences)
        ahead.append(
            f"on the masked sentences the n-gram baseline ({correct['count']} of {total} correct, "
            f"the encoder {correct.get('pretrained', 0)})"
        )
    better = {task.name: better_baseline(summary, task) for task in summary.tasks}
    for name, found in better.items():
        article = "" if found.startswith(SYSTEMS["bm25"]) else "the "
        ahead += [f"on {task_name(name)} {article}{found}"] if found else []
    return f"A baseline does better: {'; '.join(ahead)}." if ahead else ""


def quality_rows(calibration: Calibration) -> list[tuple[str, str, str]]:
    """Name, before and after of every figure, with its interval."""

    def shown(figure: Measured) -> str:
        return f"{figure.value:.3f} ({figure.low:.3f} to {figure.high:.3f})"

    before, after = calibration.before, calibration.after
    perfect = after.expected_error
    return [
        ("log loss, nats", shown(before.log_loss), shown(after.log_loss)),
        ("Brier score", shown(before.brier), shown(after.brier)),
        (
            f"calibration error (of perfect probabilities: {perfect:.3f})",
            shown(before.calibration_error),
            shown(after.calibration_error),
        ),
    ]


def temperature_sentence(calibration: Calibration) -> str:
    """Where the temperatures come from."""
    found = calibration.temperatures
    shown = f"{found[0]:.3g}" if len(found) == 1 else f"{min(found):.3g} to {max(found):.3g}"
    fitted = "" if calibration.split != "dev" else " (figures on dev: fitted to its other rows)"
    if set(found) == {1.0}:
        return (
            f"Temperature 1: {calibration.rows:,} rows of dev do not speak for another. "
            "95 % bootstrap intervals over rows."
        )
    return (
        f"Temperature {shown}, fitted to {calibration.rows:,} rows of dev{fitted}. "
        "95 % bootstrap intervals over rows."
    )


APPROACHES = {
    "class_means": "class means",
    "linear": "linear head on vectors",
    "contrastive": "contrastive tuning, linear head",
    "fine_tuning": "fine-tuning",
}

NAMES_TRAINED = ", with the labels' names as texts"


def label_error_sentence(counts: LabelErrorCounts) -> str:
    """How many labels are probably wrong, and how many more somebody may want to read."""
    chance = f" (so improbable by chance: {counts.by_chance:.1f})" if counts.unlikely else ""
    equal = f"{counts.contradictions:,} of equal texts with different labels, "
    return (
        f"Of {counts.rows:,} rows of {counts.split}, {counts.unlikely:,} labels are probably "
        f"wrong{chance}; {equal if counts.contradictions else ''}{counts.doubtful:,} more are "
        "doubtful: other models would say otherwise, as they often do of right labels."
    )


def candidate_rows(
    choice: Choice, seconds: Mapping[str, float]
) -> list[tuple[str, str, str, str, bool]]:
    """Approach, score, its interval, minutes and whether it was chosen."""
    return [
        (
            APPROACHES[one.approach]
            + (NAMES_TRAINED if choice.label_names and one.approach == choice.chosen else ""),
            _mean_and_error(one),
            _interval(one),
            f"{seconds[one.approach] / 60:.1f}" if one.approach in seconds else "–",
            one.approach == choice.chosen,
        )
        for one in choice.candidates
    ]


def kept_rows(kept: KeptEncoder) -> list[tuple[str, str, bool]]:
    """Name and score of the original and every candidate, and whether it is kept."""
    rows = [(share, 0.0, score) for share, score in kept.candidates]
    rows += [(kept.share, weight, score) for weight, score in kept.term_candidates]
    return [
        (
            candidate_name(share, terms),
            f"{100 * score:.1f}",
            (share, terms) == (kept.kept_share, kept.kept_terms),
        )
        for share, terms, score in rows
    ]


def curve_rows(choice: Choice) -> list[tuple[str, str, str]]:
    """Training rows, score and interval of the learning curve."""
    return [
        (
            integer(one.rows),
            _mean_and_error(one),
            _interval(one),
        )
        for one in choice.curve
    ]


def _mean_and_error(one: Candidate) -> str:
    return f"{100 * one.mean:.1f}{plus_minus(one.standard_error)}"


def _interval(one: Candidate) -> str:
    low, high = one.interval
    return f"{100 * low:.1f} to {100 * high:.1f}"


def student_kept(made: Distillation) -> str:
    """How much of the teacher's quality the student keeps, with the interval of what is lost."""
    scores = [100 * system.score for system in made.systems[:2] if system.score is not None]
    shown = f"{made.metric} {scores[0]:.1f} → {scores[1]:.1f}" if len(scores) == 2 else ""
    if made.low is not None and made.high is not None:
        loss = f"{scores[1] - scores[0]:+.1f} [{100 * made.low:+.1f}, {100 * made.high:+.1f}]"
        return f"keeps {100 * made.kept:.1f} % of the teacher's {shown}, {loss}"
    alike = f"answers like the teacher: {100 * made.kept:.1f} % on {made.texts:,} held-out texts"
    return f"{alike}; {shown}" if shown else alike


def student_faster(made: Distillation) -> str:
    """How much faster the student is, by batch."""
    return ", ".join(
        f"{times:.1f} × for {batch} tokens" for batch, times in made.times_faster.items()
    )


def student_size(made: Distillation) -> str:
    """The sizes of both, and of the student in int8."""
    teacher, student, *int8 = made.systems
    smaller = "".join(f", {one.megabytes:.1f} MB in int8" for one in int8)
    return f"{student.megabytes:.1f} MB{smaller}, the teacher {teacher.megabytes:.1f} MB (fp32)"
