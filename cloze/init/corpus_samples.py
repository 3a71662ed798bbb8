"""Examine a corpus by sampling its files: how to read it, and how much text it contains.

In:  a file, folder, glob or URL.
Out: `Look`: a suitable reader, the column with the text, bytes of text, documents, samples of the
     text, and files that differ from the others.

Only parts of a few files are read. The guess is written to a configuration, where users can correct
it.

In plain text, blank lines may separate documents or paragraphs. The guess depends on the number of
blocks of lines and the length of their lines; its reason mentions the alternative. Settings for
line breaks, HTML and the language are guessed from the same samples.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet
from pydantic import JsonValue

from cloze.artifacts.errors import ClozeError, IntegrityError, NotText, UsageError
from cloze.artifacts.filesystem import InputFile, find_files, open_to_read
from cloze.pipeline.config.settings import LineBreak, ReaderName
from cloze.pipeline.readers.compression import can_be_cut, stream
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

SUFFIX = re.compile(r"(\.[A-Za-z]\w{0,8})?(\.gz|\.bz2|\.xz|\.zst)?$")
"""`.jsonl.gz` is one suffix."""

BLANK_LINE = r"\n\s*\n"
DOCUMENT_MARKS: Mapping[str, str] = {
    "jsonl": r"\n",
    "wikiextractor": r"(?m)^<doc ",
    "mediawiki": r"<page>",
    "blank_line_text": BLANK_LINE,
    "sentence_lines": BLANK_LINE,
}
"""A pattern that occurs once per document, by reader."""

MOST_DAMAGE = 0.01
"""Maximum share of undecodable characters in a text file."""

LAYOUT_KNOWN = ("sentence_lines", "wikiextractor", "mediawiki")
HTML_EXPECTED = ("wikiextractor", "mediawiki")
"""Readers that interpret line breaks themselves, and those that expect HTML in the text."""

TABLES: Mapping[str, ReaderName] = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}

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

HTML = re.compile(r"<br ?/?>|</?[pib]>|&(amp|lt|gt|quot|nbsp|apos|#\d+);")
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
}
LEAST_SHARE = 0.04
"""Minimum share of words among a language's ten most common ones; a quarter in English text."""


@dataclass(frozen=True)
class Look:
    """A guess at a corpus's format and size."""

    path: str
    files: int
    text_bytes: float
    """Estimated bytes of text."""
    reader: ReaderName
    text_field: str = ""
    """Column or key, for readers that need one."""
    why: str = ""
    """The reason for the guess."""
    documents: float = 0.0
    """Estimated number."""
    samples: tuple[str, ...] = ()
    """The beginnings of some files, or of some rows."""
    texts: tuple[str, ...] = ()
    """The same without what surrounds the text in its file, such as JSON."""
    odd: tuple[str, ...] = ()
    """Files that are empty, of another kind than most, or not text, each with the reason."""
    html: bool = False
    """Whether the text contains HTML that its reader does not expect."""
    line_break: LineBreak | None = None
    """The apparent meaning of its line breaks."""
    why_line_break: str = ""
    """The reason for that guess."""

    @property
    def source(self) -> dict[str, object]:
        """Its location and how to read it, as in a configuration."""
        optional = {"text_field": self.text_field, "html": self.html, "line_break": self.line_break}
        given = {key: value for key, value in optional.items() if value}
        return {"reader": self.reader, "path": self.path, **given}


@dataclass(frozen=True)
class Sample:
    """The parts of a file that were read."""

    beginning: str
    """The start of the text, as readers see it."""
    stretches: tuple[str, ...]
    """Everything that was read."""
    text_per_byte: float | None
    """Bytes of text per byte on disk; None if the file was not read to its end."""


