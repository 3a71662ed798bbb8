"""The rules of Gopher, C4 and FineWeb as datatrove applies them, on given documents.

    python datatrove_rules.py DOCUMENTS OUTPUT [WORDS]

Needs an environment of its own with datatrove 0.10, spacy, nltk, tldextract and regex. DOCUMENTS
is JSON lines with `text`; OUTPUT gets a line for each: by filter the reason to drop it, or null,
and the text that C4's line rules leave. With WORDS, JSON lines of the words of each document, these
take the place of spaCy's. Prints the seconds of processor time of each filter.
"""

import importlib.metadata  # datatrove asks for it without importing it
import json
import sys
import time

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    fineweb_quality_filter,
    gopher_quality_filter,
    gopher_repetition_filter,
)
from datatrove.utils.text import split_into_parts

documents, output, *words = sys.argv[1:]
filters = {
    "gopher": (GopherQualityFilter(), GopherRepetitionFilter()),
    "fineweb": (FineWebQualityFilter(),),
    "c4": (C4QualityFilter(),),
}
seconds = dict.fromkeys(filters, 0.0)
MODULES = (fineweb_quality_filter, gopher_quality_filter, gopher_repetition_filter)
given = open(words[0], encoding="utf-8") if words else None  # noqa: SIM115
with open(documents, encoding="utf-8") as file, open(output, "w", encoding="utf-8") as sink:
    for number, line in enumerate(file):
        if given:
            found = json.loads(next(given))
            for module in MODULES:
                module.split_into_words = lambda *_, found=found: found
        text = json.loads(line)["text"]
        row: dict[str, str | None] = {}
        for name, of_name in filters.items():
            document = Document(text=text, id=str(number))
            split_into_parts.cache_clear()  # as if each preset were applied alone
            started = time.process_time()
            answers = (one.filter(document) for one in of_name)
            dropped = [answer[1] for answer in answers if answer is not True]
            seconds[name] += time.process_time() - started
            row[name] = dropped[0] if dropped else None
            if name == "c4" and not dropped:
                row["text"] = document.text
        sink.write(json.dumps(row) + "\n")
print(json.dumps({"seconds": seconds, "version": importlib.metadata.version("datatrove")}))
