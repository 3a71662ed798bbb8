"""The chain: inputs, configurations and keys of stages."""

from pathlib import Path
from typing import Any

import pytest

from cloze.artifacts.errors import UsageError
from cloze.artifacts.store import Store
from cloze.flows.config import RunConfig
from cloze.flows.external_inputs import Digests, ExternalInput
from cloze.flows.stages import chain, keyed_config, stage_table, up_to

ALL = ["vocabulary", "tokens", "examples", "pretrain", "labels", "finetune", "evaluate", "report"]


def vocabulary_table(run: RunConfig, **machine: Any):
    return stage_table(chain(run)[0], {}, store=Store("/store"), machine=machine, digests=Digests())


def changed(table: dict[str, Any], place: str, value: Any) -> RunConfig:
    first, _, rest = place.partition(".")
    inner = {**table.get(first, {}), rest: value} if rest else value
    return RunConfig.model_validate({**table, first: inner})


def given_encoder(table: dict[str, Any], encoder: str) -> RunConfig:
    finetune = {**table["finetune"], "encoder": encoder}
    return RunConfig.model_validate({**table, "corpus": None, "finetune": finetune})


def test_every_stage_finds_its_inputs_before_it(run: RunConfig) -> None:
    seen: list[str] = []
    for stage in chain(run):
        assert set(stage.inputs.values()) <= set(seen)
        seen.append(stage.name)
    assert seen == ALL


def test_without_tasks_there_is_nothing_to_label_and_to_finetune(run: RunConfig) -> None:
    plain = run.model_copy(update={"finetune": type(run.finetune)()})
    assert [stage.name for stage in chain(plain)] == [*ALL[:4], "evaluate", "report"]


def test_with_a_finished_encoder_the_chain_begins_with_fine_tuning(
    run_table: dict[str, Any],
) -> None:
    stages = chain(given_encoder(run_table, "there"))
    assert [stage.name for stage in stages] == ALL[4:]
    users = {stage.name for stage in stages if stage.models == {"encoder": "there"}}
    assert users == {"finetune", "evaluate", "report"}


def test_a_stage_is_not_told_where_its_encoder_came_from(
    run: RunConfig, run_table: dict[str, Any]
) -> None:
    def finetune(run: RunConfig) -> dict[str, Any]:
        return keyed_config(next(stage for stage in chain(run) if stage.name == "finetune"))

    assert finetune(given_encoder(run_table, "there")) == finetune(run)


def test_what_papers_call_a_task_is_told_to_the_evaluation_alone(
    run: RunConfig, run_table: dict[str, Any]
) -> None:
    (task, *_) = run_table["finetune"]["tasks"]
    finetune = {**run_table["finetune"], "tasks": [{**task, "published": "SWAG"}]}
    plain = changed(run_table, "finetune.tasks", [task])
    named = changed(run_table, "finetune", finetune)
    differing = [
        ours.name
        for ours, theirs in zip(chain(named), chain(plain), strict=True)
        if keyed_config(ours) != keyed_config(theirs)
    ]
    assert differing == ["evaluate"]
    with pytest.raises(ValueError, match="SQuAD 1.1"):
        changed(run_table, "finetune.tasks", [{**task, "published": "SQuAD"}])


def test_a_configuration_without_a_corpus_is_the_same_when_it_is_read_back(
    run_table: dict[str, Any],
) -> None:
    run = given_encoder(run_table, "there")
    assert RunConfig.model_validate(run.model_dump(mode="json")) == run


def test_a_drop_list_is_made_first_and_given_to_whoever_reads_documents(
    run_table: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "set.txt").write_text("a question of an evaluation set\n")
    dedup = {"near_duplicates": {}, "overlap": {"paths": [str(tmp_path / "set.txt")]}}
    stages = {stage.name: stage for stage in chain(changed(run_table, "dedup", dedup))}
    assert list(stages)[:3] == ["dedup", "vocabulary", "tokens"]
    assert stages["vocabulary"].inputs == {"drop_list": "dedup"}
    assert stages["tokens"].inputs["drop_list"] == "dedup"
    assert stages["dedup"].external["evaluation sets"].places == {
        "dedup.overlap.paths.0": str(tmp_path / "set.txt")
    }


