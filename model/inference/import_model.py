"""A model from elsewhere as an artifact of ours, so that stages can start from it.

In:  a folder in Hugging Face's layout.
Out: a committed artifact with the same files that the pretrain stage leaves.
"""

from hashlib import sha256
from pathlib import Path

from artifacts.stage import StageTable
from artifacts.store import Artifact, Store, commit, put_bytes
from model.hugging_face.encoder_files import EncoderFiles, read_encoder_files
from model.inference.export import contents

STAGE = "import"
FORMAT_VERSION = 1


def import_encoder(location: str | Path, store: Store) -> Artifact:
    """The encoder at `location` in the store: the artifact that is there already, or a new one."""
    files = read_encoder_files(location)
    written = contents(files)
    table = StageTable(
        stage=STAGE,
        format_version=FORMAT_VERSION,
        config={name: sha256(content).hexdigest() for name, content in written.items()},
        output="",
    )
    output = store.directory(STAGE, table.key)
    found = store.find(STAGE, table.key)
    if found is not None:
        return found
    entries = [put_bytes(output, content, name=name) for name, content in written.items()]
    return commit(
        table.model_copy(update={"output": output}),
        entries,
        statistics=_statistics(files),
        execution={"source": str(location)},
    )


def _statistics(files: EncoderFiles) -> dict[str, object]:
    return {
        "tokenizer_digest": files.tokenizer.digest,
        "vocabulary_size": files.tokenizer.size,
        "parameters": sum(tensor.numel() for tensor in files.tensors.values()),
        "missing": list(files.missing),
        "ignored": list(files.ignored),
    }
