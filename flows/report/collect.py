"""The summary of a run, collected from its artifacts.

In:  the report's stage table, with an artifact for each stage of the run and, if it was not trained
     here, the encoder. Parts of the summary whose stage is missing are left out.
Out: `Summary`; without `show_text` it contains no sentence, prediction or error.

A long run has more points than a screen has pixels, so training losses are averaged over about
`POINTS` windows of equal length. Held-out evaluations are all kept.
"""

import json
import os
import re
import statistics
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np
from pydantic import JsonValue

from cloze.artifacts import filesystem
from cloze.artifacts.arrays import entropy
from cloze.artifacts.config import JsonObject, parse
from cloze.artifacts.errors import UsageError
from cloze.artifacts.manifest import Manifest
from cloze.artifacts.results import HELDOUT, TRAIN, MaskedSentences, Scores, Trial, Trials
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, open_artifact
from cloze.artifacts.tokenizer import SPECIAL_TOKENS, read_tokenizer_json
from cloze.flows.config import ReportConfig, ReportStage, RunConfig
from cloze.flows.external_inputs import read_model_config
from cloze.flows.report.summary import (
    AddedWord,
    AddedWords,
    Corpus,
    CorpusSplit,
    Distillation,
    DistilledSystem,
    EncoderFacts,
    ExampleSet,
    FilledSentence,
    GridPoint,
    HeldoutPoint,
    Histogram,
    KeptEncoder,
    MixedSource,
    PieceFrequency,
    Predictions,
    Pretraining,
    SourceFacts,
    StageFacts,
    Summary,
    TrainingPoint,
)
from cloze.flows.workspace import ADAPTED, RunRecord, read_record_file
from cloze.model.config import FAMILY_PRESETS, MODERN_PRESETS, PRESETS, SIZE_NAMES

SCORES = "scores.json"
SENTENCES = "masked_sentences.json"
CURVE = "curve.jsonl"
METRICS = "metrics.jsonl"

SECONDS = "seconds-"
"""Prefix of the records in which fine-tuning workers write the duration of each trial."""

CHOICES = "choices/"
"""Prefix of the durations of comparing approaches, among them: choices/TASK-APPROACH."""

FINISHED_ENCODER = "encoder"
"""Role of an encoder trained elsewhere, which may not be a Cloze artifact."""

ALTERNATIVES = "|"

TEXT_FIELDS = {"evaluate": "masked_sentences", "report": "answers"}
"""Configuration fields that contain text."""

NO_NEXT_SENTENCES = {
    "next_sentence_examples": 0,
    "next_sentence_accuracy": None,
    "next_sentence_majority": None,
}

FP32_BYTES = 4

POINTS = 160
FREQUENT = 20
SHOWN_WORDS = 20
RANKS = 60
MOST_PACKAGES = 4


def collect(table: StageTable) -> Summary:
    """Collect the summary from the inputs of the report's stage table."""
    config = parse(ReportStage, table.config, source="stage report")
    report = config.report
    inputs = {role: ref.path for role, ref in table.inputs.items() if ref.path}
    finished = inputs.pop(FINISHED_ENCODER, "")
    found = {stage: open_artifact(path) for stage, path in inputs.items()}
    manifests = {role: artifact.manifest for role, artifact in found.items()}
    evaluated, pretrain, tokens = (found.get(s) for s in ("evaluate", "pretrain", "tokens"))
    scores = Scores.model_validate(evaluated.read_json(SCORES)) if evaluated else None
    language_model = list(scores.language_model) if scores else []
    if pretrain and not pretrain.manifest.config["pretrain"]["next_sentence_loss"]:
        # the next-sentence head was not trained, so its predictions are meaningless
        language_model = [one.model_copy(update=NO_NEXT_SENTENCES) for one in language_model]
    kept = manifests.get(ADAPTED)
    record_path = table.machine.get("record")  # absent if the stage is run by hand
    record = None
    if record_path and filesystem.exists(record_path):
        record = read_record_file(record_path)
    return Summary(
        name=config.name,
        title=report.title or config.name,
        note=report.note,
        show_text=report.show_text,
        encoder=collect_encoder(pretrain, finished, scores),
        corpus=collect_corpus(tokens, show_text=report.show_text) if tokens else None,
        added_words=collect_added_words(found.get("vocabulary"), show_text=report.show_text),
        examples=collect_examples(manifests["examples"]) if "examples" in found else (),
        pretraining=collect_pretraining(pretrain) if pretrain else None,
        language_model=tuple(
            sorted(language_model, key=lambda m: (not m.headline, m.split, m.max_seq_length))
        ),
        sentences=collect_sentences(evaluated, report) if evaluated else (),
        tasks=tuple(
            task if report.show_text else task.model_copy(update={"errors": (), "label_errors": ()})
            for task in (scores.tasks if scores else ())
        ),
        grid=collect_grid(found.get("finetune")),
        trial_seconds=trial_seconds(scores, found.get("finetune")) if scores else {},
        choice_seconds=choice_seconds(found.get("finetune")),
        glue_average=scores.glue_average if scores else None,
        kept=KeptEncoder.model_validate(kept.statistics) if kept else None,
        distillation=collect_distillation(manifests.get("distill")),
        steps=tuple(collect_step(manifest, record) for manifest in manifests.values()),
        configuration=changed_settings(manifests, record, name=config.name, report=report),
    )