def test_two_drop_lists_are_refused(run_table: dict[str, Any]) -> None:
    both = {**run_table, "dedup": {"near_duplicates": {}}, "cleaning": {"drop_list": "there"}}
    with pytest.raises(ValueError, match=r"names a drop list, but \[dedup\] makes another"):
        RunConfig.model_validate(both)


def with_boilerplate(run_table: dict[str, Any]) -> dict[str, Any]:
    (first, *others) = run_table["corpus"]["sources"]
    return {**run_table["corpus"], "sources": [{**first, "boilerplate": {}}, *others]}


def test_boilerplate_is_listed_before_anything_else_reads_documents(
    run_table: dict[str, Any],
) -> None:
    table = {**run_table, "corpus": with_boilerplate(run_table), "dedup": {"near_duplicates": {}}}
    stages = {stage.name: stage for stage in chain(RunConfig.model_validate(table))}
    assert list(stages)[:4] == ["boilerplate", "dedup", "vocabulary", "tokens"]
    users = {name for name, stage in stages.items() if stage.inputs.get("boilerplate")}
    assert users - {"report"} == {"dedup", "vocabulary", "tokens"}


def test_a_list_of_lines_made_elsewhere_is_an_external_input(run_table: dict[str, Any]) -> None:
    cleaning = {"cleaning": {"boilerplate": "there"}}
    run = RunConfig.model_validate({**run_table, "corpus": with_boilerplate(run_table), **cleaning})
    stages = {stage.name: stage for stage in chain(run)}
    assert "boilerplate" not in stages
    assert stages["tokens"].external["boilerplate"].places == {"cleaning.boilerplate": "there"}
    with pytest.raises(ValueError, match="names a list of lines, but no source uses it"):
        RunConfig.model_validate({**run_table, **cleaning})


def test_up_to_takes_what_a_stage_needs_and_no_more(run: RunConfig) -> None:
    assert [stage.name for stage in up_to(chain(run), ("pretrain",))] == ALL[:4]
    assert [stage.name for stage in up_to(chain(run), ("labels",))] == ["labels"]


def test_a_stage_that_a_run_does_not_have_is_refused_with_those_it_has(run: RunConfig) -> None:
    with pytest.raises(UsageError, match=r"no stage tune; it has vocabulary, tokens"):
        up_to(chain(run), ("tune",))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("seed", 1),
        ("vocabulary.size", 1000),
        ("vocabulary.lowercase", False),
        ("cleaning.min_words", 50),
    ],
)
def test_a_field_that_changes_the_vocabulary_changes_its_key(
    run_table: dict[str, Any], run: RunConfig, place: str, value: Any
) -> None:
    other = changed(run_table, place, value)
    assert vocabulary_table(other).key != vocabulary_table(run).key


@pytest.mark.parametrize(
    ("place", "value"), [("name", "other"), ("pretrain.steps", 7), ("report.title", "Other")]
)
def test_a_field_of_another_stage_leaves_the_key(
    run_table: dict[str, Any], run: RunConfig, place: str, value: Any
) -> None:
    other = changed(run_table, place, value)
    assert vocabulary_table(other).key == vocabulary_table(run).key


def test_the_machine_leaves_the_key(run: RunConfig) -> None:
    assert vocabulary_table(run, workers=8).key == vocabulary_table(run, workers=1).key


def test_where_the_corpus_lies_and_how_its_files_are_called_leaves_the_key(
    run: RunConfig, run_table: dict[str, Any], texts: Path, tmp_path: Path
) -> None:
    before = vocabulary_table(run)
    elsewhere = tmp_path / "elsewhere" / "deeper"
    elsewhere.mkdir(parents=True)
    (elsewhere / "2.txt").write_bytes((texts / "one.txt").read_bytes())
    (elsewhere / "1.txt").write_bytes((texts / "two.txt").read_bytes())
    source = {"reader": "text", "path": str(elsewhere.parent)}
    after = vocabulary_table(changed(run_table, "corpus", {"sources": [source]}))
    assert after.key == before.key
    assert after.config != before.config


