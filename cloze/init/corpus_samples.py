"""Examine a corpus by sampling its files: how to read it, and how much text it contains.

In:  a file, folder, glob or URL.
Out: `Look`: for each kind of files in it a suitable reader, the column with the text, bytes of
     text, documents and samples of the text; and files that no reader reads.

Only parts of a few files are read. The guess is written to a configuration, where users can correct
it.

In plain text, blank lines may separate documents or paragraphs. The guess depends on the number of
blocks of lines and the length of their lines; its reason mentions the alternative. Settings for
line breaks, HTML and the language are guessed from the same samples.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from cloze.artifacts.errors import ClozeError, IntegrityError, UsageError
from cloze.artifacts.filesystem import InputFile, find_files
from cloze.flows.report.units import plural
from cloze.init.corpus_files import LEFT_OUT, FilesOfKind, choose_files, described
from cloze.init.text_fields import Row, csv_rows, table_rows, text_field
from cloze.pipeline.config.formats import BLANK_LINE, FORMATS
from cloze.pipeline.config.settings import LineBreak, ReaderName, SourceConfig
from cloze.pipeline.readers.compression import can_be_cut, stream
from cloze.pipeline.readers.documents import MAX_RECORD_BYTES, Piece
from cloze.pipeline.readers.input_shards import reader_named
from cloze.pipeline.readers.structure import json_objects
from cloze.pipeline.text.scripts import ends_with_mark
from cloze.pipeline.text.sentences import count_sentences

SAMPLE_BYTES = 1 << 16
STRETCHES = 16
"""Samples per file, evenly spread: documents may be sorted by length."""
WHOLE_BYTES = 1 << 25
"""Bytes read in total of files that cannot be sampled in the middle, mainly compressed ones."""
SAMPLED_FILES = 16
SAMPLED_ROWS = 100

COMPRESSION = {".gz": 3.0, ".bz2": 4.0, ".xz": 4.0, ".zst": 3.5}
"""Typical bytes of text per compressed byte, for files too long to read to the end."""

TABLES = ("jsonl", "csv", "parquet", "arrow")
"""Readers of records, of which one field is the text."""
PAGES = ("html", "warc")
"""Readers of pages, of which only a part is text."""

MANY_BLOCKS = 200
"""Per file; an article rarely has so many paragraphs."""
SOME_BLOCKS = 12
"""Minimum number of blocks whose lines distinguish paragraphs from documents."""
FEW_FILES = 16
"""With more files, each is taken as a document: so many collections of documents are rare."""
SHORT_LINE, WRAPPED_WIDTH = 40, 100
"""Characters: most lines of hard-wrapped text have at least the former, hardly any exceeds the
latter."""
MOST, SOME, HARDLY_ANY = 0.5, 0.2, 0.02
"""Shares of lines."""
NEARLY_ALL = 0.95
FEWEST_LINES = 20
"""Minimum number of lines for which line breaks are interpreted."""

HTML = re.compile(
    r"<br ?/?>|</?(?:[pib]|div|span|li|ul|td|a|h[1-6]|script|style)\b[^<>]*>"
    r"|&(?:amp|lt|gt|quot|nbsp|apos|#\d+);"
)
HTML_PER_CHARACTER = 1e-4
"""Minimum HTML entities and tags per character, so that isolated ones do not count."""

COMMON_WORDS = {
    "English": "the of and to in that is was for with",
    "German": "der die und das nicht ist von den mit ein",
    "French": "le la les et des est dans que pour une",
    "Spanish": "el los las una que por con para del como",
    "Italian": "il che di della per con una sono gli non",
    "Portuguese": "os uma que não para com do da em mais",
    "Dutch": "de het een van en dat niet zijn met voor",
    "Polish": "nie się jest na że do jak ale tak przez",
    "Swedish": "och att det som en på är av för med",
    "Turkish": "ve bir bu için ile olarak çok daha gibi olan",
    # Where a script has several languages, its others stand beside the one with a stemmer.
    "Russian": "и в не на что с как по из его",
    "Ukrainian": "і в не на що з як та до його",
    "Bulgarian": "и в не на се да от за са по",
    "Serbian": "и у не на је се да од за су",
    "Arabic": "في من على إلى أن التي عن مع هذا ما",
    "Persian": "و در به از که این را با است برای",
    "Urdu": "کے میں کی سے کا ہے اور کو نے پر",
    "Hindi": "के में की है से और का को ने पर",
    "Marathi": "आणि आहे या व हे ते होते आहेत हा ही",
}
LEAST_SHARE = 0.04
"""Minimum share of words among a language's ten most common ones; a quarter in English text."""


