"""Accuracy and speed of sentence segmenters on text with known sentence boundaries.

    python benchmarks/preparing/sentence_splitting.py --text corpus.txt \
        --conllu en_ewt-ud-test.conllu hi_pud-ud-test.conllu --learn de_gsd-ud-dev.conllu \
        --output benchmarks/results/sentences.json

In:  CoNLL-U treebanks (Universal Dependencies; not part of the project), whose paragraphs are those
     marked, or else ten sentences each; a text to measure speed on, whose line breaks are removed;
     treebanks to learn abbreviations from, for those of the same name.
Out: for ours, for a single regular expression, and for blingfire and pysbd if installed:
     precision, recall and F1 of the boundaries inside paragraphs, and the recall of those after a
     mark, of all treebanks and for ours of each; MB of text per second of processor time.
"""

import importlib.util
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measuring import Arguments, machine, write_result
from cloze.pipeline.text.abbreviations import learn_abbreviations
from cloze.pipeline.text.scripts import ends_with_mark, join_sentences
from cloze.pipeline.text.sentences import split_sentences

Segmenter = Callable[[Sequence[str]], list[set[int]]]
"""From paragraphs to where each is split, as numbers of characters that are not white space."""

SENTENCES_OF_A_PARAGRAPH = 10
"""In treebanks without paragraphs."""


class Paragraph(NamedTuple):
    """A paragraph and where its sentences end."""

    text: str
    ends: frozenset[int]
    """Numbers of characters that are not white space before each boundary inside it."""
    marked: frozenset[int]
    """Those of them after a mark that ends sentences."""


def paragraphs(path: str) -> Iterator[Paragraph]:
    """The paragraphs of a treebank."""
    lines = Path(path).read_text("utf-8").splitlines()
    has_marks = any(line.startswith("# newpar") for line in lines)
    sentences: list[str] = []
    for line in lines:
        if sentences and (
            line.startswith(("# newpar", "# newdoc"))
            if has_marks
            else len(sentences) == SENTENCES_OF_A_PARAGRAPH
        ):
            yield _paragraph(sentences)
            sentences = []
        if line.startswith("# text = "):
            sentences.append(" ".join(line[9:].split()))
    if sentences:
        yield _paragraph(sentences)


def _paragraph(sentences: list[str]) -> Paragraph:
    counts = np.cumsum([len(sentence.replace(" ", "")) for sentence in sentences]).tolist()
    marked = {end for end, one in zip(counts, sentences, strict=True) if ends_with_mark(one)}
    # The last sentence ends with the paragraph, which is no boundary inside it.
    inner = frozenset(counts[:-1])
    return Paragraph(join_sentences(sentences), inner, inner & marked)


def ours(texts: Sequence[str], abbreviations: tuple[str, ...] = ()) -> list[set[int]]:
    """This project's rules, all paragraphs at once."""
    raw = "".join(f"{text}\n" for text in texts).encode()
    cut = split_sentences(
        np.frombuffer(raw, dtype=np.uint8), np.array([len(raw)]), abbreviations
    ).text
    lines = iter(cut.tobytes().decode().split("\n"))
    found: list[set[int]] = []
    # Lines belong to a paragraph until they have as many characters as it has.
    for text in texts:
        whole, count, ends = len(text.replace(" ", "")), 0, set[int]()
        while count < whole:
            ends.add(count)
            count += len(next(lines).replace(" ", ""))
        found.append(ends - {0})
    return found


def _at_spaces(texts: Sequence[str], spaces: Iterable[Iterable[int]]) -> list[set[int]]:
    """The positions of spaces as numbers of the other characters before them."""
    return [
        {place - text.count(" ", 0, place) for place in places}
        for text, places in zip(texts, spaces, strict=True)
    ]


_SIMPLE = re.compile(r"(?<=[.!?])[\"')\]]* (?=[\"'(\[]*[A-Z0-9])")


def one_regular_expression(texts: Sequence[str]) -> list[set[int]]:
    """Terminal punctuation, a space, a capital letter."""
    return _at_spaces(texts, ([m.end() - 1 for m in _SIMPLE.finditer(text)] for text in texts))


def blingfire(texts: Sequence[str]) -> list[set[int]]:
    """Microsoft's finite-state segmenter."""
    import blingfire as library

    found = [library.text_to_sentences_and_offsets(text)[1] for text in texts]
    starts = ([start for start, _ in offsets[1:]] for offsets in found)
    return _at_spaces(texts, ([start - 1 for start in places] for places in starts))


def pysbd(texts: Sequence[str]) -> list[set[int]]:
    """The rule-based segmenter built for its own 48 golden rules."""
    import pysbd as library

    segmenter = library.Segmenter(language="en", clean=False, char_span=True)
    spans = (segmenter.segment(text)[1:] for text in texts)
    return _at_spaces(texts, ([span.start - 1 for span in found] for found in spans))