def look(path: str) -> Look:
    """Examine the corpus at `path`."""
    files = find_files(path)
    sizes: Counter[str] = Counter()
    for file in files:
        found = SUFFIX.search(_name(file))
        sizes[found.group(0) if found else ""] += file.size
    suffix = sizes.most_common(1)[0][0]  # the suffix of most bytes
    last = suffix[suffix.rfind(".") :] if suffix else ""
    kind = suffix.removesuffix(last) if last in COMPRESSION else suffix
    sampled = [file for file in files if file.path.endswith(suffix)]
    sampled = sampled[:: max(1, len(sampled) // SAMPLED_FILES)][:SAMPLED_FILES]
    size = float(sum(file.size for file in files))
    if kind in TABLES:
        tables = [_table(file) for file in sampled]
        field, texts, _ = tables[0]
        rows = sum(count for _, _, count in tables)
        rows_per_byte = rows / max(sum(file.size for file in sampled), 1)
        reader, why, odd = TABLES[kind], f"files named *{suffix}", _odd(files, suffix, {}, {})
        documents = size * rows_per_byte if texts else float(len(files))
        samples = texts
    else:
        read, unread = _samples(sampled)
        known = {file: s.text_per_byte for file, s in read.items() if s.text_per_byte is not None}
        whole = sum(file.size for file in known)  # files that were read to their end
        text = sum(file.size * ratio for file, ratio in known.items())
        size *= text / whole if whole else COMPRESSION.get(last, 1.0)
        samples = tuple(sample.beginning for sample in read.values())
        reader, field, why = _text_reader(
            kind, samples, first=sampled[0], files=len(files), text_bytes=size
        )
        values = [row.get(field) for text in samples for row in _json_rows(text)] if field else []
        texts = tuple(v for v in values if isinstance(v, str)) if field else samples
        documents = _documents(read.values(), reader, size) or float(len(files))
        odd = _odd(files, suffix, read, unread)
    line_break = None if reader in LAYOUT_KNOWN else line_breaks(texts)
    return Look(
        path=path,
        files=len(files),
        text_bytes=size,
        reader=reader,
        text_field=field,
        why=why,
        documents=documents,
        samples=samples,
        texts=tuple(texts),
        odd=tuple(odd),
        html=reader not in HTML_EXPECTED and is_html(texts),
        line_break=line_break[0] if line_break else None,
        why_line_break=line_break[1] if line_break else "",
    )


def _name(file: InputFile) -> str:
    return file.path.rsplit("/", 1)[-1]


def _odd(
    files: list[InputFile],
    suffix: str,
    samples: dict[InputFile, Sample],
    unread: dict[InputFile, ClozeError],
) -> Iterator[str]:
    for file in files:
        text = samples[file].beginning if file in samples else ""
        if not file.size:
            yield f"{_name(file)} (empty)"
        elif suffix and not file.path.endswith(suffix):
            yield f"{_name(file)} (does not end in {suffix})"
        elif isinstance(unread.get(file), NotText):
            yield f"{_name(file)} (not text)"
        elif file in unread:
            yield f"{_name(file)} (not readable: {str(unread[file]).removeprefix(file.path)[2:]})"
        elif text.count("\ufffd") + text.count("\0") > MOST_DAMAGE * len(text):
            yield f"{_name(file)} (not text)"


def _samples(
    files: list[InputFile],
) -> tuple[dict[InputFile, Sample], dict[InputFile, ClozeError]]:
    """Samples of the readable files, and errors of the others; raises if none is readable."""
    samples: dict[InputFile, Sample] = {}
    errors: dict[InputFile, ClozeError] = {}
    for file in files:
        try:
            samples[file] = _sample(file, limit=WHOLE_BYTES // len(files))
        except (IntegrityError, UsageError) as error:
            errors[file] = error
    if not samples:
        raise next(iter(errors.values()))
    return samples, errors


def _sample(file: InputFile, *, limit: int) -> Sample:
    """Evenly spread parts of a file, or its first `limit` bytes if only its start can be read."""
    if file.size > STRETCHES * SAMPLE_BYTES and can_be_cut(file.path):
        starts = range(0, file.size - SAMPLE_BYTES + 1, file.size // STRETCHES)
        found = [next(stream(file.path, at, at_a_time=SAMPLE_BYTES), b"") for at in starts]
        ratio = None
    else:
        chunks, found = stream(file.path, at_a_time=SAMPLE_BYTES), []
        for chunk in chunks:
            found.append(chunk)
            if sum(map(len, found)) >= limit:
                break
        at_end = next(chunks, None) is None
        ratio = sum(map(len, found)) / file.size if at_end and file.size else None
        found = [b"".join(found)]
    texts = tuple(text.decode("utf-8", "replace") for text in found)
    return Sample(found[0][:SAMPLE_BYTES].decode("utf-8", "replace"), texts, ratio)


def _documents(samples: Iterable[Sample], reader: ReaderName, text_bytes: float) -> float:
    """Estimated number of documents in the text; 0: one per file."""
    stretches = [text for sample in samples for text in sample.stretches]
    sampled = sum(len(text.encode()) for text in stretches)
    if reader not in DOCUMENT_MARKS or not sampled:
        return 0.0
    marks = sum(len(re.findall(DOCUMENT_MARKS[reader], text)) for text in stretches)
    return text_bytes * marks / sampled


def _text_reader(
    kind: str, samples: tuple[str, ...], *, first: InputFile, files: int, text_bytes: float
) -> tuple[ReaderName, str, str]:
    """The reader, the key of the text (for JSON lines), and the reason for the guess."""
    text = "\n".join(samples)
    if kind in (".jsonl", ".ndjson", ".json"):
        lengths: Counter[str] = Counter()
        for row in _json_rows(text):
            for key, value in row.items():
                lengths[key] += len(value) if isinstance(value, str) else 0
        longest = lengths.most_common(1)
        if not longest or not longest[0][1]:
            raise UsageError(
                f"{first.path}: no JSON objects with text, one per line; expected JSON lines"
            )
        return "jsonl", longest[0][0], f"files named *{kind}"
    if text.lstrip().startswith("<mediawiki"):
        return "mediawiki", "", "a MediaWiki dump by its first element"
    if re.search(r'^<doc id="', text, re.MULTILINE):
        return "wikiextractor", "", 'documents start with <doc id="…">'
    reader, why = plain_layout(samples, files=files, text_bytes=text_bytes)
    return reader, "", why


def _json_rows(text: str) -> Iterator[dict[str, JsonValue]]:
    """The objects in complete lines; the last line of a sample is truncated."""
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def _table(file: InputFile) -> tuple[str, tuple[str, ...], int]:
    """A table's text column, the texts of its first rows, and its number of rows."""
    with open_to_read(file.path) as opened:
        try:
            if file.path.endswith(".parquet"):
                parquet = pyarrow.parquet.ParquetFile(opened)
                count = parquet.metadata.num_rows
                column = _text_column(parquet.schema_arrow, file.path)
                batch = next(parquet.iter_batches(SAMPLED_ROWS, columns=[column]), None)
                texts = batch[column].to_pylist() if batch else []
            else:
                try:
                    table = pa.ipc.open_file(opened).read_all()
                except pa.ArrowInvalid:  # Arrow's other format
                    opened.seek(0)
                    table = pa.ipc.open_stream(opened).read_all()
                count = len(table)
                column = _text_column(table.schema, file.path)
                texts = table[column].slice(0, SAMPLED_ROWS).to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise IntegrityError(
                f"{file.path}: damaged or incomplete table: {error}; copy it again"
            ) from None
    return column, tuple(text or "" for text in texts), count


def _text_column(schema: pa.Schema, path: str) -> str:
    """The column `text` if there is one, otherwise the first column of strings."""
    strings = [field.name for field in schema if pa.types.is_large_string(field.type)]
    strings += [field.name for field in schema if pa.types.is_string(field.type)]
    if not strings:
        raise UsageError(f"{path}: no column of strings; it has {', '.join(schema.names)}")
    return "text" if "text" in strings else str(strings[0])


def plain_layout(
    samples: Sequence[str], *, files: int, text_bytes: float
) -> tuple[ReaderName, str]:
    """The reader for plain text, and the reason for the guess."""
    lines = _lines(samples)
    blank_lines = sum(len(re.findall(BLANK_LINE, text)) for text in samples)
    sampled = sum(len(text.encode()) for text in samples)
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
    """A guess at the language of `text`; `no text` if there are no letters."""
    # the first word of a letter's Unicode name is its script
    names = (unicodedata.name(letter, "unnamed") for letter in text if letter.isalpha())
    scripts = Counter(name.partition(" ")[0].capitalize() for name in names)
    if not scripts:
        return "no text"
    script, _ = scripts.most_common(1)[0]
    if script != "Latin":
        return f"{script} script"
    words = re.findall(r"\w+", text.lower())
    counts = Counter(words)
    found = {
        name: sum(counts[word] for word in common.split()) for name, common in COMMON_WORDS.items()
    }
    best = max(found, key=lambda name: found[name])
    return best if found[best] > LEAST_SHARE * len(words) else "another language"


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
    fills = _share(lines, lambda line: len(line) >= SHORT_LINE) > MOST
    return fills and _share(lines, _is_long) <= HARDLY_ANY