def collect_encoder(
    pretrain: Artifact | None, finished: str, scores: Scores | None
) -> EncoderFacts | None:
    """The shape of the encoder that was trained, or of the one in the directory `finished`."""
    # Of an encoder from elsewhere, only evaluation has counted the parameters.
    precision, parameters = "", scores.parameters if scores else None
    if finished:
        config = json.loads(read_model_config(finished))
        vocabulary_size = config["vocab_size"]
    elif pretrain:
        config = pretrain.manifest.config["encoder"]
        precision = pretrain.manifest.config["pretrain"]["precision"]
        vocabulary_size = pretrain.manifest.statistics["vocabulary_size"]
        parameters = pretrain.manifest.statistics.get("parameters")
    else:
        return None
    sizes = tuple(config[name] for name in SIZE_NAMES)
    presets = PRESETS
    # config.json of a given encoder has its class's fields, a stage's table has ours
    if config.get("family", "modern" if "local_attention" in config else "bert") == "modern":
        presets = {f"ModernBERT-{name}": known for name, known in MODERN_PRESETS.items()}
    return EncoderFacts(
        layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        heads=config["num_attention_heads"],
        vocabulary_size=vocabulary_size,
        parameters=parameters,
        preset=next((name for name, known in presets.items() if known == sizes), ""),
        precision=precision,
    )


def collect_distillation(made: Manifest | None) -> Distillation | None:
    """Teacher and student, from the manifest of the student."""
    if made is None:
        return None
    facts, quality = made.statistics, made.statistics["quality"]
    times, int8 = (made.execution.get(name, {}) for name in ("milliseconds", "int8"))
    systems = [
        DistilledSystem(
            name=name,
            **facts[name],
            megabytes=FP32_BYTES * facts[name]["parameters"] / 1e6,
            score=quality.get(name),
            milliseconds={batch: each[name] for batch, each in times.items()},
        )
        for name in ("teacher", "student")
    ]
    # On a machine without kernels for it there is no student in int8.
    if all("int8" in each for each in times.values()) and int8:
        systems.append(
            DistilledSystem(
                name="student in int8",
                **facts["student"],
                **int8,
                milliseconds={batch: each["int8"] for batch, each in times.items()},
            )
        )
    return Distillation(
        systems=tuple(systems),
        task=facts.get("task", ""),
        metric=quality.get("metric", ""),
        texts=quality["texts"],
        kept=quality["kept"],
        low=quality.get("low"),
        high=quality.get("high"),
        times_faster={batch: both["teacher"] / both["student"] for batch, both in times.items()},
    )


def collect_added_words(vocabulary: Artifact | None, *, show_text: bool) -> AddedWords | None:
    """The words that were added to a given vocabulary, if any were wanted."""
    facts = vocabulary.manifest.statistics if vocabulary else {}
    if not vocabulary or "words_wanted" not in facts:
        return None
    best = vocabulary.read_json("words.json")["words"][:SHOWN_WORDS] if show_text else []
    names = ("word", "pieces", "count", "saved")
    return AddedWords(
        wanted=facts["words_wanted"],
        added=facts["words_added"],
        documents=facts["documents"],
        fewest_documents=facts["fewest_documents"],
        tokens_before=facts["tokens_before"],
        tokens_after=facts["tokens_after"],
        best=tuple(AddedWord(**{name: one[name] for name in names}) for one in best),
    )


