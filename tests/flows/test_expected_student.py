"""The estimate of a run that distils."""

from pathlib import Path

import pytest

from cloze.flows.config import RunConfig
from cloze.flows.expected import Work
from tests.cloze.tiny_model import CONFIG, write_model


def work(teacher: Path, **own: int) -> Work:
    texts = teacher.parent / "texts.txt"  # more than 1,000 pairs
    texts.write_text("The lake is deep. " * 100_000)
    sources = [{"reader": "text", "path": str(texts)}]
    distill = {"teacher": str(teacher), **own}
    pairs = {"sources": sources, "train_pairs": 1000}
    table = {"name": "s", "pairs": pairs, "distill": distill}
    return Work(RunConfig.model_validate(table))


def test_a_student_of_half_the_layers_costs_half_the_training_and_its_teacher_the_same(
    tmp_path: Path,
) -> None:
    write_model(tmp_path / "teacher", encoder=CONFIG.model_copy(update={"num_hidden_layers": 4}))
    whole, half = (work(tmp_path / "teacher", layers=layers) for layers in (4, 2))
    assert half.of("distill") == whole.of("distill") / 2 > 0
    assert half.of("lessons") == whole.of("lessons") == whole.of("distill") / 3
    # 1,000 pairs are 2,000 passages, each with a span of a few words.
    assert half.steps("distill") == 4000 / 128
    twice = work(tmp_path / "teacher", layers=2, epochs=2)
    assert twice.of("distill") == whole.of("distill")


def test_rows_of_a_task_are_counted(tmp_path: Path) -> None:
    write_model(tmp_path / "teacher", encoder=CONFIG.model_copy(update={"num_hidden_layers": 4}))
    (tmp_path / "rows.jsonl").write_text('{"text": "The lake is deep."}\n' * 300)
    own = {"teacher": str(tmp_path / "teacher"), "task": "mine", "layers": 2, "epochs": 3}
    texts = {"texts": str(tmp_path / "rows.jsonl")}
    found = Work(RunConfig.model_validate({"name": "s", "distill": {**own, **texts}}))
    assert found.steps("distill") == 300 * 3 / 128
    assert found.of("lessons") > 0
    assert found.of("distill") == pytest.approx(4.5 * found.of("lessons"))  # 3 epochs × 3 × 1/2
