"""Stage `labels`: labelled tasks derived from documentation and syntax trees.

In:  installed packages, some for training and development, others for test.
Out: tagging/ and pairs/, each with train.jsonl, dev.jsonl, test.jsonl and task.json.

    python -P -m cloze.demo.labels --config TABLE.json

Development data come from other modules than training data, test data from other packages. A hash
of seed and text selects the examples, drawing evenly from all packages while they last. No example
occurs in two splits.
"""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import TypeVar

from cloze.artifacts.config import parse
from cloze.artifacts.errors import UsageError
from cloze.artifacts.manifest import FileEntry
from cloze.artifacts.progress import Progress
from cloze.artifacts.results import TASK_SPLITS
from cloze.artifacts.rng import stream_seed
from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, commit, put_bytes, put_json
from cloze.demo.packages import Module, merged_symbols, read_modules
from cloze.demo.tasks import PAIR_TASK, TAGGING_TASK, Pair, Sentence, pairs, sentences
from cloze.pipeline.config.settings import LabelsConfig, LabelsStage

DEV_SHARE = 0.15
"""Share of the training packages' modules used for development."""

MAX_ITEMS_PER_MODULE = 20
"""Limits repetition: a module describes all its functions in much the same words."""


Corpus = dict[str, list[Module]]
"""Modules by distribution."""

Item = TypeVar("Item")


def make_labels(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage."""
    stage = parse(LabelsStage, table.config, source="stage labels")
    labels, seed = stage.labels, stage.seed
    names = (*labels.packages, *labels.test_packages)
    progress = Progress("labels", len(names), "packages")
    corpus: Corpus = {}
    for name in names:
        corpus[name] = list(read_modules(name))
        progress.advance(1, name)
    own = {name: merged_symbols(module.symbols for module in corpus[name]) for name in corpus}
    everywhere = merged_symbols(own.values())
    splits = _split(corpus, labels, seed=seed)

    tagged = choose_items(
        splits,
        lambda name, module: sentences(module.docstrings, own[name], everywhere),
        counts=_counts(labels.tagging_train_sentences, labels.evaluation_examples),
        address=(seed, "tagging"),
    )
    couples = choose_items(
        splits,
        lambda name, module: pairs(module.docstrings, seed=seed),
        # An item is a positive and a negative pair, so two examples.
        counts=_counts(labels.pair_train_examples // 2, labels.evaluation_examples // 2),
        address=(seed, "pairs"),
        examples=iter,
    )
    paired = {split: list(itertools.chain(*found)) for split, found in couples.items()}
    files = [
        *_task(table.output, TAGGING_TASK, tagged),
        *_task(table.output, PAIR_TASK, paired),
    ]
    return commit(table, files, statistics=_statistics(tagged, paired))


def choose_items(
    splits: Mapping[str, Corpus],
    label: Callable[[str, Module], Iterable[Item]],
    *,
    counts: Mapping[str, int],
    address: tuple[int, str],
    examples: Callable[[Item], Iterable[object]] = lambda item: (item,),
) -> dict[str, list[Item]]:
    """Draw `counts` distinct items for every split; no example occurs in two splits.

    Packages take turns, and modules are ordered by a hash; only as many as needed are labelled.
    """
    taken: set[object] = set()
    chosen: dict[str, list[Item]] = {}
    for split in TASK_SPLITS:
        by_package = [
            _items(modules, partial(label, name), address)
            for name, modules in splits[split].items()
        ]
        found: list[Item] = []
        # round-robin over packages; None stands for an exhausted one
        for item in itertools.chain.from_iterable(itertools.zip_longest(*by_package)):
            # An item may hold several examples; one that shares any with what was taken is left
            # out, whole.
            own = set() if item is None else set(examples(item))
            if own and own.isdisjoint(taken):
                taken |= own
                found.append(item)
            if len(found) == counts[split]:
                break
        chosen[split] = found
        if not chosen[split]:
            raise UsageError(
                f"labels: nothing to label for {address[1]}/{split} in "
                f"{', '.join(splits[split])}; choose packages with more documentation"
            )
    return chosen


def _split(corpus: Corpus, labels: LabelsConfig, *, seed: int) -> dict[str, Corpus]:
    """Modules by split and package; a hash of the name selects development modules."""

    def is_dev(module: Module) -> bool:
        return int(stream_seed(seed, "labels dev", module.name)) < DEV_SHARE * 2**64

    # Test packages are others than those of training: what is measured is documentation that nobody
    # has seen.
    known = {name: corpus[name] for name in labels.packages}
    return {
        "train": {name: [one for one in found if not is_dev(one)] for name, found in known.items()},
        "dev": {name: [one for one in found if is_dev(one)] for name, found in known.items()},
        "test": {name: corpus[name] for name in labels.test_packages},
    }


def _counts(train: int, evaluation: int) -> dict[str, int]:
    return {"train": train, "dev": evaluation, "test": evaluation}


def _items(
    modules: list[Module], label: Callable[[Module], Iterable[Item]], address: tuple[int, str]
) -> Iterator[Item]:
    """A few items from each module."""
    for module in _shuffled(modules, address, lambda module: module.name):
        yield from _shuffled(label(module), address, repr)[:MAX_ITEMS_PER_MODULE]


def _shuffled(
    items: Iterable[Item], address: tuple[int, str], text_of: Callable[[Item], str]
) -> list[Item]:
    """The items in the order of a hash of their text."""
    return sorted(items, key=lambda item: int(stream_seed(*address, text_of(item))))


def _task(
    output: str,
    task: Mapping[str, object],
    splits: Mapping[str, list[Sentence]] | Mapping[str, list[Pair]],
) -> Iterator[FileEntry]:
    """Write the files of one task."""
    for split, items in splits.items():
        lines = (json.dumps(asdict(item), ensure_ascii=False) + "\n" for item in items)
        name = f"{task['name']}/{split}.jsonl"
        yield put_bytes(output, "".join(lines).encode(), name=name, rows=len(items))
    yield put_json(output, task, name=f"{task['name']}/task.json")


def _statistics(
    tagged: Mapping[str, list[Sentence]], paired: Mapping[str, list[Pair]]
) -> dict[str, object]:
    """Counts of examples, words and labels in every split."""
    return {
        "tagging": {
            split: {
                "examples": len(found),
                "words": sum(len(sentence.words) for sentence in found),
                "labels": _sorted_counts(tag for sentence in found for tag in sentence.tags),
            }
            for split, found in tagged.items()
        },
        "pairs": {
            split: {"examples": len(found), "labels": _sorted_counts(one.label for one in found)}
            for split, found in paired.items()
        },
    }


def _sorted_counts(labels: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(labels).items()))


if __name__ == "__main__":
    run_program(make_labels)
