"""Students: their first weights, their losses, and training that may be interrupted."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from cloze.artifacts.errors import UsageError
from cloze.artifacts.store import Artifact, open_artifact
from cloze.artifacts.tokenizer import SPECIAL_TOKENS, SubwordTokenizer, WordPieceTokenizer
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.plan import Plan
from cloze.model.config import EncoderConfig
from cloze.model.data.batch import Example, pack_sequences
from cloze.model.distillation.distill import make_student
from cloze.model.distillation.lessons import make_lessons, read_lessons, span_of
from cloze.model.distillation.pruning import (
    kept_pieces,
    pruned_modules,
    pruned_parameters,
    pruned_tokenizer,
)
from cloze.model.distillation.students import kept_layers, student_shape, student_weights
from cloze.model.distillation.vectors import losses
from cloze.model.encoder.models import Encoder, PretrainingModel
from cloze.model.hugging_face.sentence_modules import NORMALIZE, SentenceModules
from cloze.model.hugging_face.term_vectors import TermVectors
from cloze.model.inference.load import load_model
from cloze.model.training.checkpoints import FaultHook, no_fault
from cloze.pipeline.pairs import make_pairs
from tests.cloze.tiny_model import CONFIG, MODERN, write_model

DEEP = CONFIG.model_copy(update={"num_hidden_layers": 4})


def parameters_of(config: EncoderConfig) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = PretrainingModel(Encoder(config, 11))
    for value in model.parameters():  # biases and norms that differ, too
        value.data += torch.randn(value.shape) / 10
    return {name: value.detach() for name, value in model.named_parameters()}


def test_layers_are_evenly_spaced_with_the_first_and_the_last() -> None:
    assert kept_layers(6, 3) == [0, 2, 5]
    assert kept_layers(12, 4) == [0, 4, 7, 11]
    assert kept_layers(6, 6) == [0, 1, 2, 3, 4, 5]
    assert kept_layers(6, 1) == [0]


@pytest.mark.parametrize("teacher", [DEEP, MODERN.model_copy(update={"num_hidden_layers": 4})])
def test_a_student_begins_with_the_teachers_layers(teacher: EncoderConfig) -> None:
    shape = student_shape(teacher, layers=2)
    given = parameters_of(teacher)
    weights = student_weights(given, teacher, shape)
    for name, value in weights.items():
        theirs = name.replace("layers.1.", "layers.3.")
        assert torch.equal(value, given[theirs]), name
    PretrainingModel(Encoder(shape, 11)).load_state_dict(weights)


def test_a_narrower_student_has_every_parameter_in_its_own_width() -> None:
    shape = student_shape(DEEP, layers=2, width=4)
    assert (shape.num_attention_heads, shape.intermediate_size) == (1, 8)
    weights = student_weights(parameters_of(DEEP), DEEP, shape)
    # Refuses any name or size that is not the student's.
    PretrainingModel(Encoder(shape, 11)).load_state_dict(weights)


def test_a_projection_keeps_what_lies_in_few_directions() -> None:
    """Word embeddings in a plane are the same up to a rotation: all inner products are kept."""
    given = parameters_of(DEEP)
    plane, place = torch.randn(4, 8), torch.randn(11, 4)
    given["encoder.embeddings.word_embeddings.weight"] = words = place @ plane
    shape = student_shape(DEEP, layers=4, width=4)
    narrow = student_weights(given, DEEP, shape)["encoder.embeddings.word_embeddings.weight"]
    torch.testing.assert_close(narrow @ narrow.T, words @ words.T, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    ("layers", "width", "said"),
    [
        (5, 0, "layers 5: the teacher has 4; expected 1 to as many"),
        (2, 6, "width 6: expected a multiple of 4, the width of the teacher's heads, below its 8"),
        (2, 16, "width 16: expected a multiple of 4"),
    ],
)
def test_a_student_that_cannot_be_made_is_refused(layers: int, width: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        student_shape(DEEP, layers=layers, width=width)


def test_a_modern_encoder_is_not_made_narrower_and_a_one_sided_one_is_no_teacher() -> None:
    with pytest.raises(UsageError, match="only encoders of BERT's family can be made narrower"):
        student_shape(MODERN, layers=1, width=4)
    one_sided = CONFIG.model_copy(update={"attention_direction": "left_to_right"})
    with pytest.raises(UsageError, match="the teacher is left to right"):
        student_shape(one_sided, layers=1)


def test_both_losses_are_zero_for_the_teachers_own_vectors() -> None:
    vectors = torch.nn.functional.normalize(torch.randn(5, 8), dim=-1)
    for loss in losses(vectors, vectors, temperature=0.05):
        assert abs(float(loss)) < 1e-5


def test_the_losses_are_those_worked_out_by_hand() -> None:
    """Three texts; the student has the third where the second is."""
    east, north = [1.0, 0.0], [0.0, 1.0]
    targets, found = torch.tensor([east, east, north]), torch.tensor([east, north, east])
    cosine, ranking = losses(found, targets, temperature=1.0)
    assert float(cosine) == pytest.approx(2 / 3)
    # The first text: its teacher has cosines 1 and 0 with the others, the student 0 and 1. With
    # p = e / (e + 1) the divergence is (2 p - 1) · 1. The second text has the teacher's 1 and 0
    # and the student's 0 and 0, the third 0 and 0, and 1 and 0.
    p = np.e / (np.e + 1)
    second = p * np.log(p / 0.5) + (1 - p) * np.log((1 - p) / 0.5)
    third = 0.5 * np.log(0.5 / p) + 0.5 * np.log(0.5 / (1 - p))
    assert float(ranking) == pytest.approx(((2 * p - 1) + second + third) / 3)


def test_a_span_is_a_few_words_of_the_text_and_the_same_every_time() -> None:
    text = " ".join(f"w{number}" for number in range(60))
    span = span_of(text, seed=1)
    assert span in text and 3 <= len(span.split()) <= 12
    assert span == span_of(text, seed=1)
    assert len({span_of(text, seed) for seed in range(20)}) > 10
    assert 1 <= len(span_of("日本語の文には空白がありません", seed=1)) <= 24


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A teacher, and documents with words of its vocabulary."""
    write_model(tmp_path / "teacher", encoder=DEEP)
    (tmp_path / "texts").mkdir()
    draw = np.random.default_rng(0)
    for number in range(40):
        lines = (" ".join(draw.choice(["a", "b", "names", "list"], 7)) for _ in range(8))
        text = "".join(f"The {line}.\n" for line in lines)
        (tmp_path / "texts" / f"{number}.txt").write_text(text)
    return tmp_path


