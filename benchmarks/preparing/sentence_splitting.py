"""Accuracy and speed of sentence segmenters on text with known sentence boundaries.

    python benchmarks/preparing/sentence_splitting.py --text corpus.txt \
        --conllu en_ewt-ud-test.conllu en_gum-ud-test.conllu \
        --output benchmarks/results/sentences.json

In:  CoNLL-U treebanks with `# newpar` marks (Universal Dependencies; not part of the project);
     a text to measure speed on, whose line breaks are removed.
Out: for ours, for a single regular expression, and for blingfire and pysbd if installed:
     precision, recall and F1 of the boundaries inside paragraphs; MB of text per second of
     processor time.
"""

import importlib.util
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measuring import Arguments, machine, write_result
from cloze.pipeline.text.sentences import split_sentences

Segmenter = Callable[[Sequence[str]], list[set[int]]]
"""From paragraphs to the positions of the spaces at which each is split."""


class Paragraph(NamedTuple):
    """A paragraph and the positions of the spaces between its sentences."""

    text: str
    ends: frozenset[int]


def paragraphs(path: str) -> Iterator[Paragraph]:
    """The paragraphs of a treebank."""
    sentences: list[tuple[str, bool]] = []
    text, last = "", ""
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.startswith(("# newpar", "# newdoc")) and sentences:
                yield _paragraph(sentences)
                sentences = []
            elif line.startswith("# text = "):
                text = " ".join(line[9:].split())
            elif line[:1].isdigit():
                last = line
            elif not line.strip() and text:
                sentences.append((text, "SpaceAfter=No" not in last))
                text = ""
    if sentences:
        yield _paragraph(sentences)


def _paragraph(sentences: list[tuple[str, bool]]) -> Paragraph:
    text, ends = "", set()
    for number, (sentence, space) in enumerate(sentences, start=1):
        text += sentence
        if space and number < len(sentences):
            ends.add(len(text))
            text += " "
    return Paragraph(text, frozenset(ends))


def ours(texts: Sequence[str]) -> list[set[int]]:
    """This project's rules, all paragraphs at once."""
    raw = "".join(f"{text}\n" for text in texts).encode()
    cut, _ = split_sentences(np.frombuffer(raw, dtype=np.uint8), np.array([len(raw)]))
    lines = iter(cut.tobytes().decode().split("\n"))
    found: list[set[int]] = []
    for text in texts:
        ends, place = set[int](), len(next(lines))
        while place < len(text):
            ends.add(place)
            place += 1 + len(next(lines))
        found.append(ends)
    return found


_SIMPLE = re.compile(r"(?<=[.!?])[\"')\]]* (?=[\"'(\[]*[A-Z0-9])")


def one_regular_expression(texts: Sequence[str]) -> list[set[int]]:
    """Terminal punctuation, a space, a capital letter."""
    return [{match.end() - 1 for match in _SIMPLE.finditer(text)} for text in texts]


def blingfire(texts: Sequence[str]) -> list[set[int]]:
    """Microsoft's finite-state segmenter."""
    import blingfire as library

    found = [library.text_to_sentences_and_offsets(text)[1] for text in texts]
    return [
        {start - 1 for start, _ in offsets[1:] if text[start - 1] == " "}
        for text, offsets in zip(texts, found, strict=True)
    ]


def pysbd(texts: Sequence[str]) -> list[set[int]]:
    """The rule-based segmenter built for its own 48 golden rules."""
    import pysbd as library

    segmenter = library.Segmenter(language="en", clean=False, char_span=True)
    return [
        {span.start - 1 for span in segmenter.segment(text)[1:] if text[span.start - 1] == " "}
        for text in texts
    ]


def accuracy(segmenter: Segmenter, corpus: list[Paragraph]) -> dict[str, float]:
    """Precision, recall and F1 over all boundaries inside paragraphs."""
    found = segmenter([paragraph.text for paragraph in corpus])
    right = sum(len(a & paragraph.ends) for a, paragraph in zip(found, corpus, strict=True))
    precision = right / max(sum(map(len, found)), 1)
    recall = right / max(sum(len(paragraph.ends) for paragraph in corpus), 1)
    f1 = 2 * precision * recall / max(precision + recall, 1e-9)
    return {"precision": precision, "recall": recall, "f1": f1}


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
    documents = raw[: raw.rindex(b"\n")].decode("utf-8", "replace").split("\n\n")
    return "".join(f"{' '.join(document.split())}\n" for document in documents if document.strip())


def main() -> None:
    """Read the arguments, measure, print, write."""
    parser = Arguments(__doc__, output="", text=str)
    parser.add_argument("--conllu", nargs="+", required=True)
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
