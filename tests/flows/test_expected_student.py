"""The estimate of a run that distils."""

from pathlib import Path

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