def collect_corpus(tokens: Artifact, *, show_text: bool) -> Corpus:
    """The corpus, from the statistics of the tokens artifact."""
    facts = tokens.manifest.statistics
    splits, counts = facts["splits"], tokens.read_json("token_counts.json")
    train = splits.get(TRAIN, {})
    sources = []
    for source in tokens.manifest.config["corpus"]["sources"]:
        packages, split = source.get("packages", []), source.get("heldout") or TRAIN
        more = len(packages) - MOST_PACKAGES
        what = ", ".join(packages[:MOST_PACKAGES]) + (f" and {more} more" if more > 0 else "")
        weight = source.get("weight", 1)
        sources.append(SourceFacts(reader=source["reader"], what=what, split=split, weight=weight))
    frequent = []
    if show_text:
        pieces = read_tokenizer_json(tokens.path("tokenizer.json")).vocabulary
        # A stable sort: of equally frequent pieces, the first in the vocabulary comes first in
        # every report.
        ranked = sorted(range(len(counts)), key=lambda place: -counts[place])
        words = [place for place in ranked if pieces[place] not in SPECIAL_TOKENS and counts[place]]
        frequent = [
            PieceFrequency(text=pieces[place], count=counts[place]) for place in words[:FREQUENT]
        ]
    return Corpus(
        sources=tuple(sources),
        documents_read=facts["documents_read"],
        dropped=facts["dropped"],
        splits=tuple(
            CorpusSplit(
                name=name,
                documents=splits[name]["documents"],
                sentences=splits[name]["sentences"],
                tokens=splits[name]["tokens"],
                bytes=splits[name]["text_bytes"],
            )
            # train, held-out documents, then the named splits
            for name in sorted(splits, key=lambda name: (name != TRAIN, name != HELDOUT, name))
        ),
        unigram_entropy=entropy(np.array(counts)) if any(counts) else None,
        unknown_share=train.get("unknown_share"),
        document_lengths=powers_of_two(train.get("document_lengths", [])),
        sentence_lengths=powers_of_two(train.get("sentence_lengths", [])),
        frequent=tuple(frequent),
        rank_frequency=tuple(rank_frequency(counts)),
    )


def powers_of_two(counts: Sequence[int]) -> Histogram | None:
    """A histogram whose bin k covers 2**k up to 2**(k + 1), without empty bins at the ends."""
    filled = [place for place, count in enumerate(counts) if count]
    if not filled:
        return None
    first, last = filled[0], filled[-1] + 1
    edges = tuple(float(2**power) for power in range(first, last + 1))
    return Histogram(edges=edges, counts=tuple(counts[first:last]))


def rank_frequency(counts: Sequence[int]) -> list[tuple[int, int]]:
    """(rank, count) at ranks evenly spaced in log rank."""
    ranked = sorted((count for count in counts if count), reverse=True)
    # n^(k / RANKS) for k = 0, …, RANKS; small ranks that round to the same number count once.
    steps = {round(len(ranked) ** (step / RANKS)) for step in range(RANKS + 1)} if ranked else set()
    return [(rank, ranked[rank - 1]) for rank in sorted(steps)]


def collect_examples(manifest: Manifest) -> tuple[ExampleSet, ...]:
    """The training examples of each length, shortest first."""
    by_length = manifest.statistics["splits"].get(TRAIN, {})
    found = []
    for name in sorted(by_length, key=int):
        length, facts = int(name), by_length[name]
        kinds = (facts["lengths_next"], facts["lengths_random"], facts["lengths_single"])
        counts = [sum(bins) for bins in zip(*kinds, strict=True)]
        # ten equal bins below the maximum length, and one for exactly that length
        below = len(counts) - 1
        edges = [1 + place * length / below for place in range(below)]
        copies = [
            len(entry.statistics["copies"])
            for entry in manifest.files
            if entry.statistics.get("split") == TRAIN
            and entry.statistics.get("max_seq_length") == length
        ]
        # `not_asked` counts the examples without a next-sentence label.
        has_pairs = facts["rows"] > facts["not_asked"]
        found.append(
            ExampleSet(
                max_seq_length=length,
                copies=max(copies, default=0),
                examples=facts["rows"],
                tokens=facts["tokens"],
                masked=facts["masked"],
                as_mask=facts["replaced_by_mask"],
                as_random=facts["replaced_by_random"],
                kept=facts["kept"],
                truncated=facts["truncated"],
                random_next_share=facts["next_random_share"] if has_pairs else None,
                length_only_accuracy=facts["length_only_share"] if has_pairs else None,
                lengths=Histogram(
                    edges=(*edges, float(length), length + 1.0), counts=tuple(counts)
                ),
            )
        )
    return tuple(found)


