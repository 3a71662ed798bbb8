"""What the figures say, in words: names of splits and systems, verdicts, moments of the curve.

In:  parts of a `Summary`.
Out: plain text. A gain is called one only where the evaluation's own rule calls it a win.
"""

from artifacts.results import (
    WIN_DIFFERENCE,
    WIN_STANDARD_ERRORS,
    Comparison,
    ErrorExample,
    LanguageModelScore,
    SeedScores,
    TaskScore,
)
from artifacts.summary import Encoder, Summary
from flows.report.units import (
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

SYSTEMS = {
    "random": "random initialisation",
    "pretrained": "pre-trained",
    "majority": "always the majority",
    "lookup": "look-up table",
    "word_overlap": "word overlap",
}

GUESSERS = {"random": "untrained", "count": "neighbour counts", "pretrained": "this encoder"}

METRICS = {
    "f1": "F1",
    "entity_f1": "entity F1",
    "matthews": "Matthews correlation",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "exact_match": "exact match",
    "macro_f1": "macro F1",
}

SPLITS = ("train", "dev", "test")

NOISE = 2.0
"""A difference within so many standard errors is not told from chance."""


def split_name(summary: Summary, split: str) -> str:
    """A held-out split in words: `held-out package rich`."""
    if split == "heldout":
        return "held-out documents"
    sources = summary.corpus.sources if summary.corpus else ()
    named = ", ".join(source.what for source in sources if source.split == split)
    return f"held-out {split} {named}" if 0 < len(named) <= 24 else f"held-out {split}"


def system_name(name: str) -> str:
    """A system in words."""
    return SYSTEMS.get(name, name.replace("_", " "))


def task_name(name: str) -> str:
    """A task's name as a heading; short ones are acronyms and stay as they are."""
    words = name.replace("_", " ").replace("-", " ")
    return words if any(letter.isupper() for letter in name) else words.capitalize()


def shape(encoder: Encoder) -> str:
    """The encoder's size on one line."""
    size_ = f"{encoder.layers} layers × {encoder.hidden_size}, {encoder.heads} heads"
    known = f"BERT-{encoder.preset}: " if encoder.preset else ""
    counted = f", {short(encoder.parameters)} parameters" if encoder.parameters else ""
    return f"{known}{size_}, {integer(encoder.vocabulary_size)} word-pieces{counted}"


def lede(summary: Summary) -> list[str]:
    """The report's first sentences; fewer where a run has less to say."""
    sentences = (_guessing(summary), _reading(summary), _unjudged(summary), _given(summary))
    return [sentence for sentence in sentences if sentence]


def verdict(task: TaskScore) -> Comparison | None:
    """The comparison with random initialisation, else with the best baseline, if there is one."""
    by_name = {comparison.against: comparison for comparison in task.comparisons}
    against_random = by_name.get("random")
    return against_random or min(by_name.values(), key=lambda c: c.difference, default=None)


def has_random(summary: Summary) -> bool:
    """Whether the same architecture was also trained from random weights."""
    return any(system.role == "random" for task in summary.tasks for system in task.systems)


def verdict_kind(comparison: Comparison) -> str:
    """`win`, `gain` (beyond chance, below the rule), `loss`, `none`, or `single` (one run)."""
    if comparison.wins:
        return "win"
    if comparison.difference and not comparison.standard_error:
        return "single"
    if abs(comparison.difference) <= NOISE * comparison.standard_error:
        return "none"
    return "gain" if comparison.difference > 0 else "loss"


def verdict_words(comparison: Comparison) -> str:
    """One honest sentence about pre-training."""
    against = system_name(comparison.against)
    amount = difference(comparison, sign=False)
    single = points(comparison.difference).lstrip(f"+{MINUS}")
    moved = "A gain" if comparison.difference > 0 else "A loss"
    relation = "over" if comparison.difference > 0 else "against"
    missed = (
        f"the margin of {100 * WIN_DIFFERENCE:.0f} points"
        if comparison.difference < WIN_DIFFERENCE
        else f"the {WIN_STANDARD_ERRORS:.0f} standard errors"
    )
    return {
        "win": f"Pre-training wins: {amount} over {against}.",
        "gain": f"A gain of {amount} over {against}, less than {missed} set beforehand.",
        "loss": f"Pre-training loses: {amount} below {against}.",
        "none": f"No gain over {against} at this size: {difference(comparison)}, within chance.",
        "single": (
            f"{moved} of {single} points {relation} {against} in a single run: without a standard "
            "error there is no verdict; give finetune.seeds several seeds."
        ),
    }[verdict_kind(comparison)]


def judgement(task: TaskScore) -> str:
    """The verdict, and the baseline that needs no encoder, where it does better than ours."""
    comparison = verdict(task)
    if comparison is None:
        return ""
    rule = _better_baseline(task, comparison)
    return " ".join(filter(None, (verdict_words(comparison), rule)))


def _better_baseline(task: TaskScore, comparison: Comparison) -> str:
    """`Look-up table does better: 45.4.`, or nothing."""
    on_test = comparison.split == "test"
    measured = [
        (system, (system.test if on_test else system.dev).get(comparison.metric))
        for system in task.systems
    ]
    means = [(system, spread.mean) for system, spread in measured if spread]
    ours = next((mean for system, mean in means if system.name == comparison.system), None)
    baselines = [(mean, system.name) for system, mean in means if system.role == "baseline"]
    best = max(baselines, default=None)
    if ours is None or best is None or best[0] <= ours:
        return ""
    name = system_name(best[1])
    return f"{name[:1].upper()}{name[1:]} does better: {100 * best[0]:.1f}."


def difference(comparison: Comparison, *, sign: bool = True) -> str:
    """`+5.3 ± 0.6 points`."""
    amount = points(comparison.difference)
    shown = amount if sign else amount.lstrip(f"+{MINUS}")
    return f"{shown} ± {100 * comparison.standard_error:.1f} points"


def spread_words(spread: SeedScores) -> str:
    """`87.3 ± 0.4`, in percent; without the error where there was one value."""
    mean = f"{100 * spread.mean:.1f}"
    return f"{mean} ± {100 * spread.standard_error:.1f}" if len(spread.values) > 1 else mean


def headline(summary: Summary) -> LanguageModelScore | None:
    """The split that leads."""
    return summary.language_model[0] if summary.language_model else None


def guesser(system: str) -> str:
    """Who fills a gap, in words."""
    return GUESSERS.get(system, system)


def metric_name(metric: str) -> str:
    """A metric in words."""
    return METRICS.get(metric, metric.replace("_", " "))


def judged_split(task: TaskScore) -> str:
    """The split that verdicts and figures are about: test, where it has labels."""
    comparison = verdict(task)
    if comparison:
        return comparison.split
    return "test" if any(system.test for system in task.systems) else "dev"


def points_only(comparison: Comparison) -> str:
    """`+5.3 ± 0.6`."""
    return difference(comparison).removesuffix(" points")


def task_sizes(task: TaskScore) -> str:
    """`400 train, 1,500 test`."""
    known = [split for split in SPLITS if split in task.examples]
    others = [split for split in task.examples if split not in SPLITS]
    return ", ".join(f"{integer(task.examples[split])} {split}" for split in known + others)


def wrong_tags(error: ErrorExample) -> list[tuple[str, str, str]]:
    """A tagging mistake word by word: (word, truth, answer), the last two empty where right.

    Empty for other tasks, and where a shortened text no longer fits its tags.
    """
    words, truth, answer = error.text.split(), error.gold.split(), error.predicted.split()
    if not 1 < len(words) <= len(truth) == len(answer):
        return []
    return [
        (word, *(("", "") if right == given else (right, given)))
        for word, right, given in zip(words, truth, answer, strict=False)
    ]


def training_facts(summary: Summary) -> list[tuple[str, str]]:
    """What pre-training was, line by line; what is not known is left out."""
    training = summary.pretraining
    if training is None:
        return []
    phases = ", then ".join(
        f"{percent(share, digits=0)} at {length} tokens" for length, share in training.phases
    )
    rate = training.tokens / training.seconds if training.tokens and training.seconds else None
    facts = [
        ("encoder", shape(summary.encoder) if summary.encoder else ""),
        ("steps", f"{integer(training.steps)} of {integer(training.batch_size)} sequences"),
        ("lengths", phases),
        ("word-pieces seen", short(training.tokens) if training.tokens else ""),
        ("time in training", duration(training.seconds) if training.seconds else ""),
        ("throughput", f"{short(rate)} word-pieces / s" if rate else ""),
        ("device", _device(summary)),
    ]
    return [(name, value) for name, value in facts if value]


def _device(summary: Summary) -> str:
    training = summary.pretraining
    if training is None or not training.device:
        return ""
    ranks = f", {training.ranks} processes" if (training.ranks or 1) > 1 else ""
    precision = f", {summary.encoder.precision}" if summary.encoder else ""
    return f"{training.device}{ranks}{precision}"


def _reading(summary: Summary) -> str:
    training = summary.pretraining
    if training is None:
        return ""
    read = next((split for split in summary.corpus.splits), None) if summary.corpus else None
    what = f"{size(read.bytes)} of text" if read and read.bytes else "the corpus"
    seen = f"{short(training.tokens)} word-pieces" if training.tokens else "them"
    time = f", {duration(training.seconds)}" if training.seconds else ""
    device = f" on {training.device}" if training.device else ""
    return f"It learnt from {what}: {seen} in {integer(training.steps)} steps{time}{device}."


def _unjudged(summary: Summary) -> str:
    if summary.pretraining is None or summary.language_model:
        return ""
    return (
        "No text was held out, so nothing here says how well it knows text it has not read: raise "
        "corpus.heldout_share, or hold out a source."
    )


def _given(summary: Summary) -> str:
    if summary.pretraining or not (summary.encoder and summary.tasks):
        return ""
    fits = sum(system.fits for task in summary.tasks for system in task.systems)
    return (
        f"The encoder came finished and was fine-tuned here: {plural(fits, 'fit')} on "
        f"{plural(len(summary.tasks), 'task')}."
    )


def _guessing(summary: Summary) -> str:
    model = headline(summary)
    if model is None:
        return ""
    where, gain = split_name(summary, model.split), model.unigram_entropy - model.mlm_loss
    return (
        f"On the {where}, which it has never seen, it guesses {percent(model.mlm_accuracy)} of the "
        f"hidden words. A model that counts neighbouring words guesses "
        f"{percent(model.count_model_accuracy)}, always the most frequent word "
        f"{percent(model.unigram_accuracy)}. Its loss is {nats(model.mlm_loss)}, "
        f"{nats(abs(gain))} {'below' if gain > 0 else 'above'} the entropy of word frequencies."
    )
