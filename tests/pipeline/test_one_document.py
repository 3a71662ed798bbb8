"""A corpus of a single document yields examples, however short the document."""

from pathlib import Path

import pyarrow as pa
import pytest

from cloze.pipeline.examples import make_examples
from cloze.pipeline.mlm.pairing import RANDOM_NEXT
from cloze.pipeline.mlm.statistics import FEW_PAIRS
from cloze.pipeline.tokens import make_tokens
from cloze.pipeline.vocabulary import make_vocabulary
from tests.pipeline.corpora import documents, source, tokens_table, vocabulary_table, write_jsonl
from tests.pipeline.synthetic_tokens import examples_table

SENTENCE = "The only sentence of the only document."


@pytest.mark.parametrize(
    "text",
    ["a", SENTENCE, f"{SENTENCE} {SENTENCE}", "The end. " * 500, " ".join(documents(1, 30))],
    ids=["letter", "sentence", "two sentences", "one sentence again and again", "many sentences"],
)
def test_no_example_has_a_random_next_sentence(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(tmp_path / "all.jsonl", [text])
    sources = [source(tmp_path / "all.jsonl")]
    small = {"size": 200}
    words = make_vocabulary(
        vocabulary_table(tmp_path / "words", sources, vocabulary=small, heldout_share=0.0), []
    )
    tokens = make_tokens(
        tokens_table(tmp_path / "tokens", sources, vocabulary=words, heldout_share=0.0), []
    )
    config = {"max_seq_lengths": [32], "copies": 3}
    examples = make_examples(examples_table(tokens, tmp_path / "examples", config=config), [])
    rows = pa.ipc.open_file(examples.path("train-32-00000.arrow")).read_all()
    assert len(rows) >= 3
    assert RANDOM_NEXT not in rows["next_sentence_label"].to_pylist()
    assert min(map(len, rows["masked_lm_ids"].to_pylist())) >= 1
    # Its next-sentence prediction learns nothing, which is said where it is no chance.
    asked = sum(
        label is not None and label >= 0 for label in rows["next_sentence_label"].to_pylist()
    )
    said = "warning: examples: no second segment is random (about half expected)"
    assert (said in capsys.readouterr().err) == (asked >= FEW_PAIRS)
