import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef

from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import read_vocab_txt
from cloze.model.config import TaskConfig
from cloze.model.tasks.base import Problem
from cloze.model.tasks.baselines import baselines
from cloze.model.tasks.classification import metric_values
from cloze.model.tasks.files.task_table import odd_spellings
from cloze.model.tasks.problems import load_problem, load_tables
from cloze.model.tasks.span import cut_texts, max_context
from cloze.model.tasks.tagging import count_entities, entities, is_entity_scheme
from tests.model.task_builders import TOKENIZER, write_lines


def problem(folder: Path, kind: str, rows: Mapping[str, list[dict]], **fields: Any) -> Problem:
    files = {split: write_lines(folder / f"{split}.jsonl", data) for split, data in rows.items()}
    task = TaskConfig.model_validate(
        {"name": "task", "kind": kind, "max_seq_length": 24, **files, **fields}
    )
    return load_problem(task, TOKENIZER, load_tables(task))


def both(rows: list[dict]) -> dict[str, list[dict]]:
    return {"train": rows, "dev": rows}


# --- classification


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["bad", "b\u0430d"], r"'bad', 'b\u0430d' are 2 labels"),
        (["BETA", "\u0412\u0395\u03a4\u0410"], r"'BETA', '\u0412\u0395\u03a4\u0410' are 2"),
        (["pos", "pos\u200b", "neg"], r"'pos', 'pos\u200b' are 2 labels"),
        (["Good", "good"], "'Good', 'good' are 2 labels"),
        (["да", "нет", "yes", "no"], ""),
    ],
)
def test_labels_that_look_alike_are_said_to_be_several(labels: list[str], said: str) -> None:
    assert next(odd_spellings(labels), "").startswith(said)
    assert bool(said) == any(odd_spellings(labels))


def test_f1_is_that_of_the_second_label(tmp_path: Path) -> None:
    rows = [{"text_a": "the", "label": label} for label in (0, 1, 1, 0)]
    found = problem(tmp_path, "classification", both(rows), metrics=("f1",))
    assert found.labels == ("0", "1")
    assert found.score("dev", ["1", "1", "0", "0"]) == {"f1": 0.5}


def test_an_unknown_label_is_named_with_its_line(tmp_path: Path) -> None:
    rows = {
        "train": [{"text_a": "the", "label": "yes"}, {"text_a": "a", "label": "no"}],
        "dev": [{"text_a": "the", "label": "yes"}, {"text_a": "a", "label": "maybe"}],
    }
    with pytest.raises(UsageError, match=r"dev\.jsonl:2: unknown label 'maybe'.*one of no, yes"):
        problem(tmp_path, "classification", rows)


def test_a_label_map_that_differs_from_the_models_is_named(tmp_path: Path) -> None:
    rows = both([{"text_a": "the", "label": "2"}, {"text_a": "a", "label": "1"}])
    with pytest.raises(UsageError, match="unknown label '2'.*one of 0, 1"):
        problem(tmp_path, "classification", rows, labels=("0", "1"))