@pytest.mark.parametrize("change", ["edit", "add", "remove"])
def test_what_the_corpus_says_is_part_of_the_key(run: RunConfig, texts: Path, change: str) -> None:
    before = vocabulary_table(run).key
    if change == "edit":
        (texts / "one.txt").write_text("The first document, edited.\n")
    elif change == "add":
        (texts / "three.txt").write_text("The third document.\n")
    else:
        (texts / "one.txt").unlink()
    assert vocabulary_table(run).key != before


def test_the_program_finds_the_corpus_from_any_folder(
    run_table: dict[str, Any], texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(texts.parent)
    source = {"reader": "text", "path": "texts"}
    table = vocabulary_table(changed(run_table, "corpus", {"sources": [source]}))
    assert table.config["corpus"]["sources"][0]["path"] == str(texts)
    assert table.keyed_config["corpus"]["sources"][0]["path"] == "outside:corpus"


def test_a_task_file_is_an_input_and_its_place_is_not(
    run_table: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("train.tsv", "extra.tsv"):
        (tmp_path / name).write_text(f"a\t{name}\n")
    train, extra = str(tmp_path / "train.tsv"), str(tmp_path / "extra.tsv")
    task = {"name": "own", "kind": "classification", "train": train, "more": {"extra": extra}}
    stages = chain(changed(run_table, "finetune", {"tasks": [task]}))
    finetune = next(stage for stage in stages if stage.name == "finetune")
    place = "finetune.tasks.0"
    files = {f"{place}.train": train, f"{place}.more.extra": extra}
    assert finetune.external == {"task own": ExternalInput(files)}
    (written,) = keyed_config(finetune)["finetune"]["tasks"]
    assert (written["train"], written["more"]) == (
        "outside:task own",
        {"extra": "outside:task own"},
    )


def test_word_vectors_are_made_of_the_tokens_for_pretraining_alone(
    run: RunConfig, run_table: dict[str, Any]
) -> None:
    plain = {stage.name: stage for stage in chain(run)}
    stages = {stage.name: stage for stage in chain(changed(run_table, "word_vectors", {}))}
    assert [*stages] == [*ALL[:3], "word_vectors", *ALL[3:]]
    assert stages["word_vectors"].inputs == {"tokens": "tokens"}
    assert keyed_config(stages["word_vectors"]) == {
        "width": run.encoder.hidden_size,
        "word_vectors": {"window": 5},
    }
    assert stages["pretrain"].inputs == {"examples": "examples", "word_vectors": "word_vectors"}
    # A run without them has the key that it always had: nothing but an input tells them apart.
    assert plain["pretrain"].inputs == {"examples": "examples"}
    assert keyed_config(plain["pretrain"]) == keyed_config(stages["pretrain"])


def test_word_vectors_do_not_replace_trained_embeddings(run_table: dict[str, Any]) -> None:
    given = {**run_table, "word_vectors": {}}
    with pytest.raises(ValueError, match=r"\[word_vectors\].*pretrain\.init"):
        RunConfig.model_validate({**given, "pretrain": {"init": "there"}})
    # A run that goes on has begun with them: the same configuration asks for nothing new.
    stages = {stage.name: stage for stage in chain(changed(given, "pretrain.continue_from", "r"))}
    assert "word_vectors" not in stages
    assert stages["pretrain"].inputs == {"examples": "examples"}


def test_word_vectors_need_a_corpus(run_table: dict[str, Any]) -> None:
    finetune = {**run_table["finetune"], "encoder": "there"}
    table = {**run_table, "corpus": None, "finetune": finetune, "word_vectors": {}}
    with pytest.raises(ValueError, match=r"\[word_vectors\] has no effect in a run without a"):
        RunConfig.model_validate(table)


def ranking_run(table: dict[str, Any], folder: Path, **negatives: Any) -> RunConfig:
    """A run with a reranker whose negatives are mined."""
    train = folder / "pairs.jsonl"
    train.write_text('{"query": "a", "passage": "b"}\n')
    task = {"name": "r", "kind": "reranking", "train": str(train)}
    finetune = {**table["finetune"], "tasks": [*table["finetune"]["tasks"], task]}
    return RunConfig.model_validate({**table, "finetune": finetune, "negatives": negatives})


def test_negatives_are_mined_between_the_labels_and_fine_tuning(
    run_table: dict[str, Any], tmp_path: Path
) -> None:
    stages = {stage.name: stage for stage in chain(ranking_run(run_table, tmp_path))}
    assert [*stages] == [*ALL[:5], "negatives", *ALL[5:]]
    assert stages["negatives"].inputs == {"encoder": "pretrain", "labels": "labels"}
    assert stages["finetune"].inputs["negatives"] == "negatives"
    assert [task.name for task in stages["negatives"].config.tasks] == ["r"]
    other = {stage.name: stage for stage in chain(ranking_run(run_table, tmp_path, encoder="b"))}
    assert other["negatives"].models == {"encoder": "b"}
    assert "encoder" not in other["negatives"].inputs


def test_negatives_depend_on_the_rows_and_not_on_how_they_are_trained_on(
    run_table: dict[str, Any], tmp_path: Path
) -> None:
    def mined(run: RunConfig) -> dict[str, Any]:
        return keyed_config(next(stage for stage in chain(run) if stage.name == "negatives"))

    run = ranking_run(run_table, tmp_path)
    tasks = tuple(
        task.model_copy(update={"learning_rate": 0.5, "epochs": 9}) for task in run.finetune.tasks
    )
    trained = run.model_copy(update={"finetune": run.finetune.model_copy(update={"tasks": tasks})})
    assert mined(trained) == mined(run)
    assert mined(ranking_run(run_table, tmp_path, margin=0.5)) != mined(run)
    with pytest.raises(ValueError, match=r"\[negatives\] mines passages for tasks of the kind"):
        RunConfig.model_validate({**run_table, "negatives": {}})


def with_pairs(table: dict[str, Any], **pairs: Any) -> RunConfig:
    source = {"reader": "text", "path": "/documents"}
    task = {"name": "retrieval", "kind": "retrieval"}
    return RunConfig.model_validate(
        {
            "name": "words",
            "vocabulary": {"path": "/model/vocab.txt", "words": 9},
            "pairs": {"sources": [source], **pairs},
            "finetune": {"encoder": "there", "tasks": [task]},
            **table,
        }
    )


def test_words_for_an_encoder_that_is_trained_on_pairs_are_a_stage_before_it() -> None:
    stages = chain(with_pairs({}))
    assert [stage.name for stage in stages][:3] == ["pairs", "vocabulary", "finetune"]
    assert stages[2].inputs == {"labels": "pairs", "vocabulary": "vocabulary"}
    without = chain(with_pairs({"vocabulary": {}}))
    assert [stage.name for stage in without][:2] == ["pairs", "finetune"]
    assert keyed_config(without[1]) == keyed_config(stages[2])


def test_runs_with_another_number_of_pairs_share_the_words() -> None:
    _, few, _ = chain(with_pairs({}, train_pairs=100))[:3]
    _, many, _ = chain(with_pairs({}, train_pairs=9000))[:3]
    _, longer, _ = chain(with_pairs({}, words=99))[:3]
    assert keyed_config(few) == keyed_config(many) != keyed_config(longer)


def test_a_vocabulary_without_a_corpus_has_no_effect_but_for_words() -> None:
    with pytest.raises(ValueError, match=r"\[vocabulary\] has no effect in a run without a corpus"):
        with_pairs({"vocabulary": {"lowercase": False}})