def accuracy(segmenter: Segmenter, corpus: list[Paragraph]) -> dict[str, float]:
    """Precision, recall and F1 over all boundaries inside paragraphs."""
    found = segmenter([paragraph.text for paragraph in corpus])
    right = sum(len(a & paragraph.ends) for a, paragraph in zip(found, corpus, strict=True))
    precision = right / max(sum(map(len, found)), 1)
    recall = right / max(sum(len(paragraph.ends) for paragraph in corpus), 1)
    f1 = 2 * precision * recall / max(precision + recall, 1e-9)
    marked = sum(len(paragraph.marked) for paragraph in corpus)
    after_marks = sum(len(a & paragraph.marked) for a, paragraph in zip(found, corpus, strict=True))
    return {
        "precision": precision,
        "recall": recall,
        "f1": f1,
        "recall_after_marks": after_marks / max(marked, 1),
    }


def of_each_treebank(paths: Sequence[str], learn_from: Sequence[str]) -> dict[str, object]:
    """Our accuracy on each treebank, without and with abbreviations learnt from the same."""

    def named(name: str, files: Sequence[str]) -> list[Paragraph]:
        return [one for path in files if _name(path) == name for one in paragraphs(path)]

    results: dict[str, object] = {}
    for name in dict.fromkeys(map(_name, paths)):
        corpus, sample = named(name, paths), named(name, learn_from)
        found: dict[str, object] = {
            "boundaries": sum(len(paragraph.ends) for paragraph in corpus),
            "after_marks": sum(len(paragraph.marked) for paragraph in corpus),
            **accuracy(ours, corpus),
        }
        if sample:
            words = tuple(learn_abbreviations([paragraph.text for paragraph in sample]))
            learnt = accuracy(partial(ours, abbreviations=words), corpus)
            found |= {"abbreviations": list(words), "with_abbreviations": learnt}
        results[name] = found
        print(name, *(f"{k} {v:.3f}" for k, v in found.items() if isinstance(v, float)))
    return results


def _name(path: str) -> str:
    return Path(path).name.partition("-ud-")[0]


def speed(segmenter: Segmenter, text: str) -> float:
    """MB per second of processor time, the better of two runs."""
    seconds = []
    for _ in range(2):
        started = time.process_time()
        if segmenter is ours:
            raw = np.frombuffer(text.encode(), dtype=np.uint8)
            split_sentences(raw, np.array([len(raw)]))
        elif segmenter is blingfire:
            import blingfire as library

            for paragraph in text.splitlines():  # computing offsets would cost more than splitting
                library.text_to_sentences(paragraph)
        else:
            segmenter(text.splitlines())
        seconds.append(time.process_time() - started)
    return len(text.encode()) / min(seconds) / 1e6


def raw_paragraphs(path: str, megabytes: float) -> str:
    """The beginning of a file in Google's format, with one document per line."""
    with open(path, "rb") as file:
        raw = file.read(int(megabytes * 1e6))
    # The last line may be cut.
    documents = raw[: raw.rindex(b"\n")].decode("utf-8", "replace").split("\n\n")
    return "".join(f"{' '.join(document.split())}\n" for document in documents if document.strip())


def main() -> None:
    """Read the arguments, measure, print, write."""
    parser = Arguments(__doc__, output="", text=str)
    parser.add_argument("--conllu", nargs="+", required=True)
    parser.add_argument("--learn", nargs="*", default=[])
    arguments = parser.parse_args()
    corpus = [paragraph for path in arguments.conllu for paragraph in paragraphs(path)]
    segmenters: list[tuple[Segmenter, float]] = [(ours, 4.0), (one_regular_expression, 4.0)]
    for library, megabytes in ((blingfire, 4.0), (pysbd, 0.1)):
        if importlib.util.find_spec(library.__name__):
            segmenters.append((library, megabytes))
        else:
            print(f"{library.__name__} is not installed: left out")
    result: dict[str, object] = {
        "machine": machine(),
        "boundaries": sum(len(paragraph.ends) for paragraph in corpus),
        "treebanks": of_each_treebank(arguments.conllu, arguments.learn),
    }
    for segmenter, megabytes in segmenters:
        scores = accuracy(segmenter, corpus)
        scores["mb_per_second"] = speed(segmenter, raw_paragraphs(arguments.text, megabytes))
        result[segmenter.__name__] = scores
        line = " ".join(f"{name} {value:.4g}" for name, value in scores.items())
        print(f"{segmenter.__name__:24} {line}")
    write_result(arguments.output, result)


if __name__ == "__main__":
    main()