def test_one_label_alone_is_no_classification(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only the label 1"):
        problem(tmp_path, "classification", both([{"text_a": "the", "label": 1}]))


@pytest.mark.parametrize(("labels", "line"), [("no yes", 2), ("no yes maybe maybe", 2)])
def test_a_label_whose_only_row_would_be_held_out_is_named_with_its_line(
    tmp_path: Path, labels: str, line: int
) -> None:
    rows = [{"text_a": "the", "label": label} for label in labels.split()]
    wanted = rf"train\.jsonl:{line}: no other row is left to learn the label 'yes' from.* dev file"
    with pytest.raises(UsageError, match=wanted):
        problem(tmp_path, "classification", {"train": rows})
    problem(tmp_path, "classification", {"train": [*rows, *rows]})


def test_regression_wants_finite_numbers(tmp_path: Path) -> None:
    rows = [{"text_a": "the", "text_b": "a", "label": "4.5"}]
    found = problem(tmp_path, "regression", both(rows))
    assert found.gold("dev") == [4.5]
    for bad, message in (("much", "not a number"), ("nan", "not finite")):
        rows = [{"text_a": "the", "text_b": "a", "label": bad}]
        with pytest.raises(UsageError, match=message):
            problem(tmp_path, "regression", both(rows))


def test_empty_texts_of_a_test_file_are_inputs_like_others(tmp_path: Path) -> None:
    rows = both([{"text_a": "a", "label": "1"}, {"text_a": "b", "label": "0"}])
    found = problem(tmp_path, "classification", {**rows, "test": [{"text_a": ""}, {"text_a": " "}]})
    assert found.sequences["test"].lengths.tolist() == [2, 2]
    assert not found.labelled("test")


def test_balanced_weights_count_rare_labels_as_much_as_frequent_ones(tmp_path: Path) -> None:
    rows = both([{"text_a": "the", "label": label} for label in "aaab"])
    plain = problem(tmp_path, "classification", rows)
    weighted = problem(tmp_path, "classification", rows, class_weights="balanced")
    logits, targets = torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])
    assert weighted.loss(logits, targets) == pytest.approx(4 * np.log(2), rel=1e-6)
    logits = torch.tensor([[9.0, 0.0]] * 4)  # always the more frequent label
    assert plain.loss(logits, targets) == pytest.approx(9.0, rel=1e-3)
    assert weighted.loss(logits, targets) == pytest.approx(18.0, rel=1e-3)  # 4 / (2 × 1)


def test_only_two_texts_can_be_compared(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="compare_texts applies to tasks of kind pair_classification or"
    ):
        TaskConfig(name="t", kind="classification", compare_texts=True)
    rows = both([{"text_a": "the", "label": "1"}, {"text_a": "a", "label": "2"}])
    with pytest.raises(UsageError, match=r"train\.jsonl: no column text_b, expected one"):
        problem(tmp_path, "regression", rows, compare_texts=True)


def test_only_labels_can_be_weighed(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="class_weights applies to tasks of kind classification or"
    ):
        TaskConfig(name="t", kind="tagging", class_weights="balanced")


def test_glue_metrics_are_those_of_scikit_learn_and_scipy() -> None:
    rng = np.random.default_rng(0)
    gold, guess = rng.integers(0, 2, 200), rng.integers(0, 2, 200)
    scores = metric_values(("accuracy", "f1", "matthews"), gold, guess)
    assert scores == {
        "accuracy": float((gold == guess).mean()),
        "f1": f1_score(gold, guess),
        "matthews": matthews_corrcoef(gold, guess),
    }
    gold, guess = rng.random(100), rng.random(100)
    assert metric_values(("pearson", "spearman"), gold, guess) == {
        "pearson": pearsonr(gold, guess).statistic,
        "spearman": spearmanr(gold, guess).statistic,
    }


def test_constant_predictions_score_zero_instead_of_nan() -> None:
    gold = np.array([0.0, 1.0, 2.0])
    assert metric_values(("pearson", "spearman"), gold, np.ones(3)) == {
        "pearson": 0.0,
        "spearman": 0.0,
    }
    assert metric_values(("matthews",), np.array([0, 1, 1]), np.ones(3, np.int64)) == {
        "matthews": 0.0
    }


# --- tagging


def test_only_first_pieces_are_asked_and_long_sentences_are_judged_whole(tmp_path: Path) -> None:
    words = ["arrays", "of", "names"] * 10
    tags = ["N", "O", "N"] * 10
    found = problem(tmp_path, "tagging", both([{"words": words, "tags": tags}] * 2))
    sequences = found.sequences["dev"]
    assert len(sequences) > 2
    rows = np.arange(len(sequences))
    places = found.positions("dev", rows)
    flat = sequences.batch(rows).input_ids.numpy()[places]
    first = [TOKENIZER.encode(word)[0] for word in words] * 2
    assert flat.tolist() == first
    assert found.targets("dev", rows).tolist() == [0, 1, 0] * 20
    logits = np.eye(2, dtype=np.float32)[[0, 1, 0] * 20]
    assert found.predictions("dev", logits) == [tags, tags]


