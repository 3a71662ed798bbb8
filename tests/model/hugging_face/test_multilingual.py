"""Multilingual encoders as people have them: Unigram tokenizers, positions that begin at 2."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    AutoModel,
    AutoTokenizer,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
    XLMRobertaModel,
)

from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import ForeignTokenizer, read_tokenizer_json
from cloze.model.hugging_face.model_files import read_encoder_files
from cloze.model.inference.export import export_encoder
from cloze.model.inference.load import load_model
from cloze.pipeline.examples import make_examples
from cloze.pipeline.text.sentences import split_sentences
from cloze.pipeline.tokenizer.running_text import RunningText
from cloze.pipeline.tokenizer.wordpiece import form_for
from cloze.pipeline.tokens import make_tokens
from cloze.pipeline.vocabulary import make_vocabulary
from tests.pipeline.corpora import source, tokens_table, vocabulary_table, write_jsonl
from tests.pipeline.synthetic_tokens import examples_table

TEXTS = [
    "The cat sat on the mat. It was happy.",
    "今天很好。明天呢？好！",
    "यह घर है। वह गया। हम आए।",
    "Он пришёл домой. Кот ел рыбу.",
]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def unigram(folder: Path, kind: str = "Unigram") -> Path:
    """A small tokenizer.json in the form of XLM-R's, or a BPE with the same pipeline."""
    tokenizer = Tokenizer(models.Unigram() if kind == "Unigram" else models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = (
        trainers.UnigramTrainer(
            vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
        )
        if kind == "Unigram"
        else trainers.BpeTrainer(vocab_size=120, special_tokens=SPECIAL, show_progress=False)
    )
    tokenizer.train_from_iterator(TEXTS * 5, trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def xlm_roberta(folder: Path, *, bare: bool = False) -> XLMRobertaModel:
    """A random XLM-R in `folder`; returns its encoder."""
    folder.mkdir(exist_ok=True)
    path = unigram(folder)
    size = Tokenizer.from_file(str(path)).get_vocab_size()
    config = XLMRobertaConfig(
        vocab_size=size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=34,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    torch.manual_seed(1)
    model = XLMRobertaForMaskedLM(config).eval()
    (model.roberta if bare else model).save_pretrained(folder)
    return model.roberta


@pytest.mark.parametrize("kind", ["Unigram", "BPE"])
def test_ids_are_those_of_tokenizers_alone_and_in_running_text(kind: str, tmp_path: Path) -> None:
    path = unigram(tmp_path, kind)
    theirs, ours = Tokenizer.from_file(str(path)), read_tokenizer_json(path)
    assert isinstance(ours, ForeignTokenizer)
    assert [ours.cls_id, ours.pad_id, ours.sep_id, ours.unk_id] == [0, 1, 2, 3]
    form = form_for(ours)
    assert isinstance(form, RunningText)
    for text in TEXTS:
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == expected
        raw = np.frombuffer(f"{text}\n".encode(), dtype=np.uint8)
        cut, ends, glued = split_sentences(raw, np.array([len(raw)]))
        ids, _ = form.encode(cut, np.flatnonzero(cut == ord("\n")) + 1, ends, glued)
        assert ids.tolist() == expected


@pytest.mark.parametrize("bare", [False, True])
def test_hidden_states_are_those_of_an_xlm_roberta(bare: bool, tmp_path: Path) -> None:
    theirs = xlm_roberta(tmp_path, bare=bare)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    model = load_model(str(tmp_path))
    assert model.config.max_position_embeddings == 32
    short = [text[:12] for text in TEXTS]
    found = np.stack(list(model.embed_stream(short, pooling="mean", layers=(-1,))))
    for text, vector in zip(short, found, strict=True):
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            hidden = theirs(ids).last_hidden_state[0]
        mean = hidden.mean(dim=0).numpy()
        assert np.allclose(vector, mean, atol=2e-5) or np.allclose(
            vector, hidden[1:-1].mean(dim=0).numpy(), atol=2e-5
        )
    files = read_encoder_files(tmp_path)
    assert files.has_masked_lm != bare


def test_a_tokenizer_without_special_tokens_is_refused_by_name(tmp_path: Path) -> None:
    path = unigram(tmp_path)
    table = json.loads(path.read_text())
    table["added_tokens"] = [one for one in table["added_tokens"] if one["content"] != "<mask>"]
    path.write_text(json.dumps(table))
    with pytest.raises(UsageError, match="no special token .*<mask>"):
        read_tokenizer_json(path)


def test_a_corpus_is_prepared_with_its_tokenizer(tmp_path: Path) -> None:
    path = unigram(tmp_path)
    tokenizer = read_tokenizer_json(path)
    sources = [source(tmp_path / "a.jsonl")]
    write_jsonl(tmp_path / "a.jsonl", [f"{text} {number}" for number, text in enumerate(TEXTS * 3)])
    given = {"path": str(path)}
    vocabulary = make_vocabulary(
        vocabulary_table(tmp_path / "vocabulary", sources, vocabulary=given), []
    )
    table = tokens_table(tmp_path / "tokens", sources, vocabulary=vocabulary, heldout_share=0.0)
    tokens = make_tokens(table, [])
    assert tokens.manifest.statistics["tokenizer_digest"] == tokenizer.digest
    config = {"max_seq_lengths": [32], "copies": 1}
    examples = make_examples(examples_table(tokens, tmp_path / "examples", config=config), [])
    (name,) = [one.name for one in examples.manifest.files if one.name.endswith(".arrow")]
    with pa.memory_map(examples.path(name)) as file:
        rows = pa.ipc.open_file(file).read_all()["input_ids"].to_pylist()
    assert rows
    assert all(row[0] == 0 and row[-1] == 2 and row.count(2) == 2 for row in rows)


def test_an_imported_encoder_computes_the_same_in_transformers(tmp_path: Path) -> None:
    theirs = xlm_roberta(tmp_path / "theirs")
    export_encoder(read_encoder_files(tmp_path / "theirs"), tmp_path / "ours")
    ids = torch.tensor([[0, 5, 6, 7, 2]])
    with torch.no_grad():
        expected = theirs(ids).last_hidden_state
        found = AutoModel.from_pretrained(tmp_path / "ours")(ids).last_hidden_state
    assert torch.allclose(found, expected, atol=2e-6)
    assert AutoTokenizer.from_pretrained(tmp_path / "ours")("a").input_ids[0] == 0