STEMMERS = {
    **{name: name.lower() for name in ("English", "German", "French", "Spanish", "Italian")},
    **{name: name.lower() for name in ("Portuguese", "Dutch", "Polish", "Swedish", "Turkish")},
    **{name: name.lower() for name in ("Russian", "Arabic", "Hindi")},
    "Greek script": "greek",
    "Tamil script": "tamil",
    "Armenian script": "armenian",
}
"""Snowball's stemmer for what `language` guesses; for others the user names one."""


@dataclass(frozen=True)
class LookAtSource:
    """A guess at the format and size of the files that one reader reads."""

    path: str
    files: int
    text_bytes: float
    """Estimated bytes of text."""
    reader: ReaderName
    text_field: str = ""
    """Column or key, for readers that need one."""
    why: str = ""
    """The reason for the guess."""
    why_field: str = ""
    """The reason for that of the column or key."""
    documents: float = 0.0
    """Estimated number."""
    samples: tuple[str, ...] = ()
    """The beginnings of some files, or of some rows."""
    exclude: tuple[str, ...] = ()
    """Patterns of files to leave out."""
    html: bool = False
    """Whether the text contains HTML that its reader does not expect."""
    line_break: LineBreak | None = None
    """The apparent meaning of its line breaks."""
    why_line_break: str = ""
    """The reason for that guess."""

    @property
    def source(self) -> dict[str, object]:
        """Its location and how to read it, as in a configuration."""
        optional = {
            "exclude": list(self.exclude),
            "text_field": self.text_field,
            "html": self.html,
            "line_break": self.line_break,
        }
        given = {key: value for key, value in optional.items() if value}
        return {"reader": self.reader, "path": self.path, **given}


@dataclass(frozen=True)
class Look:
    """A guess at a corpus: what kinds of documents it has, and how to read each."""

    path: str
    sources: tuple[LookAtSource, ...]
    """One for each kind, that of most bytes first."""
    odd: tuple[str, ...] = ()
    """Files that are left out, empty or damaged, each with the reason."""

    @property
    def files(self) -> int:
        """Number of files that are read."""
        return sum(one.files for one in self.sources)

    @property
    def text_bytes(self) -> float:
        """Estimated bytes of text."""
        return sum(one.text_bytes for one in self.sources)

    @property
    def documents(self) -> float:
        """Estimated number of documents."""
        return sum(one.documents for one in self.sources)

    @property
    def samples(self) -> tuple[str, ...]:
        """The beginnings of some files, or of some rows."""
        return tuple(text for one in self.sources for text in one.samples)

    @property
    def why(self) -> str:
        """The reason for each reader, with the number of its files if there are several readers."""
        if len(self.sources) == 1:
            return self.sources[0].why
        return "; ".join(f"{plural(one.files, 'file')}: {one.why}" for one in self.sources)


@dataclass(frozen=True)
class Sample:
    """The parts of a file that were read."""

    beginning: str
    """The start of the text, as readers see it."""
    stretches: tuple[str, ...]
    """Everything that was read."""
    text_per_byte: float | None
    """Bytes of text per byte on disk; None if the file was not read to its end."""


@dataclass(frozen=True)
class Sampled:
    """What samples of a corpus tell about all of it."""

    text_bytes: float
    texts: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    """Records, of tables and JSON lines."""
    rows_in_all: float = 0.0
    """Estimated number of records, where files state theirs."""
    stretches: tuple[str, ...] = ()
    """All text that was read."""
    share: float = 1.0
    """Text per decompressed byte."""
    unread: tuple[str, ...] = ()
    """Files that could not be read, each with the reason."""

    def documents(self, reader: ReaderName) -> float:
        """Estimated number of documents; 0: one per file."""
        sampled = sum(len(text.encode()) for text in self.stretches)
        document = FORMATS[reader].document
        if not document or not sampled:
            return self.rows_in_all
        marks = sum(len(re.findall(document, text)) for text in self.stretches)
        # Marks per byte that was read, times all decompressed bytes, of which `share` is text.
        return self.text_bytes / self.share * marks / sampled


