"""The readers by their name in a configuration.

To add a format, write a function and its `Reader(...)` in this folder, add the name to `Reader` in
pipeline/config/settings.py, and register it here.
"""

from pipeline.readers.columnar import ARROW, PARQUET
from pipeline.readers.docstrings import DOCSTRINGS
from pipeline.readers.documents import Reader
from pipeline.readers.jsonl import JSONL
from pipeline.readers.text import BLANK_LINE_TEXT, SENTENCE_LINES, TEXT
from pipeline.readers.wikipedia import MEDIAWIKI, WIKIEXTRACTOR

READERS: dict[str, Reader] = {
    "docstrings": DOCSTRINGS,
    "text": TEXT,
    "blank_line_text": BLANK_LINE_TEXT,
    "sentence_lines": SENTENCE_LINES,
    "jsonl": JSONL,
    "parquet": PARQUET,
    "arrow": ARROW,
    "wikiextractor": WIKIEXTRACTOR,
    "mediawiki": MEDIAWIKI,
}
