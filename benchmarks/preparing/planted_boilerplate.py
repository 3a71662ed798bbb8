"""Boilerplate planted in 10,000 documents of three kinds: how much is found, and what else is lost.

    python benchmarks/preparing/planted_boilerplate.py --wikiextractor FOLDER

In:  a folder of WikiExtractor files: their paragraphs are the documents' own text.
Out: of planted lines, spans of three sentences and passages of more than 50 tokens the share that
     goes from all documents but one, and the share of other lines that are touched; seconds of
     processor time of the stage, on one core, with start-up.

Reports have a head and a foot of their company, mails a signature and a notice, pages a menu and a
foot, on lines of their own; every tenth document also an insertion within a paragraph: a disclaimer
of three sentences, or a passage of 60 words without a full stop. Each document also has an ordinary
short line of its own, such as `References`.
"""

import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.corpus import corpus_of
from benchmarks.measuring import Arguments, Figures, machine, measure, write_result, write_table
from cloze.pipeline.config.settings import BoilerplateStage, CleaningConfig, CorpusConfig
from cloze.pipeline.readers.input_shards import input_shards
from cloze.pipeline.text.texts import read_paragraphs, read_texts_and_paragraphs

KINDS = ("report", "mail", "page")
COMPANIES = 20
INSERTED = 10
"""One document in so many has an insertion."""
INSERTIONS = 5
"""Different ones of each form."""

MENU = ("Home", "About us", "Products", "News", "Contact", "Log in")
ORDINARY = ("Yes.", "References", "Thank you.", "Summary", "See below.")


@dataclass
class Document:
    """A document as lines, in which some are planted."""

    kind: str
    own: list[str]
    planted: list[str]
    inserted: str

    def text(self, rng: random.Random) -> str:
        """The planted lines around the document's own, the insertion within one of these."""
        own = list(self.own)
        if self.inserted:
            at = rng.choice([at for at, line in enumerate(own) if is_prose(line)])
            own[at] = f"{own[at]} {self.inserted}"
        cut = {"report": 1, "mail": 0, "page": len(MENU)}[self.kind]
        return "\n".join([*self.planted[:cut], *own, *self.planted[cut:]])


def is_prose(line: str) -> bool:
    """Whether it ends with a sentence, so that what follows begins one."""
    return line.endswith(".") and len(line.split()) > 6


def planted_lines(kind: str, company: str) -> list[str]:
    """What every document of a kind and company has."""
    if kind == "report":
        return [
            f"{company} Ltd, registered in England, annual report of the board, part A",
            f"The directors of {company} accept no liability for errors in this report.",
        ]
    if kind == "mail":
        signature = ["--", f"{company} support team", "Mondays to Fridays", "Tel. 020 7946 0000"]
        notice = "This message and any attachments are confidential and for the addressee only."
        return [*signature, notice, f"Please do not print this message of {company} without need."]
    foot = [f"All pages of this site are the property of {company} and its partners."]
    return [*MENU, *foot, "Imprint", "Privacy", "Terms of use", "Site map", "Cookies"]


def insertions(rng: random.Random) -> list[str]:
    """Disclaimers of three sentences, and long passages without a full stop."""
    letters = "abcdefghijklmnopqrstuvwxyz"

    def words(count: int) -> str:
        return " ".join("".join(rng.choices(letters, k=rng.randint(3, 9))) for _ in range(count))

    sentences = [
        " ".join(f"{words(rng.randint(8, 14)).capitalize()}." for _ in range(3))
        for _ in range(INSERTIONS)
    ]
    return [*sentences, *(words(60) for _ in range(INSERTIONS))]


def paragraphs(folder: str) -> Iterator[list[str]]:
    """The paragraphs of articles that have at least two, and one of prose."""
    corpus = corpus_of(folder, reader="wikiextractor")
    for shard in input_shards(corpus):
        for block in read_paragraphs(shard, corpus=corpus):
            for _, text in block.documents():
                lines = text.decode().splitlines()
                if len(lines) > 1 and any(map(is_prose, lines)):
                    yield lines


def make(folder: str, count: int, rng: random.Random) -> list[Document]:
    """The documents."""
    inserted = insertions(rng)
    return [
        Document(
            KINDS[number % 3],
            [*own[:1], rng.choice(ORDINARY), *own[1:]],
            planted_lines(KINDS[number % 3], f"Company{number // 3 % COMPANIES}"),
            rng.choice(inserted) if number % INSERTED == 0 else "",
        )
        for number, own in enumerate(islice(paragraphs(folder), count))
    ]


