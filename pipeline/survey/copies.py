"""Groups of documents that are equal or nearly so, the largest first.

In:  the documents of a corpus, a block at a time; the drop list of the run, if it has one.
Out: `Groups`, each with the beginnings of its first documents, compared.

If the run has searched for near-duplicates, its list says which documents are copies of which. If
not, they are searched for here, in the sample, by the same rule: shingles are written to a file, so
that memory holds some 200 bytes of each document, and of these no more than `MOST_DOCUMENTS`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cloze.artifacts.arrays import Int64s, Mask, UInt64s, digest_bytes, offsets_of
from cloze.artifacts.store import Artifact
from cloze.artifacts.tables import DROPPED_NAME, TOKEN_DIGEST_BYTES
from cloze.pipeline.config.settings import NearDuplicatesConfig
from cloze.pipeline.kept_documents import digest_scalars
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.survey.comparing import compared
from cloze.pipeline.survey.results import Group, Groups
from cloze.pipeline.survey.selecting import beginning, selected
from cloze.pipeline.text.duplicates import (
    ShingleSets,
    band_keys,
    bands_for,
    kept_for,
    shared_bands,
    shingles,
)

SHOWN_GROUPS, SHOWN_MEMBERS, MEMBER_BYTES = 12, 3, 1200
"""Groups that are shown, documents of each, and how much of these."""

MOST_DOCUMENTS = 1 << 19
"""Documents among which near-duplicates are searched for here."""

Digests = npt.NDArray[np.bytes_]

# N documents of the search; D of a block; B bands


def _bytes_of(digest: np.bytes_) -> bytes:
    # NumPy drops zero bytes at the end.
    return bytes(digest).ljust(TOKEN_DIGEST_BYTES, b"\0")


@dataclass(frozen=True)
class _Wanted:
    """A group before its texts are known."""

    size: int
    kind: str
    digests: tuple[bytes, ...]
    """The kept one first."""
    similarity: float = 1.0


def equal_groups(artifact: Artifact) -> tuple[int, list[_Wanted]]:
    """Documents dropped because the same text came earlier, and the largest groups of these."""
    with pa.memory_map(artifact.path(DROPPED_NAME)) as source:
        table = pa.ipc.open_file(source).read_all()
        is_equal = np.array([reason == "duplicate" for reason in table["reason"].to_pylist()])
        digests = digest_scalars(digest_bytes(table["document_digest"])[is_equal.astype(bool)])
    found, counts = np.unique(digests, return_counts=True)
    largest = np.argsort(-counts, kind="stable")[: SHOWN_GROUPS // 2]
    # A group of equal documents is shown by one of them.
    groups = [
        _Wanted(int(counts[row]) + 1, "equal", (_bytes_of(found[row]),))
        for row in largest.tolist()
        if counts[row] > 0
    ]
    return len(digests), groups


def listed_groups(drop_list: Artifact) -> tuple[int, list[_Wanted]]:
    """The near-duplicates that a run has dropped, and the largest groups of these."""
    none = np.zeros(0, dtype=f"S{TOKEN_DIGEST_BYTES}")
    dropped, kept = [none], [none]
    for entry in drop_list.manifest.files:
        with pa.memory_map(drop_list.path(entry.name)) as source:
            table = pa.ipc.open_file(source).read_all()
            # Files of a drop list that do not say who was kept have no groups.
            if "kept_digest" not in table.column_names:
                continue
            table = table.filter(pc.equal(table["reason"], "near_duplicate"))
            dropped.append(digest_scalars(digest_bytes(table["document_digest"])))
            kept.append(digest_scalars(digest_bytes(table["kept_digest"])))
    every, kept_N = np.concatenate(dropped), np.concatenate(kept)
    # Grouped by the document that was kept, and within a group by digest, so that the same ones are
    # shown every time.
    order = np.lexsort((every, kept_N))
    every, kept_N = every[order], kept_N[order]
    found, first, counts = np.unique(kept_N, return_index=True, return_counts=True)
    groups = []
    for row in np.argsort(-counts, kind="stable")[:SHOWN_GROUPS].tolist():
        some = every[first[row] : first[row] + min(int(counts[row]), SHOWN_MEMBERS - 1)]
        digests = (_bytes_of(found[row]), *map(_bytes_of, some))
        groups.append(_Wanted(int(counts[row]) + 1, "near", digests))
    return len(every), groups


class Copies:
    """The search for groups, and the texts of those that are shown."""

    def __init__(self, artifact: Artifact, listed: Artifact | None, *, scratch: str) -> None:
        """`listed` is the drop list of a run that has searched for near-duplicates."""
        self._equal, self._wanted = equal_groups(artifact)
        self._near = 0
        self._texts: dict[bytes, str] = {}
        self._search = None if listed else _Search(NearDuplicatesConfig(), scratch)
        if listed:
            self._near, groups = listed_groups(listed)
            self._wanted += groups

    def add(
        self, block: DocumentBlock, digests_D: Digests, searched_D: Mask, keys_D: UInt64s
    ) -> None:
        """Keep the texts of wanted documents; search those that are `searched_D`.

        keys_D: by which documents are sampled further if they are too many.
        """
        wanted = {digest for one in self._wanted for digest in one.digests} - self._texts.keys()
        if wanted:
            found = np.isin(digests_D, np.array(sorted(wanted), dtype=digests_D.dtype))
            for row in np.flatnonzero(found).tolist():
                self._texts.setdefault(
                    _bytes_of(digests_D[row]), beginning(block, row, most=MEMBER_BYTES)
                )
        if self._search and searched_D.any():
            self._search.add(selected(block, searched_D), keys_D[searched_D])

    def groups(self) -> Groups:
        """What was found."""
        found = [self._shown(one) for one in self._wanted]
        documents, near = 0, self._near
        if self._search:
            documents, near, groups = self._search.groups()
            found += groups
        found = [one for one in found if one.texts]
        found.sort(key=lambda one: -one.size)
        searched = "sample" if self._search else "run"
        return Groups.model_validate(
            {
                "searched": searched,
                "documents": documents,
                "near": near,
                "equal": self._equal,
                "groups": tuple(found[:SHOWN_GROUPS]),
            }
        )

    def _shown(self, wanted: _Wanted) -> Group:
        texts = [self._texts[one] for one in wanted.digests if one in self._texts]
        return _group(texts, size=wanted.size, kind=wanted.kind, similarity=0.0)


def _group(texts: list[str], *, size: int, kind: str, similarity: float) -> Group:
    first, *others = texts or [""]
    shown = [compared(first, other, shorten=False) for other in others]
    return Group.model_validate(
        {
            "size": size,
            "kind": kind,
            "similarity": similarity,
            "texts": ((("same", first),), *shown) if first else (),
        }
    )


@dataclass(frozen=True)
class _Columns:
    """The N documents of a search.

    keys_N:              by which they are sampled.
    bands_NB:            the keys of their bands.
    starts_N, sizes_N:   where their shingles are in the file of these, and how many.
    begins_N, lengths_N: where the beginnings of their texts are, in bytes.
    """

    keys_N: UInt64s
    bands_NB: UInt64s
    starts_N: Int64s
    sizes_N: Int64s
    begins_N: Int64s
    lengths_N: Int64s

    def rows(self, which_N: npt.NDArray[np.generic]) -> "_Columns":
        """Some of them: a mask, or their indices."""
        return _Columns(*(column[which_N] for column in vars(self).values()))

    @classmethod
    def joined(cls, parts: Sequence["_Columns"]) -> "_Columns":
        """All of several, in order."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*map(np.concatenate, columns))