def training_clock(rows: Sequence[Mapping[str, float]]) -> Callable[[int], dict[str, float]]:
    """Training time and tokens up to any step, and its rates, as fields of a `TrainingPoint`.

    `rows` are the lines of `metrics.jsonl`: means over the steps since the previous line.
    """
    steps = [0, *(int(row["step"]) for row in rows)]
    # A window's steps times its mean step is its time, and that times its rate its tokens. Within a
    # window, both are interpolated.
    windows = [after - before for before, after in pairwise(steps)]
    seconds = [count * row["step_seconds"] for count, row in zip(windows, rows, strict=True)]
    tokens = [time * row["tokens_per_s"] for time, row in zip(seconds, rows, strict=True)]
    totals = [list(accumulate(spent, initial=0.0)) for spent in (seconds, tokens)]

    def at(step: int) -> dict[str, float]:
        if not rows:
            return {}
        # The window that the step is in; the last one for steps after it.
        row = rows[min(bisect_left(steps, step, lo=1), len(rows)) - 1]
        elapsed, seen = (float(np.interp(step, steps, total)) for total in totals)
        return {
            "seconds": elapsed,
            "tokens": round(seen),
            "learning_rate": row["learning_rate"],
            "tokens_per_second": row["tokens_per_s"],
        }

    return at


