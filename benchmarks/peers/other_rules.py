"""How fast other tools apply rules like Gopher's, on given documents.

    python other_rules.py TOOL DOCUMENTS

Needs an environment of its own with the TOOL: `nemo_curator` (nemo-curator 1.4), whose filters are
Gopher's, or `data_juicer` (py-data-juicer 1.6), which has fewer and other ones. DOCUMENTS is JSON
lines with `text`. Prints the seconds of processor time, the number of filters and the version.
"""

import importlib.metadata
import json
import sys
import time


def nemo_curator(texts: list[str]) -> int:
    """All its filters that Gopher has, each document by each."""
    from nemo_curator.stages.text.filters.heuristic import repetition, string

    of_words = (
        string.WordCountFilter(min_words=50, max_words=100_000),
        string.MeanWordLengthFilter(min_mean_word_length=3, max_mean_word_length=10),
        string.SymbolsToWordsFilter(),
        string.BulletsFilter(),
        string.EllipsisFilter(),
        string.WordsWithoutAlphabetsFilter(),
        string.CommonEnglishWordsFilter(),
    )
    of_lines = (
        repetition.RepeatedLinesFilter(),
        repetition.RepeatedParagraphsFilter(),
        repetition.RepeatedLinesByCharFilter(),
        repetition.RepeatedParagraphsByCharFilter(),
    )
    top = (
        repetition.RepeatingTopNGramsFilter(n=n, max_repeating_ngram_ratio=share)
        for n, share in ((2, 0.2), (3, 0.18), (4, 0.16))
    )
    duplicate = (
        repetition.RepeatingDuplicateNGramsFilter(n=n, max_repeating_duplicate_ngram_ratio=share)
        for n, share in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.1))
    )
    filters = [*of_words, *of_lines, *top, *duplicate]
    for text in texts:
        for one in filters:
            one.keep_document(one.score_document(text))
    return len(filters)


def data_juicer(texts: list[str]) -> int:
    """Those of its filters that count words, letters, marks and lines."""
    from data_juicer.ops.filter.alphanumeric_filter import AlphanumericFilter
    from data_juicer.ops.filter.average_line_length_filter import AverageLineLengthFilter
    from data_juicer.ops.filter.special_characters_filter import SpecialCharactersFilter
    from data_juicer.ops.filter.word_repetition_filter import WordRepetitionFilter
    from data_juicer.ops.filter.words_num_filter import WordsNumFilter
    from data_juicer.utils.constant import Fields

    filters = [
        WordsNumFilter(),
        WordRepetitionFilter(),
        AlphanumericFilter(),
        SpecialCharactersFilter(),
        AverageLineLengthFilter(),
    ]
    rows = {"text": texts, Fields.stats: [{} for _ in texts]}
    for one in filters:
        rows = one.compute_stats_batched(rows)
        list(one.process_batched(rows))
    return len(filters)


PACKAGES = {"nemo_curator": "nemo-curator", "data_juicer": "py-data-juicer"}

if __name__ == "__main__":
    tool, path = sys.argv[1:]
    apply = {one.__name__: one for one in (nemo_curator, data_juicer)}[tool]
    with open(path, encoding="utf-8") as file:
        documents = [json.loads(line)["text"] for line in file]
    apply(documents[:10])  # imports, and what is made once
    started = time.process_time()
    count = apply(documents)
    figures = {"seconds": time.process_time() - started, "filters": count}
    print(json.dumps({**figures, "version": importlib.metadata.version(PACKAGES[tool])}))
