"""Drop lists: documents that an earlier stage found to be duplicates or contamination.

In:  an artifact whose `*.arrow` files have the columns `document_digest` (binary 16) and `reason`
     (string): near-duplicates, overlap with evaluation sets.
Out: which of given digests are on the list.

The stage `dedup` makes one, but any artifact of this form will do (`cleaning.drop_list`).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from artifacts.arrays import Mask, UInt64s, digest_bytes, digest_halves
from artifacts.errors import IntegrityError
from artifacts.stage import StageTable
from artifacts.store import open_artifact
from pipeline.config.settings import TokensStage, VocabularyStage

COLUMN = "document_digest"
ROLE = "drop_list"
"""The role of a drop list among a stage's inputs."""

Stage = TypeVar("Stage", TokensStage, VocabularyStage)


@dataclass(frozen=True)
class DropList:
    """The digests of a drop list as ascending pairs of integers, (D, 2)."""

    digests_D2: UInt64s

    def holds(self, digests_D2: UInt64s) -> Mask:
        """Which of `digests_D2` are on the list."""
        if not len(self.digests_D2):
            return np.zeros(len(digests_D2), dtype=np.bool_)
        listed = _as_scalars(self.digests_D2)
        wanted = _as_scalars(digests_D2)
        place = np.minimum(np.searchsorted(listed, wanted), len(listed) - 1)
        found: Mask = listed[place] == wanted
        return found


def with_drop_list(stage: Stage, table: StageTable) -> Stage:
    """The stage with the drop list made by this run, if there is one."""
    if ROLE not in table.inputs or not table.inputs[ROLE].path:
        return stage
    cleaning = stage.cleaning.model_copy(update={"drop_list": table.input_path(ROLE)})
    return stage.model_copy(update={"cleaning": cleaning})


@lru_cache(maxsize=2)
def read_drop_list(directory: str) -> DropList:
    """Read the drop list of an artifact directory; an empty one for an empty name."""
    if not directory:
        return DropList(np.zeros((0, 2), dtype=np.uint64))
    artifact = open_artifact(directory)
    names = [entry.name for entry in artifact.manifest.files if entry.name.endswith(".arrow")]
    found = [np.zeros((0, 2), dtype=np.uint64)]
    for path in map(artifact.path, names):
        with pa.memory_map(path) as file:
            table = pa.ipc.open_file(file).read_all()
            if COLUMN not in table.column_names or table.schema.field(COLUMN).type != pa.binary(16):
                raise IntegrityError(
                    f"{path}: no column {COLUMN} of 16 bytes; expected a drop list, set "
                    "cleaning.drop_list to the directory of one"
                )
            found.append(digest_halves(digest_bytes(table[COLUMN])))
    digests_D2 = np.concatenate(found)
    return DropList(digests_D2[np.lexsort((digests_D2[:, 1], digests_D2[:, 0]))])


def _as_scalars(digests_D2: UInt64s) -> npt.NDArray[np.void]:
    """Digests as scalars that NumPy compares in the same order."""
    rows = np.ascontiguousarray(digests_D2).astype(">u8").view("S16")
    return rows.ravel()