def test_a_word_that_the_tokenizer_deletes_is_still_asked(tmp_path: Path) -> None:
    rows = [{"words": ["the", "\u200b", "list"], "tags": ["A", "B", "C"]}]
    found = problem(tmp_path, "tagging", both(rows))
    ids = found.sequences["dev"].input_ids.row(0).tolist()
    assert ids[2] == TOKENIZER.unk_id
    assert len(found.positions("dev", np.array([0]))) == 3


def test_document_context_surrounds_a_sentence_with_its_own_document(tmp_path: Path) -> None:
    rows = [
        {"words": [word] * 4, "tags": ["O"] * 4, "document": document}
        for word, document in (("the", 0), ("list", 0), ("shape", 0), ("name", 1), ("str", 1))
    ]
    found = problem(tmp_path, "tagging", both(rows), document_context=True, max_seq_length=10)
    texts = [
        [TOKENIZER.vocabulary[i] for i in found.sequences["dev"].input_ids.row(row)[1:-1]]
        for row in range(5)
    ]
    assert texts[1] == ["the"] * 2 + ["list"] * 4 + ["shape"] * 2
    assert texts[0] == ["the"] * 4 + ["list"] * 4
    assert texts[3] == ["name"] * 4 + ["str"] * 4
    places = found.positions("dev", np.array([1]))
    assert places.tolist() == [3, 4, 5, 6]


def test_words_without_tags_of_their_own_are_named(tmp_path: Path) -> None:
    rows = both([{"words": ["a", "b"], "tags": ["O"]}])
    with pytest.raises(UsageError, match=r"train\.jsonl:1: 2 words, but tags is \['O'\]"):
        problem(tmp_path, "tagging", rows)


def test_entity_tags_are_judged_by_entities_and_word_classes_by_words(tmp_path: Path) -> None:
    entities = problem(tmp_path, "tagging", both([{"words": ["a", "b"], "tags": ["O", "B-X"]}]))
    assert entities.headline == "entity_f1"
    classes = problem(tmp_path, "tagging", both([{"words": ["a", "b"], "tags": ["DT", "NN"]}]))
    assert classes.headline == "accuracy"


