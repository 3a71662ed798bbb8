"""What the evaluation found, from the artifact `evaluate`.

In:  `scores.json` and `masked_sentences.json` (schema: artifacts/results.py), and the words that
     count as right.
Out: parts of the `Summary`.

Without `show_text` no text leaves this module: no sentence, no guess, no mistake.
"""

import statistics
from collections.abc import Mapping

from artifacts.errors import UsageError
from flows.config import ReportConfig
from flows.report.form.scores import FilledSentence, Guesses, LanguageModel, Task
from flows.report.gather.facts import Facts

ALTERNATIVES = "|"

NO_NEXT_SENTENCES = {
    "next_sentence_examples": 0,
    "next_sentence_accuracy": None,
    "next_sentence_majority": None,
}


def gather_language_model(
    scores: Facts, *, learnt_next_sentences: bool
) -> tuple[LanguageModel, ...]:
    """Held-out quality: the headline split first, then by name and length.

    Answers about next sentences mean nothing where the encoder has not learnt to give them.
    """
    found = [LanguageModel.model_validate(entry) for entry in scores["language_model"]]
    if not learnt_next_sentences:
        found = [model.model_copy(update=NO_NEXT_SENTENCES) for model in found]
    return tuple(sorted(found, key=lambda m: (not m.headline, m.split, m.max_seq_length)))


def gather_tasks(
    scores: Facts, *, seconds: Mapping[str, float], show_text: bool
) -> tuple[Task, ...]:
    """Every task; its mistakes only where text may be shown.

    `seconds` are those of each fit, by the name of its file: `fits/TASK-SYSTEM-….json`.
    """
    tasks = (_timed(Task.model_validate(entry), seconds) for entry in scores["tasks"])
    return tuple(task if show_text else task.model_copy(update={"errors": ()}) for task in tasks)


def gather_sentences(filled: Facts, report: ReportConfig) -> tuple[FilledSentence, ...]:
    """Every sentence with the guesses judged by `report.answers`, if there are any."""
    sentences = filled["sentences"]
    if report.answers and len(report.answers) != len(sentences):
        raise UsageError(
            f"report.answers has {len(report.answers)} entries, but evaluate.masked_sentences "
            f"has {len(sentences)}; give one for each sentence, in the same order"
        )
    answers = [tuple(entry.lower().split(ALTERNATIVES)) for entry in report.answers]
    return tuple(
        _sentence(entry, answers[place] if answers else (), show_text=report.show_text)
        for place, entry in enumerate(sentences)
    )


def _timed(task: Task, seconds: Mapping[str, float]) -> Task:
    systems = []
    for system in task.systems:
        beginning = f"fits/{task.name}-{system.name}-"
        taken = [spent for name, spent in seconds.items() if name.startswith(beginning)]
        median = statistics.median(taken) if taken else None
        systems.append(system.model_copy(update={"seconds_per_fit": median}))
    return task.model_copy(update={"systems": tuple(systems)})


def _sentence(entry: Facts, answers: tuple[str, ...], *, show_text: bool) -> FilledSentence:
    guesses = [_guesses(guess, answers) for guess in entry["guesses"]]
    if show_text:
        return FilledSentence(
            sentence=entry["sentence"],
            answers=answers,
            judged=bool(answers),
            guesses=tuple(guesses),
        )
    silent = (Guesses(system=guess.system, correct=guess.correct) for guess in guesses)
    return FilledSentence(judged=bool(answers), guesses=tuple(silent))


def _guesses(entry: Facts, answers: tuple[str, ...]) -> Guesses:
    words = [str(word) for word in entry["words"]]
    right = (place for place, word in enumerate(words) if word.lower() in answers)
    return Guesses(
        system=entry["system"],
        words=tuple(words),
        probabilities=tuple(entry["probabilities"]),
        correct=next(right, None),
    )