def made(
    begun: Path,
    workspace: str,
    *,
    fault: FaultHook = no_fault,
    stages: Sequence[str] = (),
    **own: object,
) -> Artifact:
    """The student, or the last of `stages`, made in this process."""
    run = RunConfig.model_validate(
        {
            "name": "student",
            "pairs": {
                "sources": [{"reader": "text", "path": str(begun / "texts")}],
                "words": 8,
                "train_pairs": 40,
                "evaluation_pairs": 8,
            },
            "distill": {
                "teacher": str(begun / "teacher"),
                "layers": 2,
                "batch_size": 8,
                "max_seq_length": 16,
                "precision": "fp32",
                **own,
            },
        }
    )
    training = {"checkpoint_every": 2, "threads": 1, "device": "cpu"}
    machine = MachineConfig.model_validate(
        {"workspace": str(begun / workspace), "training": training}
    )
    plan = Plan(run, machine)
    programs = {
        "pairs": make_pairs,
        "lessons": make_lessons,
        "distill": lambda table, options: make_student(table, options, fault=fault),
    }
    for name, program in programs.items():
        if name not in plan.finished:
            plan.finish(name, program(plan.table(plan.stages[name]), []))
    return plan.finished["distill"]


class Stopped(Exception):
    """As if the process had been killed."""


def test_an_interrupted_student_goes_on_exactly(begun: Path) -> None:
    def stop(site: str, step: int) -> None:
        if site == "checkpoint.after_commit" and step == 4:
            raise Stopped

    whole = made(begun, "whole", epochs=2)
    assert whole.manifest.statistics["steps"] > 8
    with pytest.raises(Stopped):
        made(begun, "stopped", epochs=2, fault=stop)
    again = made(begun, "stopped", epochs=2)
    assert again.digest == whole.digest
    assert not [*Path(again.directory).glob("checkpoints")]