class _Search:
    """Near-duplicates among the documents of a sample."""

    def __init__(self, config: NearDuplicatesConfig, scratch: str) -> None:
        self._config, self._bands = config, bands_for(config)
        self._shingles, self._text = (
            os.path.join(scratch, name) for name in ("survey.shingles", "survey.text")
        )
        for path in (self._shingles, self._text):
            with open(path, "wb"):
                pass
        self._limit = np.uint64(2**64 - 1)
        none = np.zeros(0, dtype=np.int64)
        keys = np.zeros(0, dtype=np.uint64), np.zeros((0, self._bands.count), dtype=np.uint64)
        self._parts = [_Columns(*keys, none, none, none, none)]

    def add(self, block: DocumentBlock, keys_D: UInt64s) -> None:
        """Add the documents of a block, or those of them that are still sampled."""
        wanted_D = keys_D <= self._limit
        block, keys_D = selected(block, wanted_D), keys_D[wanted_D]
        documents = len(keys_D)
        if not documents:
            return
        sets = ShingleSets.of(shingles(block.text, block.ends, words=self._config.words), documents)
        sizes_D = sets.ends_D - sets.starts_D
        texts = [beginning(block, row, most=MEMBER_BYTES).encode() for row in range(documents)]
        lengths_D = np.array([len(text) for text in texts], dtype=np.int64)
        with open(self._shingles, "ab") as file:
            starts_D = file.tell() // sets.values_S.itemsize + offsets_of(sizes_D)[:-1]
            file.write(sets.values_S.tobytes())
        with open(self._text, "ab") as file:
            begins_D = file.tell() + offsets_of(lengths_D)[:-1]
            file.write(b"".join(texts))
        bands_DB = band_keys(sets, self._bands)
        part = _Columns(keys_D, bands_DB, starts_D, sizes_D, begins_D, lengths_D)
        self._parts.append(part)
        # A reservoir by keys: the limit sinks, and whoever is above it would not have been taken
        # had it been lower from the beginning.
        if sum(len(one.keys_N) for one in self._parts) > MOST_DOCUMENTS:
            every = _Columns.joined(self._parts)
            # Half of them, drawn like the sample itself.
            self._limit = np.sort(every.keys_N)[MOST_DOCUMENTS // 2]
            self._parts = [every.rows(every.keys_N <= self._limit)]

    def groups(self) -> tuple[int, int, list[Group]]:
        """How many documents were compared; how many equal another nearly; the largest groups."""
        found = _Columns.joined(self._parts)
        found = found.rows(np.argsort(found.keys_N, kind="stable"))  # for any order of files
        documents = len(found.keys_N)
        # Whoever shares a band is a candidate; their shingles, on disk, decide.
        members_P, groups_P = shared_bands(found.bands_NB.T)
        candidates_C, candidates_P = np.unique(members_P, return_inverse=True)
        if not len(candidates_C):
            return documents, 0, []
        starts_C, sizes_C = found.starts_N[candidates_C], found.sizes_N[candidates_C]
        # Mapped: only the shingles of candidates are read.
        values = np.memmap(self._shingles, np.uint32, mode="r")
        sets = ShingleSets(values, starts_C, starts_C + sizes_C)
        stays_C = kept_for(candidates_P, groups_P, sets, threshold=self._config.threshold)
        near_C = stays_C != np.arange(len(stays_C))
        kept, counts = np.unique(stays_C[near_C], return_counts=True)
        groups = []
        for row in np.argsort(-counts, kind="stable")[:SHOWN_GROUPS].tolist():
            # `kept_for` says for whom each document would be dropped, as dedup does; a group is
            # whoever has the same one.
            others = np.flatnonzero(near_C & (stays_C == kept[row]))[: SHOWN_MEMBERS - 1]
            both = sets.in_common(int(kept[row]), others)
            shares = both / (sizes_C[kept[row]] + sizes_C[others] - both)
            shown = candidates_C[np.append(kept[row], others)].tolist()
            texts = [self._text_of(found, document) for document in shown]
            size, similarity = int(counts[row]) + 1, float(shares.min())
            groups.append(_group(texts, size=size, kind="near", similarity=similarity))
        return documents, int(near_C.sum()), groups

    def _text_of(self, found: "_Columns", document: int) -> str:
        with open(self._text, "rb") as file:
            file.seek(int(found.begins_N[document]))
            return file.read(int(found.lengths_N[document])).decode("utf-8", "ignore")
