"""The documents that a run kept, read again from its corpus.

In:  a finished `tokens` artifact; the settings with which it was made.
Out: tables of its documents with their text, source, digest and split, in reading order.

Tokens are no text: they are without case where the vocabulary is, and without paragraphs. So the
corpus is read again with the settings of the artifact, and a document is taken if its digest is in
it: rules, duplicates and drop lists need not be judged again, and a corpus that has changed since
is noticed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.artifacts.arrays import Int64s, digest_bytes, digest_halves, list_lengths
from cloze.artifacts.errors import IntegrityError
from cloze.artifacts.store import Artifact
from cloze.artifacts.tables import TOKEN_DIGEST_BYTES
from cloze.pipeline.config.settings import CorpusConfig, TokensStage
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.readers.input_shards import find_corpus, input_shards, reader_named
from cloze.pipeline.readers.score_table import read_scores
from cloze.pipeline.text.filters import Reason
from cloze.pipeline.text.languages import told_languages
from cloze.pipeline.text.splits import FEWEST_DOCUMENTS, assign_splits, split_names, tail_digest
from cloze.pipeline.text.texts import TextBlock, read_states, rules_of

SCHEMA = pa.schema(
    [
        pa.field("text", pa.large_string()),
        pa.field("digest", pa.string()),
        pa.field("split", pa.string()),
        pa.field("source", pa.string()),
        pa.field("path", pa.string()),
        pa.field("position", pa.int64()),
        pa.field("language", pa.string()),
        pa.field("language_share", pa.float64()),
        pa.field("score", pa.float64()),
    ]
)
"""Of each document: its text, one paragraph per line; digest of its sentences; split; path of its
source, its file and its position there; where `languages` is set for its source, the language of
most of its text and the share of that; and, where the run has scores of quality, its own."""

# D documents of a block, K kept ones of the artifact


@dataclass(frozen=True)
class KeptDigests:
    """The K documents of a tokens artifact, by ascending digest; they are ticked off as found.

    digests_K: as scalars that NumPy compares.
    splits_K:  the number of each one's split.
    seen_K:    whether it was found in the corpus; changes.
    tokens_K:  the tokens of each, if they were asked for.
    directory: the artifact's, for messages.
    """

    digests_K: npt.NDArray[np.bytes_]
    splits_K: npt.NDArray[np.uint8]
    seen_K: npt.NDArray[np.bool_]
    tokens_K: Int64s | None
    directory: str

    @classmethod
    def of(
        cls, artifact: Artifact, corpus: CorpusConfig, *, with_tokens: bool = False
    ) -> "KeptDigests":
        """Those of a finished artifact that was made from this `corpus`."""
        # A split as its number: a byte for each of perhaps a billion documents.
        names = split_names(corpus)
        digests = [np.zeros((0, TOKEN_DIGEST_BYTES), dtype=np.uint8)]
        splits, tokens = [np.zeros(0, np.uint8)], [np.zeros(0, np.int64)]
        for entry in artifact.manifest.files:
            split = entry.statistics.get("split")
            if split is None:
                continue
            with pa.memory_map(artifact.path(entry.name)) as source:
                table = pa.ipc.open_file(source).read_all()
                digests.append(digest_bytes(table["document_digest"]).copy())
                if with_tokens:
                    tokens.append(list_lengths(table["token_ids"]))
            splits.append(np.full(len(digests[-1]), names.index(split), dtype=np.uint8))
        scalars, splits_K = digest_scalars(np.concatenate(digests)), np.concatenate(splits)
        # Sorted, they are found by bisection and need no table of their own.
        order = np.argsort(scalars)
        tokens_K = np.concatenate(tokens)[order] if with_tokens else None
        seen_K = np.zeros(len(order), dtype=np.bool_)
        return cls(scalars[order], splits_K[order], seen_K, tokens_K, artifact.directory)

    def find(self, block: TextBlock, stage: TokensStage) -> tuple[Int64s, Int64s]:
        """The documents of a block that are in the artifact and not seen yet; their places there.

        Of equal documents it is the first in reading order, within the split that the artifact has
        it in: the document that the stage kept.
        """
        if not len(self.digests_K):
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        # The nearest place of each; whether it is the same digest is asked below.
        digests_D = digest_scalars(block.digests)
        places_D = np.minimum(np.searchsorted(self.digests_K, digests_D), len(self.digests_K) - 1)
        splits_D = assign_splits(
            digest_halves(block.digests), source=block.source, corpus=stage.corpus, seed=stage.seed
        )
        theirs_D = self.splits_K[places_D]
        # In a corpus of few documents, train and held-out ones are not as drawn.
        drawn = 2
        same_D = (theirs_D == splits_D) | ((theirs_D < drawn) & (splits_D < drawn))
        is_kept_D = (self.digests_K[places_D] == digests_D) & (block.reasons_D == Reason.KEPT)
        rows = np.flatnonzero(is_kept_D & same_D & ~self.seen_K[places_D])
        # Equal documents of one block are not marked as seen yet: of these, too, the first alone.
        _, first = np.unique(places_D[rows], return_index=True)
        rows = rows[np.sort(first)]
        self.seen_K[places_D[rows]] = True
        return rows, places_D[rows]

    def tokens(self, places_N: Int64s) -> Int64s:
        """The tokens of the documents at these places, with those of their held-out ends: (N,)."""
        assert self.tokens_K is not None  # they were asked for
        tokens_N = self.tokens_K[places_N]
        # Only in so small a corpus are ends of documents held out, under digests of their own.
        if len(self.digests_K) < 2 * FEWEST_DOCUMENTS:
            for row, digest in enumerate(_as_bytes(self.digests_K[places_N])):
                is_tail_K = self.digests_K == np.bytes_(tail_digest(digest))
                tokens_N[row] += int(self.tokens_K[is_tail_K].sum())
        return tokens_N

    def require_all_seen(self) -> None:
        """Raise `IntegrityError` if some documents are not in the corpus any more."""
        if lost := self._lost():
            raise IntegrityError(
                f"{self.directory}: {lost:,} of its {len(self.seen_K):,} documents are not in the "
                "corpus any more: files have changed since; run `cloze tokens CONFIG` again first"
            )

    def _lost(self) -> int:
        # Held-out ends of documents have digests of their own; there are a few at most.
        lost = np.flatnonzero(~self.seen_K)
        if len(lost) >= FEWEST_DOCUMENTS:
            return len(lost)
        found = np.flatnonzero(self.seen_K)[:FEWEST_DOCUMENTS]
        tails = set(map(tail_digest, _as_bytes(self.digests_K[found])))
        return sum(digest not in tails for digest in _as_bytes(self.digests_K[lost]))


def digest_scalars(digests: npt.NDArray[np.uint8]) -> npt.NDArray[np.bytes_]:
    """Digests, (N, 16), as scalars that NumPy compares and sorts: (N,)."""
    # NumPy ignores zero bytes at the end of such a string. As all have the same length, different
    # digests stay different, and the order is that of the bytes.
    return np.ascontiguousarray(digests).view(f"S{TOKEN_DIGEST_BYTES}").ravel()


def line_break_of(corpus: CorpusConfig, source: int) -> str:
    """What a line break ends in the texts of a source as they are written here."""
    config = corpus.sources[source]
    used = config.line_break or reader_named(config.reader).line_break
    return "sentence" if used == "sentence" else "paragraph"


def kept_documents(artifact: Artifact, stage: TokensStage) -> Iterator[tuple[int, pa.Table]]:
    """The documents of `artifact` as tables of `SCHEMA`, each with the number of its source.

    stage: the settings with which it was made, with the places of the corpus, of the list of
           boilerplate and of scores.
    Raises `IntegrityError` if some documents are not in the corpus any more.
    """
    corpus, cleaning = stage.corpus, stage.cleaning
    kept, files = KeptDigests.of(artifact, corpus), find_corpus(corpus)
    for shard in input_shards(corpus, files):
        paths = [file.path for file in files[shard.source]]
        for states in read_states(shard, corpus=corpus, cleaning=cleaning):
            # In reading order, so that of equal documents the one that the stage kept is written.
            rows, places = kept.find(states.texts, stage)
            if len(rows):
                table = _table(states.texts, states.paragraphs, rows, corpus=corpus, paths=paths)
                names = np.array(split_names(corpus))[kept.splits_K[places]]
                table = table.set_column(2, "split", pa.array(names.tolist(), pa.string()))
                if rules_of(corpus.sources[shard.source], cleaning).languages:
                    table = _with_languages(table)
                if cleaning.scores:
                    scores, _ = read_scores(cleaning.scores).find(states.texts.digests[rows])
                    table = table.set_column(
                        SCHEMA.get_field_index("score"), "score", pa.array(scores, pa.float64())
                    )
                yield shard.source, table
    kept.require_all_seen()


def _table(
    block: TextBlock,
    paragraphs: DocumentBlock,
    rows: Int64s,
    *,
    corpus: CorpusConfig,
    paths: list[str],
) -> pa.Table:
    raw = paragraphs.text.tobytes()
    ends = paragraphs.ends.tolist()
    starts = [0, *ends[:-1]]
    texts = [raw[starts[row] : ends[row]].decode().removesuffix("\n") for row in rows.tolist()]
    source = corpus.sources[block.source]
    count = len(rows)
    columns = {
        "text": texts,
        "digest": [digest.tobytes().hex() for digest in block.digests[rows]],
        "split": [""] * count,
        "source": [source.path or ", ".join(source.packages)] * count,
        "path": [paths[file] for file in block.files_D[rows].tolist()],
        "position": block.positions_D[rows].tolist(),
        "language": [None] * count,
        "language_share": [None] * count,
        "score": [None] * count,
    }
    return pa.Table.from_pydict(columns, schema=SCHEMA)


def _with_languages(table: pa.Table) -> pa.Table:
    # The text that was kept, not the one that was read, is asked for its language.
    texts = [text.encode() for text in table["text"].to_pylist()]
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    text = np.frombuffer(b"".join(texts), dtype=np.uint8)
    told = told_languages(DocumentBlock(text, ends, np.arange(len(ends))))
    first = [of[0] if of else (None, None) for of in told]
    columns = zip(*first, strict=True)
    for name, values in zip(("language", "language_share"), columns, strict=True):
        at = SCHEMA.get_field_index(name)
        table = table.set_column(at, SCHEMA.field(at), pa.array(values, SCHEMA.field(at).type))
    return table


def _as_bytes(digests: npt.NDArray[np.bytes_]) -> list[bytes]:
    # Python's bytes lack the zeros at the end, which NumPy drops.
    return [digest.ljust(TOKEN_DIGEST_BYTES, b"\0") for digest in digests.tolist()]
