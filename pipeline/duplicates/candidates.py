"""Files of candidates: what the workers of stage `dedup` have found about each document.

In:  blocks of texts, in the workers; the names of the files that they have put, in the launcher.
Out: one Arrow file an input shard; of all files together, digests, bands and sets of shingles.

The launcher holds some 30 bytes a document and the keys of one band. All bands, and the shingles of
those documents that agree with another in one, lie on its disk.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from artifacts import filesystem
from artifacts.arrays import (
    Bytes,
    Int64s,
    Mask,
    UInt64s,
    digest_array,
    digest_bytes,
    digest_halves,
    is_first_of_equals,
    list_array,
    list_lengths,
    list_values,
)
from artifacts.store import all_finished
from artifacts.tables import TOKEN_DIGEST_BYTES
from pipeline.config.settings import NearDuplicatesConfig
from pipeline.duplicates.near_duplicates import ShingleSets, kept_for, sharing

# N documents of all files, in the order of the files; D those of one block; B bands


@dataclass(frozen=True)
class Documents:
    """What decides which of some documents stays.

    digests_N16:  their digests.
    preference_N: smaller for documents that are preferred.
    source_N:     the source's ordinal in the configuration.
    overlaps_N:   whether a document overlaps with evaluation data.
    """

    digests_N16: Bytes
    preference_N: npt.NDArray[np.uint16]
    source_N: npt.NDArray[np.uint16]
    overlaps_N: Mask

    def distinct(self) -> Int64s:
        """Where one document of each digest is, in order of preference."""
        halves_N2 = digest_halves(self.digests_N16)
        high_N, low_N = halves_N2[:, 0], halves_N2[:, 1]
        equal_together = np.lexsort((self.source_N, self.preference_N, low_N, high_N))
        once = equal_together[is_first_of_equals(halves_N2[equal_together])]
        columns = (low_N[once], high_N[once], self.source_N[once], self.preference_N[once])
        return once[np.lexsort(columns)]


def schema(bands: int) -> pa.Schema:
    """Of a file of candidates, with so many bands of each document."""
    return pa.schema(
        [
            pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES)),
            pa.field("preference", pa.uint16()),
            pa.field("source", pa.uint16()),
            pa.field("overlaps", pa.bool_()),
            pa.field("bands", pa.list_(pa.uint64(), bands)),
            pa.field("shingles", pa.list_(pa.uint32())),
        ]
    )


def record_batch(documents: Documents, keys_DB: UInt64s, sets: ShingleSets) -> pa.RecordBatch:
    """The rows of a block's documents; `sets` lie one after another."""
    form = schema(keys_DB.shape[1])
    return pa.RecordBatch.from_arrays(
        [
            digest_array(documents.digests_N16),
            pa.array(documents.preference_N),
            pa.array(documents.source_N),
            pa.array(documents.overlaps_N),
            pa.FixedSizeListArray.from_arrays(
                pa.array(keys_DB.ravel()), type=form.field("bands").type
            ),
            list_array(sets.values_S, sets.ends_D, form.field("shingles").type),
        ],
        schema=form,
    )


class CandidateFiles:
    """All files of a finished search, as one long table whose rows are numbered."""

    def __init__(self, output: str, names: Sequence[str], *, bands: int, scratch: str) -> None:
        """Read what decides, and write the bands to `scratch`, a local directory."""
        self._output = output
        self._entries = all_finished(output, names)
        self._scratch = scratch
        rows = sum(entry.rows or 0 for entry in self._entries)
        keys_path = os.path.join(scratch, "bands")
        self._keys_BN = np.memmap(keys_path, np.uint64, mode="w+", shape=(bands, max(rows, 1)))
        self._rows = 0
        parts: list[Documents] = []
        for table in self._tables():
            end = self._rows + len(table)
            keys = table["bands"].combine_chunks().flatten().to_numpy()
            self._keys_BN[:, self._rows : end] = keys.reshape(-1, bands).T
            self._rows = end
            parts.append(
                Documents(
                    digest_bytes(table["document_digest"]),
                    *(table[name].to_numpy() for name in ("preference", "source", "overlaps")),
                )
            )
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        self.documents = Documents(*map(np.concatenate, columns))

    def kept_for(self, rows_D: Int64s, near: NearDuplicatesConfig) -> Int64s:
        """For each of the documents at `rows_D`, in order of preference, which of them stays, (D,).

        Itself, where no earlier one is alike.
        """
        members, groups, count = [], [], 0
        for keys_N in self._keys_BN:  # 0 where a document has no shingles
            sharing_P, groups_P = sharing(np.asarray(keys_N[: self._rows])[rows_D])
            members.append(sharing_P)
            groups.append(groups_P + count)
            count += len(np.unique(groups_P))
        candidates_C, candidates_P = np.unique(np.concatenate(members), return_inverse=True)
        stays_D = np.arange(len(rows_D))
        if not len(candidates_C):
            return stays_D
        # the candidates' sets stay on disk, in the order of the files
        path = os.path.join(self._scratch, "shingles")
        order = np.argsort(rows_D[candidates_C])
        wanted, lengths = rows_D[candidates_C][order], [np.zeros(0, dtype=np.int64)]
        first = 0
        with open(path, "wb") as spill:
            for table in self._tables():
                inside = slice(*np.searchsorted(wanted, (first, first + len(table))))
                found = table["shingles"].take(pa.array(wanted[inside] - first))
                list_values(found).tofile(spill)
                lengths.append(list_lengths(found))
                first += len(table)
        ends = np.cumsum(np.concatenate(lengths))
        starts_C, ends_C = np.empty_like(ends), np.empty_like(ends)
        ends_C[order] = ends
        starts_C[order] = ends - np.concatenate(lengths)
        sets = ShingleSets(np.memmap(path, np.uint32, mode="r"), starts_C, ends_C)
        groups_P = np.concatenate(groups)
        stays_C = kept_for(candidates_P, groups_P, sets, threshold=near.threshold)
        stays_D[candidates_C] = candidates_C[stays_C]
        return stays_D

    def _tables(self) -> Iterator[pa.Table]:
        """Each file's rows, mapped only until the next file's: copy what is to last."""
        for entry in self._entries:
            stored = filesystem.join(self._output, entry.stored_name)
            with (
                filesystem.brought_here(stored, self._scratch) as path,
                pa.memory_map(path) as file,
            ):
                yield pa.ipc.open_file(file).read_all()
