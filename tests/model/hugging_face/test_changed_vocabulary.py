"""An encoder with another vocabulary: its rows, and what other libraries make of the export."""

from pathlib import Path

import numpy as np
import pytest
import torch

import cloze as api
from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from cloze.model.hugging_face.changed_vocabulary import OVER_VOCABULARY, with_vocabulary
from cloze.model.hugging_face.model_files import EncoderFiles, read_encoder_files
from cloze.model.inference.export import export_encoder
from tests.byte_level import byte_level
from tests.cloze.tiny_model import write_model

WORDS = ["abb", "##aa", "café"]
TEXT = "The list of ABB, abba baa and a café."


@pytest.fixture
def files(tmp_path: Path) -> EncoderFiles:
    """A tiny encoder with the pieces `##a`, `##b` and some letters besides words."""
    own = WordPieceTokenizer(
        (*SPECIAL_TOKENS, "the", "list", "of", "a", "b", "c", "##a", "##b", "##f", "##é", "."),
        lowercase=True,
        strip_accents=False,
    )
    write_model(tmp_path / "encoder", tokenizer=own)
    return read_encoder_files(tmp_path / "encoder")


def test_a_new_word_has_the_mean_of_its_pieces_and_no_other_row_changes(
    files: EncoderFiles,
) -> None:
    more = with_vocabulary(files, files.tokenizer.with_words(WORDS))
    pieces = [["a", "##b", "##b"], ["##a", "##a"], ["c", "##a", "##f", "##é"]]
    for name in OVER_VOCABULARY:
        old, new = files.parameters[name], more.parameters[name]
        assert torch.equal(new[: len(old)], old)
        expected = [
            sum(old[files.tokenizer.ids[piece]] for piece in each) / len(each) for each in pieces
        ]
        assert torch.allclose(new[len(old) :], torch.stack(expected), atol=1e-7)
    others = files.parameters.keys() - set(OVER_VOCABULARY)
    assert all(more.parameters[name] is files.parameters[name] for name in others)
    assert [files.tokenizer.pieces(word) for word in WORDS] == pieces


def test_a_smaller_vocabulary_keeps_the_rows_of_its_tokens(files: EncoderFiles) -> None:
    fewer = WordPieceTokenizer((*SPECIAL_TOKENS, "of", "a"), lowercase=True, strip_accents=False)
    pruned = with_vocabulary(files, fewer)
    rows = [files.tokenizer.ids[word] for word in fewer.vocabulary]
    for name in OVER_VOCABULARY:
        assert torch.equal(pruned.parameters[name], files.parameters[name][rows])


def test_the_same_vocabulary_changes_nothing(files: EncoderFiles) -> None:
    assert with_vocabulary(files, files.tokenizer) is files


def test_a_vocabulary_of_another_kind_is_refused(files: EncoderFiles, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only be changed if it is WordPiece"):
        with_vocabulary(files, byte_level(tmp_path))


def test_transformers_has_the_same_ids_and_outputs(files: EncoderFiles, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    more = with_vocabulary(files, files.tokenizer.with_words(WORDS))
    export_encoder(more, tmp_path / "export")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "export")
    ids = theirs(TEXT)["input_ids"]
    ours = more.tokenizer
    assert ids == [ours.cls_id, *ours.encode(TEXT), ours.sep_id]
    tokens = theirs.convert_ids_to_tokens(ids)
    assert tokens[4:9] == ["abb", "[UNK]", "abb", "##a", "b"]  # a comma is unknown here
    assert tokens[9] == "##aa"
    assert "café" in tokens
    model = transformers.AutoModel.from_pretrained(tmp_path / "export").eval()
    with torch.no_grad():
        hidden = model(torch.tensor([ids])).last_hidden_state[0].numpy()
    (vector,) = api.load(str(tmp_path / "export")).sentence_vectors([TEXT])
    mean = hidden.mean(0)
    assert np.allclose(vector, mean / np.linalg.norm(mean), atol=1e-5)