def test_a_student_learns_the_teachers_vectors(begun: Path) -> None:
    settings = {"learning_rate": 3e-3, "warmup_steps": 0}
    student = made(begun, "runs", epochs=30, optimizer=settings)
    curve = json.loads(student.read_bytes("curve.json"))
    assert curve[-1]["cosine"] < curve[0]["cosine"] / 3
    quality = student.manifest.statistics["quality"]
    assert 0 < quality["student"] <= 1 and quality["texts"] > 1
    teacher, kept = load_model(begun / "teacher"), load_model(student.directory)
    assert kept.config.num_hidden_layers == 2
    texts = ["the list of names", "a list of b"]
    theirs, ours = (one.embed(texts, normalize=True) for one in (teacher, kept))
    assert ((theirs * ours).sum(1) > 0.95).all()
    assert not kept.has_heads


def test_the_teacher_is_asked_once_for_all_its_students(begun: Path) -> None:
    made(begun, "runs")
    made(begun, "runs", layers=1, width=4)
    (lessons,) = (begun / "runs" / "artifacts" / "lessons").iterdir()
    sequences, vectors = read_lessons(open_artifact(str(lessons)))
    assert len(sequences) == len(vectors)
    teacher = load_model(begun / "teacher")
    batch = pack_sequences([Example(sequences.input_ids.row(0).tolist())])
    with torch.inference_mode():
        encoder = teacher.module.encoder
        vector = encoder.pooled(encoder(batch), batch, pooling="mean")[0]
    theirs = torch.nn.functional.normalize(vector, dim=0)
    torch.testing.assert_close(vectors[0].float(), theirs, atol=1e-3, rtol=0)


def test_a_pruned_vocabulary_gives_the_same_tokens_of_the_texts_and_spells_all_others() -> None:
    pieces = (*SPECIAL_TOKENS, "[unused0]", "the", "list", "of", "##s", "l", "##i", "##s2", "##t")
    whole = WordPieceTokenizer((*pieces, "##o", "o", "names"), lowercase=True)
    used = np.array(whole.encode("the names of"))
    kept = kept_pieces(whole, used)
    fewer = pruned_tokenizer(whole, kept)
    assert "[unused0]" not in fewer.ids and "list" not in fewer.ids and "##s2" not in fewer.ids

    def spelt(tokenizer: SubwordTokenizer, text: str) -> list[str]:
        return [tokenizer.vocabulary[one] for one in tokenizer.encode(text)]

    assert spelt(fewer, "the names of") == spelt(whole, "the names of") == ["the", "names", "of"]
    assert spelt(fewer, "list") == ["l", "##i", "##s", "##t"]
    words = torch.arange(whole.size)[:, None].float()
    rows = pruned_parameters({"encoder.embeddings.word_embeddings.weight": words}, kept)
    (left,) = rows.values()
    assert [whole.vocabulary[int(one)] for one in left[:, 0]] == list(fewer.vocabulary)


def test_terms_of_a_pruned_vocabulary_keep_their_vectors() -> None:
    terms = TermVectors(torch.tensor([5, 7, 8]), torch.eye(3), torch.ones(3), 0.5, 2.0)
    modules = SentenceModules(("mean",), (NORMALIZE, terms), 16)
    pruned = pruned_modules(modules, np.array([0, 1, 2, 3, 4, 7, 8]))
    assert pruned is not None
    assert pruned.steps[0] == NORMALIZE
    found = pruned.steps[1]
    assert isinstance(found, TermVectors)
    assert found.ids_K.tolist() == [5, 6]
    assert torch.equal(found.vectors_KD, torch.eye(3)[1:])
    assert len(found.rarities_K) == 2
    alone = pruned_modules(modules, np.array([0, 1, 2, 3, 4]))
    assert alone is not None
    assert alone.steps == (NORMALIZE,)


def test_a_pruned_student_computes_what_the_whole_one_does_for_its_texts(begun: Path) -> None:
    whole = made(begun, "runs")
    pruned = made(begun, "runs", prune_vocabulary=True)
    sizes = [one.manifest.statistics["student"]["vocabulary_size"] for one in (whole, pruned)]
    assert sizes == [11, 10]  # no text has "of"
    assert pruned.manifest.statistics["quality"] == whole.manifest.statistics["quality"]
    vectors = [load_model(one.directory).embed("the list a b names") for one in (whole, pruned)]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)


def test_texts_that_the_teacher_cannot_spell_are_refused(begun: Path) -> None:
    for file in (begun / "texts").iterdir():
        lines = (f"Все счастливые семьи похожи друг на друга {file.stem} {n}.\n" for n in range(20))
        file.write_text("".join(lines), "utf-8")
    with pytest.raises(UsageError, match="of their tokens are \\[UNK\\] to the teacher"):
        made(begun, "runs")