# Counts by conlleval.pl (version 2004-01-26) on the same tags.
@pytest.mark.parametrize(
    ("tags", "seed", "expected"),
    [
        (["O", "I-PER", "I-LOC"], 1, (736, 722, 407, "55.83")),
        (["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], 2, (1038, 1015, 632, "61.57")),
    ],
)
def test_entities_are_counted_as_conlleval_counts_them(
    tags: list[str], seed: int, expected: tuple[int, int, int, str]
) -> None:
    rng = random.Random(seed)
    gold = [[rng.choice(tags) for _ in range(rng.randint(1, 9))] for _ in range(300)]
    guess = [[tag if rng.random() < 0.6 else rng.choice(tags) for tag in row] for row in gold]
    counts = count_entities(gold, guess)
    assert (counts.gold, counts.predicted, counts.correct, f"{100 * counts.f1:.2f}") == expected


def test_entities_of_both_schemes() -> None:
    assert entities(["I-PER", "I-PER", "O", "I-LOC", "B-LOC"]) == [
        (0, 1, "PER"),
        (3, 3, "LOC"),
        (4, 4, "LOC"),
    ]
    assert entities(["B-PER", "I-LOC", "I-LOC"]) == [(0, 0, "PER"), (1, 2, "LOC")]
    assert entities(["S-A", "B-A", "I-A", "E-A", "E-A"]) == [
        (0, 0, "A"),
        (1, 3, "A"),
        (4, 4, "A"),
    ]


def test_classes_of_words_are_no_entities() -> None:
    assert is_entity_scheme(["O", "B-PER"])
    assert not is_entity_scheme(["NN", "VB"])
    assert not is_entity_scheme(["O"])


def test_no_entities_anywhere_score_zero() -> None:
    assert count_entities([["O"]], [["O"]]).f1 == 0.0


# --- multiple choice


def test_choices_are_read_side_by_side_whatever_their_number(tmp_path: Path) -> None:
    rows = [
        {"context": "the", "endings": ["a", "list", "of"], "label": 2},
        {"context": "given", "prefix": "shape", "endings": ["int", "str"], "label": 0},
    ]
    found = problem(tmp_path, "multiple_choice", both([{**rows[0], "prefix": ""}, rows[1]]))
    assert found.rows("dev", np.array([1, 0])).tolist() == [3, 4, 0, 1, 2]
    assert found.sequences["dev"].input_ids.row(3).tolist() == [
        TOKENIZER.cls_id,
        *TOKENIZER.encode("given"),
        TOKENIZER.sep_id,
        *TOKENIZER.encode("shape int"),
        TOKENIZER.sep_id,
    ]
    logits = np.array([[0.0], [1.0], [3.0], [2.0], [1.0]], np.float32)
    assert found.predictions("dev", logits) == [2, 0]
    loss = found.loss(
        torch.from_numpy(logits), torch.from_numpy(found.targets("dev", np.arange(2)))
    )
    expected = -torch.log_softmax(torch.tensor([0.0, 1.0, 3.0]), 0)[2]
    expected = expected - torch.log_softmax(torch.tensor([2.0, 1.0]), 0)[0]
    assert float(loss) == pytest.approx(float(expected))


def test_a_label_beyond_the_endings_is_named(tmp_path: Path) -> None:
    rows = both([{"context": "the", "endings": ["a", "list"], "label": 2}])
    with pytest.raises(UsageError, match="label 2, expected the number of an ending, 0 to 1"):
        problem(tmp_path, "multiple_choice", rows)


def test_codah_is_read_by_column_numbers(shared_data: Path) -> None:
    path = str(shared_data / "multiple_choice" / "codah.tsv")
    columns = {"context": "1", "label": "6", **{f"ending{n}": str(2 + n) for n in range(4)}}
    task = TaskConfig(name="c", kind="multiple_choice", train=path, dev=path, columns=columns)
    found = load_problem(task, TOKENIZER, load_tables(task))
    assert found.examples("dev") == 2776
    assert len(found.sequences["dev"]) == 4 * 2776


# --- spans

CONTEXT = "the new arrays of given shape , a list of names raised if the value returns an error"


def question(answer: str, start: int | None = None, **more: Any) -> dict:
    place = CONTEXT.index(answer) if start is None else start
    answers = (
        {"text": [answer], "answer_start": [place]} if answer else {"text": [], "answer_start": []}
    )
    return {"question": "new list", "context": CONTEXT, "answers": answers, **more}


def oracle(found: Problem, split: str) -> np.ndarray:
    """Logits whose predictions are the training targets."""
    rows = np.arange(len(found.sequences[split]))
    offsets = found.sequences[split].input_ids.offsets
    logits = np.zeros((int(offsets[-1]), 2), np.float32)
    targets = found.targets(split, rows)
    for side in (0, 1):
        logits[offsets[:-1] + targets[:, side], side] = 10.0
    return logits


@pytest.mark.parametrize("answer", ["the new", "arrays", "given shape", "a list of", "error"])
def test_an_answer_survives_chunks_and_decoding(tmp_path: Path, answer: str) -> None:
    found = problem(
        tmp_path, "span", both([question(answer)]), max_seq_length=16, span={"doc_stride": 4}
    )
    assert len(found.sequences["dev"]) > 2
    guesses = found.predictions("dev", oracle(found, "dev"))
    assert [guess["text"] for guess in guesses] == [answer]
    assert found.score("dev", guesses) == {"exact_match": 1.0, "f1": 1.0}


def test_an_answer_that_does_not_stand_in_its_context_is_not_trained_on(tmp_path: Path) -> None:
    rows = [question("given shape"), question("given shape", start=3), question("a list of")]
    found = problem(tmp_path, "span", both(rows))
    assert found.units("train") < len(found.sequences["train"])
    assert "1 questions are not trained on" in found.notes[0]
    assert "train.jsonl:2" in found.notes[0]


@pytest.mark.parametrize("empty", [None, {"text": [], "answer_start": []}])
def test_without_marks_questions_without_answers_are_unanswerable_as_in_datasets(
    tmp_path: Path, empty: object
) -> None:
    """As in `squad_v2` of Hugging Face, which has no column is_impossible."""
    rows = [question("given shape", id="a"), {**question("", id="b"), "answers": empty}]
    found = problem(tmp_path, "span", both(rows), max_seq_length=64)
    guesses = [
        {"text": "given shape", "best": "given shape", "margin": 1.5},
        {"text": "the", "best": "the", "margin": 4.0},
    ]
    settled = found.thresholded(guesses, guesses)
    assert found.score("dev", settled)["no_answer_f1"] == 1.0
    table = load_tables(found.config)["dev"]
    assert table.remarks == (
        f"{tmp_path}/dev.jsonl:2: 1 questions without answers count as unanswerable (SQuAD 2.0)",
    )


def test_training_questions_whose_answers_all_stand_elsewhere_are_refused(tmp_path: Path) -> None:
    rows = [question("given shape", start=3), question("a list of", start=70)]
    with pytest.raises(UsageError, match=r"train\.jsonl: none of the 2 answers stands in its"):
        problem(tmp_path, "span", {"train": rows, "dev": [question("given shape")]})


def test_questions_with_the_id_of_an_earlier_one_are_counted(tmp_path: Path) -> None:
    rows = [question("given shape", id=one) for one in ("a", "b", "a", "a")]
    found = problem(tmp_path, "span", both(rows), max_seq_length=64)
    (remark,) = load_tables(found.config)["dev"].remarks
    assert remark.startswith(f"{tmp_path}/dev.jsonl:3: 2 questions have the id of an earlier one")


def test_a_short_row_of_a_test_file_is_refused_as_predictions_go_by_rows(tmp_path: Path) -> None:
    files = {"train": "a\tx\nb\ty\nshort\n", "dev": "a\tx\n", "test": "a\tx\nshort\nb\ty\n"}
    for split, text in files.items():
        (tmp_path / f"{split}.tsv").write_text("text\tlabel\n" + text)
    table = {
        **{split: str(tmp_path / f"{split}.tsv") for split in files},
        **{"name": "t", "kind": "classification", "skip_short_rows": True},
        "columns": {"text_a": "text"},
    }
    with pytest.raises(UsageError, match=r"test\.tsv:3: "):
        load_tables(TaskConfig.model_validate(table))
    tables = load_tables(TaskConfig.model_validate({**table, "test": ""}))
    assert len(tables["train"]) == 2


def test_unanswerable_questions_get_the_null_threshold_of_dev(tmp_path: Path) -> None:
    rows = [question("given shape", is_impossible=False), question("", is_impossible=True)]
    found = problem(tmp_path, "span", both(rows), max_seq_length=64)
    guesses = [
        {"text": "given shape", "best": "given shape", "margin": 1.5},
        {"text": "the", "best": "the", "margin": 4.0},
    ]
    settled = found.thresholded(guesses, guesses)
    assert [guess["text"] for guess in settled] == ["given shape", ""]
    scores = found.score("dev", settled)
    assert set(scores) > {"exact_match", "f1", "has_answer_f1", "no_answer_exact_match"}
    assert set(scores.values()) == {1.0}


def test_no_span_is_longer_than_allowed_or_ends_before_it_starts(tmp_path: Path) -> None:
    config = {"max_answer_length": 2, "n_best": 3}
    found = problem(tmp_path, "span", both([question("given")]), max_seq_length=64, span=config)
    length = int(found.sequences["dev"].lengths[0])
    rng = np.random.default_rng(0)
    for _ in range(20):
        (guess,) = found.predictions("dev", rng.normal(size=(length, 2)).astype(np.float32))
        assert len(guess["text"].split()) <= 2
        assert guess["text"] in CONTEXT


def test_chunks_are_those_of_the_reference() -> None:
    chunks = cut_texts(np.array([10, 10]), np.array([25, 7]), stride=4)
    assert chunks.question.tolist() == [0, 0, 0, 0, 0, 1]
    assert chunks.start.tolist() == [0, 4, 8, 12, 16, 0]
    assert chunks.length.tolist() == [10, 10, 10, 10, 9, 7]


def reference_max_context(starts: list[int], lengths: list[int], token: int) -> int:
    """The window in which a token has most context (run_squad.py, _check_is_max_context)."""
    best, chosen = None, -1
    for index, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        if start <= token < start + length:
            score = min(token - start, start + length - 1 - token) + 0.01 * length
            if best is None or score > best:
                best, chosen = score, index
    return chosen


def test_max_context_is_that_of_the_reference() -> None:
    chunks = cut_texts(np.array([12]), np.array([40]), stride=5)
    chosen = max_context(chunks, np.array([40]))
    offsets = np.cumsum(chunks.length) - chunks.length
    for token in range(40):
        places = [
            index
            for index in range(len(chunks))
            if chunks.start[index] <= token < chunks.start[index] + chunks.length[index]
            and chosen[offsets[index] + token - chunks.start[index]]
        ]
        assert places == [
            reference_max_context(chunks.start.tolist(), chunks.length.tolist(), token)
        ]


def test_squad_files_keep_their_answers_through_real_tokens(shared_data: Path) -> None:
    path = str(shared_data / "squad" / "xquad.en.json")
    vocabulary = shared_data / "vocab" / "bert-base-uncased-vocab.txt"
    tokenizer = read_vocab_txt(vocabulary, lowercase=True)
    task = TaskConfig(name="q", kind="span", train=path, dev=path, max_seq_length=384)
    found = load_problem(task, tokenizer, load_tables(task))
    assert found.examples("dev") == 1190
    guesses = found.predictions("dev", oracle(found, "dev"))
    assert found.score("dev", guesses)["exact_match"] > 0.99


# --- all families


def test_baselines_are_scored_like_models(tmp_path: Path) -> None:
    rows = {
        "train": [{"words": ["the", "list"], "tags": ["D", "N"]}] * 3,
        "dev": [{"words": ["list", "shape", "the"], "tags": ["N", "N", "D"]}],
    }
    found = problem(tmp_path, "tagging", rows)
    tables = load_tables(found.config)
    scores = {record.name: record.dev["accuracy"] for record in baselines(found, tables)}
    assert scores == {"majority": pytest.approx(1 / 3), "lookup": pytest.approx(2 / 3)}


def test_word_overlap_finds_pairs_that_share_words(tmp_path: Path) -> None:
    rows = [
        {"text_a": f"the {a}", "text_b": f"the {b}", "label": int(a == b)}
        for a in ("list", "array", "name")
        for b in ("list", "array", "name", "shape")
    ]
    found = problem(tmp_path, "pair_classification", both(rows))
    overlap = {r.name: r.dev["accuracy"] for r in baselines(found, load_tables(found.config))}
    assert overlap["word_overlap"] == 1.0
    assert overlap["majority"] == 0.75


def test_a_problem_with_a_pruned_vocabulary_reads_the_same_words(tmp_path: Path) -> None:
    rows = both([{"text_a": "the list of names", "label": "1"}, {"text_a": "a", "label": "0"}])
    found = problem(tmp_path, "classification", rows)
    before = found.sequences["dev"].input_ids
    found.prune_vocabulary()
    after = found.sequences["dev"].input_ids
    assert found.used_ids is not None
    assert found.used_ids[after.values].tolist() == before.values.tolist()
    whole = torch.ones(TOKENIZER.size, 2)
    put_back = found.restore_rows(whole, torch.zeros(len(found.used_ids), 2), decay=0.5)
    assert set(put_back[found.used_ids].flatten().tolist()) == {0.0}
    assert put_back.sum() == 0.5 * 2 * (TOKENIZER.size - len(found.used_ids))


def test_predictions_are_json(tmp_path: Path) -> None:
    found = problem(tmp_path, "span", both([question("given")]), max_seq_length=64)
    json.dumps(found.predictions("dev", oracle(found, "dev")))