def collect_pretraining(pretrain: Artifact) -> Pretraining:
    """The recipe and the learning curve."""
    manifest = pretrain.manifest
    recipe, entries = manifest.config["pretrain"], (*manifest.files, *manifest.records)
    curve, metrics = (
        [json.loads(line) for line in pretrain.read_bytes(name).splitlines()]
        if name in {entry.name for entry in entries}
        else []
        for name in (CURVE, METRICS)
    )
    has_pairs = recipe["next_sentence_loss"]
    # Lines with held-out scores are evaluations, all others training steps.
    losses = [row for row in curve if HELDOUT not in row]
    size = -(-len(losses) // POINTS) or 1
    measured: dict[int, dict[str, object]] = {}  # fields of `TrainingPoint` by step
    for start in range(0, len(losses), size):
        window = losses[start : start + size]
        # A window's mean is drawn at its last step.
        fields = measured.setdefault(window[-1]["step"], {})
        fields["train_mlm_loss"] = sum(row["masked_lm_loss"] for row in window) / len(window)
        if has_pairs:
            nsp_losses = [row["next_sentence_loss"] for row in window]
            fields["train_nsp_loss"] = sum(nsp_losses) / len(window)
    for row in (row for row in curve if HELDOUT in row):
        evaluated = HeldoutPoint(
            mlm_loss=row[HELDOUT]["masked_lm_loss"],
            mlm_accuracy=row[HELDOUT]["masked_lm_accuracy"],
            nsp_accuracy=row[HELDOUT]["next_sentence_accuracy"] if has_pairs else None,
        )
        measured.setdefault(row["step"], {})["heldout"] = {HELDOUT: evaluated}
    clock = training_clock(metrics)
    last = clock(metrics[-1]["step"]) if metrics else {}
    phases = tuple((phase["max_seq_length"], phase["share"]) for phase in recipe["phases"])
    points = []
    for step, fields in sorted(measured.items()):
        length = length_at(step, phases=phases, steps=recipe["steps"])
        known = {"step": step, "max_seq_length": length, **clock(step), **fields}
        points.append(TrainingPoint.model_validate(known))
    return Pretraining(
        steps=manifest.statistics.get("steps", recipe["steps"]),  # fewer if time was limited
        batch_size=recipe["batch_size"],
        tokens=round(last["tokens"]) if last else None,
        seconds=last.get("seconds"),
        device=manifest.execution.get("device", ""),
        ranks=manifest.execution.get("ranks"),
        phases=phases,
        curve=tuple(points),
        objective=recipe.get("objective", "masked_lm"),
        mixture=collect_mixture(manifest, losses, [row for row in curve if HELDOUT in row]),
    )


def collect_mixture(
    manifest: Manifest,
    losses: Sequence[JsonObject],
    evaluations: Sequence[JsonObject],
) -> tuple[MixedSource, ...]:
    """The mixture as it was; empty if sources had no names.

    losses, evaluations: the lines of the curve.
    """
    epochs = manifest.statistics.get("source_epochs", {})
    recipe = manifest.config["pretrain"]
    ends = [
        round(end * recipe["steps"]) for end in accumulate(p["share"] for p in recipe["phases"])
    ]
    # A line is the mean over the steps since the line before.
    read = [dict.fromkeys(epochs, 0.0) for _ in ends]
    before = 0
    for row in losses if epochs else ():
        phase = read[min(bisect_left(ends, row["step"]), len(ends) - 1)]
        for name, tokens in row["source_tokens"].items():
            phase[name] += tokens * (row["step"] - before)
        before = row["step"]
    return tuple(
        MixedSource(
            name=name,
            shares=tuple(phase[name] / max(sum(phase.values()), 1.0) for phase in read),
            tokens=round(sum(phase[name] for phase in read)),
            epochs=epochs[name],
            heldout=tuple(
                (row["step"], row["sources"][name]["masked_lm_loss"])
                for row in evaluations
                if name in row.get("sources", {})
            ),
        )
        for name in epochs
    )


def length_at(step: int, *, phases: Sequence[tuple[int, float]], steps: int) -> int:
    """The sequence length of step `step`, counted from 1."""
    # Rounded as in training, so that the change of length is at the same step.
    ends = [round(end * steps) for end in accumulate(share for _, share in phases)]
    return phases[min(bisect_left(ends, step), len(phases) - 1)][0]


def collect_sentences(evaluated: Artifact, report: ReportConfig) -> tuple[FilledSentence, ...]:
    """The masked sentences with their predictions.

    Predictions are compared with `report.answers`, or with the original word of held-out text.
    """
    if SENTENCES not in {entry.name for entry in evaluated.manifest.files}:
        return ()
    sentences = MaskedSentences.model_validate(evaluated.read_json(SENTENCES)).sentences
    if report.answers and len(report.answers) != len(sentences):
        raise UsageError(
            f"report.answers has {len(report.answers)} entries, but evaluate.masked_sentences "
            f"has {len(sentences)}; give one for each sentence, in the same order"
        )
    filled = []
    for place, entry in enumerate(sentences):
        answers: tuple[str, ...] = (entry.answer.lower(),) if entry.answer else ()
        if report.answers:
            answers = tuple(report.answers[place].lower().split(ALTERNATIVES))
        guesses = []
        for guess in entry.guesses:
            # Answers are compared without case: a cased encoder guesses "Paris" where the file may
            # say "paris".
            right = (rank for rank, word in enumerate(guess.words) if word.lower() in answers)
            correct = next(right, None)
            # Without show_text a report may leave the house, so it says how often guesses are
            # right, not what they are.
            text = {"words": guess.words, "probabilities": guess.probabilities}
            shown = text if report.show_text else {}
            guesses.append(Predictions(system=guess.system, correct=correct, **shown))
        filled.append(
            FilledSentence(
                sentence=entry.sentence if report.show_text else "",
                answers=answers if report.show_text else (),
                judged=bool(answers),
                guesses=tuple(guesses),
            )
        )
    return tuple(filled)


def collect_grid(finetuned: Artifact | None) -> tuple[GridPoint, ...]:
    """The cells of the grid that was searched, and which of them the seeds were trained at."""
    if finetuned is None or not finetuned.manifest.config["finetune"].get("grid"):
        return ()
    trials = Trials.model_validate(finetuned.read_json("trials.json")).trials

    def cell(trial: Trial) -> tuple[object, ...]:
        # With a batch size, steps tell the epochs apart.
        place = trial.batch_size, trial.learning_rate, trial.steps
        return trial.task, trial.system, *place

    chosen = {cell(trial) for trial in trials if not trial.point}
    return tuple(
        GridPoint(
            task=trial.task,
            system=trial.system,
            batch_size=trial.batch_size,
            learning_rate=trial.learning_rate,
            epochs=trial.epochs[-1].epoch,
            dev=trial.dev[trial.metric],
            chosen=cell(trial) in chosen,
        )
        for trial in trials
        if trial.point and trial.metric in trial.dev
    )


def recorded_seconds(finetuned: Artifact | None) -> dict[str, float]:
    """Durations of all that fine-tuning workers have timed."""
    seconds: dict[str, float] = {}
    for entry in finetuned.manifest.records if finetuned else ():
        if finetuned and entry.name.startswith(SECONDS):
            seconds |= finetuned.read_json(entry.name)
    return seconds


def choice_seconds(finetuned: Artifact | None) -> dict[str, dict[str, float]]:
    """Duration of the comparison of each approach, by task and approach."""
    found: dict[str, dict[str, float]] = {}
    for name, spent in recorded_seconds(finetuned).items():
        if name.startswith(CHOICES):
            task, _, approach = name.removeprefix(CHOICES).rpartition("-")
            found.setdefault(task, {})[approach] = spent
    return found


def trial_seconds(scores: Scores, finetuned: Artifact | None) -> dict[str, dict[str, float]]:
    """Median duration of a trial, by task and system."""
    seconds = recorded_seconds(finetuned)
    medians: dict[str, dict[str, float]] = {}
    for task in scores.tasks:
        for system in task.systems:
            # Only a seed may follow: `pretrained-last-linear` begins like `pretrained`, and trials
            # of grid points have shorter or longer epochs.
            own = re.compile(re.escape(f"trials/{task.name}-{system.name}-") + r"\d+\.json")
            taken = [spent for name, spent in seconds.items() if own.fullmatch(name)]
            if taken:
                medians.setdefault(task.name, {})[system.name] = statistics.median(taken)
    return medians


def collect_step(manifest: Manifest, record: RunRecord | None) -> StageFacts:
    """One artifact, with its time and memory if the record has them."""
    made = record.stages.get(manifest.stage) if record else None
    # A record of another artifact of this stage says nothing about this one.
    made = made if made and made.key == manifest.key else None
    rows = [entry.rows for entry in manifest.files if entry.rows is not None]
    argv = list(made.argv) if made else []
    for place, word in enumerate(argv):  # without folders that exist only on this machine
        if os.path.isabs(word) and not os.path.relpath(word).startswith(".."):
            argv[place] = os.path.relpath(word)
    return StageFacts(
        stage=manifest.stage,
        digest=manifest.digest,
        key=manifest.key,
        inputs=manifest.inputs,
        files=len(manifest.files),
        bytes=sum(entry.size for entry in manifest.files),
        rows=sum(rows) if rows else None,
        finished_at=manifest.execution.get("finished_at", ""),
        versions=manifest.versions,
        seconds=made.seconds if made else None,
        peak_memory=made.peak_memory if made else None,
        argv=tuple(argv),
    )


def changed_settings(
    manifests: Mapping[str, Manifest], record: RunRecord | None, *, name: str, report: ReportConfig
) -> dict[str, JsonValue]:
    """The run's configuration without default values, in the order of `RunConfig`.

    Without a record, it is put together from the configurations of the stages.
    """
    if record:
        run = RunConfig.model_validate(record.config)
        tables = run.model_dump(mode="json", exclude_defaults=True)
    else:
        parts = {key: value for one in manifests.values() for key, value in one.config.items()}
        # Stages also have fields that are not the run's.
        known = {key: value for key, value in parts.items() if key in RunConfig.model_fields}
        if names := parts.get("names"):  # of sources, which only the examples know by name
            sources = zip(known["corpus"]["sources"], names, strict=True)
            named = [{**source, "name": own} for source, own in sources]
            known["corpus"] = {**known["corpus"], "sources": named}
        tables = {
            **known,
            "name": name,
            "report": report.model_dump(mode="json", exclude_defaults=True),
        }
    # a preset implies its sizes: keep only those that differ
    encoder = dict(tables.get("encoder", {}))
    presets = FAMILY_PRESETS[encoder.get("family", "bert")]
    preset = presets.get(encoder.get("preset", "base") or "", ())
    for size_name, size in zip(SIZE_NAMES, preset, strict=False):
        if encoder.get(size_name) == size:
            del encoder[size_name]
    tables["encoder"] = encoder
    for table, field in TEXT_FIELDS.items() if not report.show_text else ():
        tables[table] = {k: v for k, v in tables.get(table, {}).items() if k != field}
    return {key: tables[key] for key in RunConfig.model_fields if tables.get(key) not in ({}, None)}
