"""The readers by the name a configuration gives them.

A new format is a module beside this one that ends in `READER = Reader(...)`, its name in
`pipeline.config.Reader`, and a line here.
"""

from pipeline.readers import (
    arrow,
    blank_line_text,
    docstrings,
    jsonl,
    mediawiki,
    parquet,
    sentence_lines,
    text,
    wikiextractor,
)
from pipeline.readers.documents import Reader

READERS: dict[str, Reader] = {
    "docstrings": docstrings.READER,
    "text": text.READER,
    "blank_line_text": blank_line_text.READER,
    "sentence_lines": sentence_lines.READER,
    "jsonl": jsonl.READER,
    "parquet": parquet.READER,
    "arrow": arrow.READER,
    "wikiextractor": wikiextractor.READER,
    "mediawiki": mediawiki.READER,
}