def look(path: str, exclude: Sequence[str] = ()) -> Look:
    """Examine the corpus at `path`, without files that match a pattern of `exclude`.

    Of several kinds of documents, one that cannot be read (a table without prose, damaged files) is
    left out; a single one raises its error.
    """
    choice = choose_files(path, find_files(path, exclude))
    sources: list[LookAtSource] = []
    odd = [*choice.odd]
    errors: list[ClozeError] = []
    for kind in choice.kinds:
        try:
            found, unread = _look_at(kind, path, exclude)
        except (IntegrityError, UsageError) as error:
            errors.append(error)
            first, *rest = (file.path.rsplit("/", 1)[-1] for file in kind.files)
            more = f" and {plural(len(rest), 'more file')}" if rest else ""
            why = str(error).removeprefix(f"{path}: ")
            odd.append(f"{first}{more} ({described(kind.reader)}, {why}; {LEFT_OUT}")
        else:
            sources.append(found)
            odd += unread
    if not sources:
        raise errors[0]
    return Look(path, tuple(sources), tuple(odd))


def _look_at(
    kind: FilesOfKind, path: str, exclude: Sequence[str]
) -> tuple[LookAtSource, tuple[str, ...]]:
    """A guess at the files of one kind, and those of the sampled ones that could not be read."""
    files = kind.files
    # Evenly spread over the names, since neighbours are often of one kind.
    sampled = list(files[:: max(1, len(files) // SAMPLED_FILES)][:SAMPLED_FILES])
    seen = _sampled_corpus(kind.reader, sampled, size=sum(file.size for file in files))
    field, why_field, texts = "", "", seen.texts
    if kind.reader in TABLES:
        field, why_field, texts = text_field(seen.rows, path)
    reader, why = kind.reader, f"{described(kind.reader)}, by the content"
    # `text` stands for prose of any layout, which the samples tell apart.
    if reader == "text":
        reader, why = plain_layout(texts, files=len(files), text_bytes=seen.text_bytes)
    documents = seen.documents(reader) or float(len(files))
    known = reader_named(reader).line_break != "detect"
    line_break = None if known else line_breaks(texts)
    found = LookAtSource(
        path=path,
        files=len(files),
        text_bytes=seen.text_bytes,
        reader=reader,
        text_field=field,
        why=why,
        why_field=why_field,
        documents=documents,
        samples=texts,
        exclude=(*exclude, *kind.exclude),
        html=not FORMATS[reader].mark and is_html(texts),
        line_break=line_break[0] if line_break else None,
        why_line_break=line_break[1] if line_break else "",
    )
    return found, seen.unread


def _sampled_corpus(reader: ReaderName, files: list[InputFile], *, size: int) -> Sampled:
    """What is known of files of `size` bytes in total from some of them."""
    if reader in ("parquet", "arrow"):
        tables = [table_rows(file, SAMPLED_ROWS) for file in files]
        per_byte = sum(count for count, _ in tables) / max(sum(file.size for file in files), 1)
        rows = tuple(row for _, rows in tables for row in rows)
        # The files' size stands for that of their text, which is not known.
        return Sampled(text_bytes=float(size), rows=rows, rows_in_all=size * per_byte)
    read, unread = _samples(files, reader)
    # Text per byte on disk, of files that were read to their end; else as is usual for the
    # compression.
    known = {file: s.text_per_byte for file, s in read.items() if s.text_per_byte is not None}
    whole = sum(file.size for file in known)  # files that were read to their end
    text = sum(file.size * ratio for file, ratio in known.items())
    end = next((end for end in COMPRESSION if files[0].path.endswith(end)), "")
    text_bytes = size * (text / whole if whole else COMPRESSION.get(end, 1.0))
    odd = tuple(
        f"{file.path.rsplit('/', 1)[-1]} (not readable: {str(error).partition(': ')[2]})"
        for file, error in unread.items()
    )
    texts, share = tuple(sample.beginning for sample in read.values()), 1.0
    if reader in PAGES:
        texts, share = _page_texts(reader, read)
    rows = ()
    if reader in TABLES:
        rows = tuple(
            row for file, sample in read.items() for row in _records(sample.beginning, file, reader)
        )
    return Sampled(
        text_bytes=text_bytes * share,
        texts=texts,
        rows=rows,
        unread=odd,
        stretches=tuple(text for sample in read.values() for text in sample.stretches),
        share=share,
    )


def _page_texts(
    reader: ReaderName, samples: Mapping[InputFile, Sample]
) -> tuple[tuple[str, ...], float]:
    """The texts of some pages, and the share of text in the decompressed bytes that hold them."""
    source = SourceConfig(reader=reader, path="-")
    limit = WHOLE_BYTES // len(samples)
    texts, size = [], 0.0
    for file, sample in samples.items():
        # Of an archive only the beginning is read, and only its bytes count.
        whole = _decompressed_bytes(file, sample)
        stop = None if reader == "html" or whole <= limit else limit
        for block in reader_named(reader).read(Piece(file.path, stop=stop), source):
            texts += [text.decode("utf-8", "replace") for _, text in block.documents()]
        size += whole if stop is None else stop
        if size > WHOLE_BYTES:
            break
    share = sum(len(text.encode()) for text in texts) / max(size, 1.0)
    return tuple(texts[:SAMPLED_ROWS]), min(share, 1.0)


def _decompressed_bytes(file: InputFile, sample: Sample) -> float:
    """Infinite for compressed files of which the sample did not reach the end."""
    if sample.text_per_byte is not None:
        return file.size * sample.text_per_byte
    return float(file.size) if can_be_cut(file.path) else math.inf


def _records(text: str, file: InputFile, reader: ReaderName) -> Iterator[Row]:
    """The whole records at the beginning of a file of JSON lines or a table."""
    return iter(json_objects(text)) if reader == "jsonl" else csv_rows(text, file.path)


def _samples(
    files: list[InputFile], reader: ReaderName
) -> tuple[dict[InputFile, Sample], dict[InputFile, ClozeError]]:
    """Samples of the readable files, and errors of the others; raises if none is readable."""
    samples: dict[InputFile, Sample] = {}
    errors: dict[InputFile, ClozeError] = {}
    for file in files:
        try:
            limit = WHOLE_BYTES // len(files)
            samples[file] = _sample(file, reader, limit=limit)
        except (IntegrityError, UsageError) as error:
            errors[file] = error
    if not samples:
        raise next(iter(errors.values()))
    return samples, errors


def _sample(file: InputFile, reader: ReaderName, *, limit: int) -> Sample:
    """Evenly spread parts of a file, or its first `limit` bytes if only its start can be read.

    The beginning has at least one whole record, where there are records.
    """
    is_json = reader == "jsonl"
    read = partial(stream, file.path, at_a_time=SAMPLE_BYTES, is_json=is_json)
    if file.size > STRETCHES * SAMPLE_BYTES and can_be_cut(file.path, is_json=is_json):
        # The beginning of a large file may be unlike the rest: a header, a preface, one author.
        starts = range(0, file.size - SAMPLE_BYTES + 1, file.size // STRETCHES)
        found, ratio = [next(read(at), b"") for at in starts], None
    else:
        chunks, found = read(), []
        for chunk in chunks:
            found.append(chunk)
            if sum(map(len, found)) >= limit:
                break
        # One chunk more shows whether this was all.
        at_end = next(chunks, None) is None
        ratio = sum(map(len, found)) / file.size if at_end and file.size else None
        found = [b"".join(found)]
    beginning = found[0][:SAMPLE_BYTES].decode("utf-8", "replace")
    if reader in ("jsonl", "csv"):
        beginning = _with_a_record(beginning, read(0), file, reader)
    return Sample(beginning, tuple(text.decode("utf-8", "replace") for text in found), ratio)


def _with_a_record(
    beginning: str, chunks: Iterator[bytes], file: InputFile, reader: ReaderName
) -> str:
    """The beginning of a file up to the end of a record, or of the longest possible one."""
    found, wanted = bytearray(), 2 * SAMPLE_BYTES
    while next(_records(beginning, file, reader), None) is None and len(found) < MAX_RECORD_BYTES:
        while len(found) < wanted and (chunk := next(chunks, b"")):
            found += chunk
        if len(found) < wanted:  # all of it
            return found.decode("utf-8", "replace")
        beginning, wanted = found.decode("utf-8", "replace"), 2 * wanted
    return beginning


def plain_layout(
    samples: Sequence[str], *, files: int, text_bytes: float
) -> tuple[ReaderName, str]:
    """The reader for plain text, and the reason for the guess."""
    lines = _lines(samples)
    blank_lines = sum(len(re.findall(BLANK_LINE, text)) for text in samples)
    sampled = sum(len(text.encode()) for text in samples)
    # From the samples to all text, divided among the files.
    blocks = blank_lines * text_bytes / max(sampled, 1) / files
    many = f"about {blocks:,.0f} blocks of lines per file"
    sentences = _sentence_share(lines) > MOST
    wrapped = _is_wrapped(lines)
    if blocks < MANY_BLOCKS:
        # blocks of several long lines or sentences are more than paragraphs
        several = blocks >= SOME_BLOCKS and len(lines) >= 2 * blank_lines
        if several and files < FEW_FILES and sentences:
            return "sentence_lines", f"{many}, each of several lines, most of them one sentence"
        if several and files < FEW_FILES and _share(lines, _is_long) > SOME:
            return "blank_line_text", (
                f"{many}, each of several long lines, taken as documents; if they are sections of "
                "one: text"
            )
        other = "; if blank lines separate documents: blank_line_text" if blank_lines else ""
        return "text", f"plain text: each file is taken as one document{other}"
    if sentences:
        return "sentence_lines", f"{many}, most lines one sentence: blank lines separate documents"
    if files >= FEW_FILES or wrapped:
        return "text", f"{many}, taken as paragraphs; if they are documents: blank_line_text"
    return "blank_line_text", f"{many}, taken as documents; if they are paragraphs: text"


def line_breaks(documents: Sequence[str]) -> tuple[LineBreak, str] | None:
    """The meaning of line breaks in the documents, and why; None if there are too few."""
    # Documents of a single line have no line breaks to interpret.
    lines = [line for text in documents for line in _lines([text]) if "\n" in text.strip()]
    if len(lines) < FEWEST_LINES:
        return None
    if _sentence_share(lines) >= NEARLY_ALL:
        return "sentence", "nearly every line is one sentence"
    several = [found for found in map(_lines, ([text] for text in documents)) if len(found) > 1]
    wrapped = sum(map(_is_wrapped, several))
    if _share(lines, _is_long) > SOME and wrapped > SOME * len(several):
        return "detect", "lines are wrapped in some documents, whole paragraphs in others"
    if _share(lines, _is_long) > SOME:
        return "paragraph", "lines are whole paragraphs"
    if _is_wrapped(lines):
        return "detect", "lines are wrapped"
    return None


def is_html(documents: Sequence[str]) -> bool:
    """Whether the text contains HTML entities or tags."""
    found = sum(len(HTML.findall(text)) for text in documents)
    return found > 1 and found >= HTML_PER_CHARACTER * sum(map(len, documents))


def language(text: str) -> str:
    """A guess at the language of `text`, or at least its script; `no text` without letters."""
    script = _script(text)
    if not script:
        return "no text"
    # Not by \w, which ends a Hindi word at its first vowel sign.
    words = text.lower().split()
    counts = Counter(words)
    found = {
        name: sum(counts[word] for word in common.split())
        for name, common in COMMON_WORDS.items()
        if _script(common) == script
    }
    best = max(found, key=lambda name: found[name], default="")
    if found.get(best, 0) > LEAST_SHARE * len(words):
        return best
    return "another language" if script == "Latin" else f"{script} script"


def _script(text: str) -> str:
    """The script of most letters; empty without any."""
    # the first word of a letter's Unicode name is its script
    names = (unicodedata.name(letter, "unnamed") for letter in text if letter.isalpha())
    scripts = Counter(name.partition(" ")[0].capitalize() for name in names)
    return scripts.most_common(1)[0][0] if scripts else ""


def stemmer(text: str) -> str:
    """Snowball's stemmer for the language of `text`, as far as it is guessed; else `none`."""
    return STEMMERS.get(language(text), "none")


def _lines(samples: Sequence[str]) -> list[str]:
    return [line.strip() for text in samples for line in text.splitlines() if line.strip()]


def _share(lines: Sequence[str], holds: Callable[[str], object]) -> float:
    return sum(bool(holds(line)) for line in lines) / max(len(lines), 1)


def _sentence_share(lines: Sequence[str]) -> float:
    """The share of lines that end like a sentence, and that our splitter leaves whole."""
    whole = (count == 1 for count in count_sentences(lines))
    found = sum(one and ends_with_mark(line) for one, line in zip(whole, lines, strict=True))
    return found / max(len(lines), 1)


def _is_long(line: str) -> bool:
    return len(line) > WRAPPED_WIDTH


def _is_wrapped(lines: Sequence[str]) -> bool:
    # Most lines are about as long as a line can be, and hardly any is longer.
    fills = _share(lines, lambda line: len(line) >= SHORT_LINE) > MOST
    return fills and _share(lines, _is_long) <= HARDLY_ANY