def without_boilerplate(
    documents: list[Document], texts: list[str], options: Figures, folder: Path
) -> tuple[list[list[str]], float]:
    """The lines that are left of each document, and the seconds of the stage."""
    sources = []
    folder.mkdir()
    for kind in KINDS:
        path = folder / f"{kind}.jsonl"
        of_kind = (text for one, text in zip(documents, texts, strict=True) if one.kind == kind)
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in of_kind))
        source = {"reader": "jsonl", "path": str(path), "line_break": "paragraph"}
        sources.append({**source, "boilerplate": options})
    corpus = CorpusConfig.model_validate({"sources": sources})
    config = BoilerplateStage(corpus=corpus).model_dump(mode="json")
    table = write_table(
        folder, "boilerplate", format_version=1, config=config, machine={"workers": 1}
    )
    took = measure([sys.executable, "-m", "cloze.pipeline.boilerplate", *table], cores="0")
    cleaning = CleaningConfig(boilerplate=str(folder / "boilerplate"))
    found = []
    for shard in input_shards(corpus):
        blocks = read_texts_and_paragraphs(shard, corpus=corpus, cleaning=cleaning)
        for block, paragraphs in blocks:
            positions = block.positions_D.tolist()
            for position, (_, text) in zip(positions, paragraphs.documents(), strict=True):
                found.append((shard.source, position, text.decode().splitlines()))
    found.sort(key=lambda one: one[:2])
    # Written by kind, read by source and position; the order of `documents` is another.
    by_kind = sorted(range(len(documents)), key=lambda number: KINDS.index(documents[number].kind))
    left: list[list[str]] = [[] for _ in documents]
    for number, (_, _, lines) in zip(by_kind, found, strict=True):
        left[number] = lines
    return left, took.cpu


def judged(documents: list[Document], left: list[list[str]], alone: list[list[str]]) -> Figures:
    """What has gone of what was planted, and of the rest.

    alone: what is left if nothing is planted: articles have lines and spans in common too.
    """
    found: Counter[str] = Counter()
    kept: Counter[tuple[str, str]] = Counter()
    for document, lines, unplanted in zip(documents, left, alone, strict=True):
        text, plain = "\n".join(lines), "\n".join(unplanted)
        found["planted"] += len(document.planted)
        found["planted_gone"] += sum(line not in lines for line in document.planted)
        if document.inserted:
            form = "sentences" if "." in document.inserted else "tokens"
            is_there = document.inserted in text
            found[form] += 1
            found[f"{form}_gone"] += not is_there
            kept[document.kind, document.inserted] += is_there
        found["other"] += len(document.own)
        found["repeated_in_articles"] += sum(line not in plain for line in document.own)
        # One to which something was appended is there if its own part is.
        found["touched"] += sum(line in plain and line not in text for line in document.own)
    figures: Figures = dict(found)
    figures["planted_share"] = found["planted_gone"] / found["planted"]
    for form in ("sentences", "tokens"):
        # One document of each source keeps each.
        stay = sum(("." in inserted) == (form == "sentences") for _, inserted in kept)
        figures[f"{form}_share_but_one"] = found[f"{form}_gone"] / max(found[form] - stay, 1)
    figures["touched_share"] = found["touched"] / found["other"]
    figures["insertions"] = len(kept)
    figures["insertions_kept_once"] = sum(times == 1 for times in kept.values())
    return figures


def main() -> None:
    """Make the documents, run the stage, compare, and write the result."""
    parser = Arguments(__doc__, output="boilerplate.json", wikiextractor=str, documents=10_000)
    arguments = parser.parse_args()
    rng, result = random.Random(1), dict[str, object](machine=machine())
    documents = make(arguments.wikiextractor, arguments.documents, rng)
    texts = [document.text(rng) for document in documents]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    result |= {"documents": len(documents), "megabytes": round(megabytes, 2)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for form, options in (("lines", {}), ("lines_and_spans", {"sentences": 3, "tokens": 50})):
            left, seconds = without_boilerplate(documents, texts, options, folder / form)
            own = ["\n".join(document.own) for document in documents]
            alone, _ = without_boilerplate(documents, own, options, folder / f"{form}_alone")
            speed = {"cpu_seconds": seconds, "mb_per_second": megabytes / seconds}
            result[form] = {**speed, **judged(documents, left, alone)}
    write_result(arguments.output, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
