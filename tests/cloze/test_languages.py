"""Text in other languages than English is prepared as what it is, from `init` to examples."""

import random
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloze.flows.config import RunConfig
from cloze.inference.placed_passages import placed_passages
from cloze.init.configuration import configuration, init
from cloze.init.corpus_samples import look
from cloze.pipeline.config.settings import SourceConfig
from cloze.pipeline.dedup import make_drop_list
from cloze.pipeline.examples import make_examples
from cloze.pipeline.mlm.statistics import ExampleStatistics, alarms
from cloze.pipeline.text.account import Account
from cloze.pipeline.text.scripts import count_words, join_sentences, search_terms, spaced_terms
from cloze.pipeline.tokens import make_tokens
from cloze.pipeline.vocabulary import make_vocabulary
from tests.pipeline.corpora import source, tokens_table, vocabulary_table, write_jsonl
from tests.pipeline.synthetic_tokens import examples_table
from tests.pipeline.test_dedup import dedup_table, listed

PARAGRAPHS = {
    "ru": "Он пришёл домой. Она долго спала. Кот ел рыбу у реки.",
    "hi": "यह घर है। वह गया। हम आए।",
    "ar": "هل هذا بيت؟ ذهب الولد. جئنا.",
    "zh": "今天很好。明天呢？我們走吧！",
    "ja": "今日は晴れだ。明日はどう？行こう！",
    "ko": "그는 집에 왔다. 그녀는 잤다. 왜?",
    "hy": "Սա տուն է։ Նա գնաց։ Մենք եկանք։",
}
"""Three sentences each."""


def written(folder: Path, text: str, *, lines: int = 10) -> Path:
    folder.mkdir(exist_ok=True)
    for number in range(4):
        (folder / f"{number}.txt").write_text(f"{text}\n" * lines)
    return folder


def configured(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[RunConfig, str]:
    """What `cloze init` writes for the folder, and its text."""
    path = folder.with_suffix(".toml")
    init(str(folder), output=path)
    capsys.readouterr()
    return RunConfig.model_validate(tomllib.loads(path.read_text())), path.read_text()


def prepared(folder: Path, run: RunConfig, **vocabulary: Any) -> Any:
    """The tokens of the run's corpus, nothing held out."""
    assert run.corpus
    sources = [one.model_dump(mode="json") for one in run.corpus.sources]
    table = vocabulary_table(
        folder / "vocabulary", sources, vocabulary={"size": 600, **vocabulary}, heldout_share=0.0
    )
    tokens = tokens_table(
        folder / "tokens", sources, vocabulary=make_vocabulary(table, []), heldout_share=0.0
    )
    return make_tokens(tokens, [])


@pytest.mark.parametrize("language", PARAGRAPHS)
def test_init_lets_the_splitter_cut_paragraphs_and_it_cuts_three_sentences(
    language: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = configured(written(tmp_path / "text", PARAGRAPHS[language]), capsys)
    assert run.corpus
    assert run.corpus.sources[0].line_break != "sentence"
    assert run.corpus.sources[0].reader == "text"
    found = prepared(tmp_path, run).manifest.statistics["splits"]["train"]
    # four equal documents: three are duplicates
    assert (found["documents"], found["sentences"], found["unknown_tokens"]) == (1, 30, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (PARAGRAPHS["hi"], "has not"),
        (PARAGRAPHS["ru"] + " Мой чай.", "as мой to мои"),
        ("Das ist schön. Er hört für fünf Stunden Böses.", ""),
    ],
)
def test_init_keeps_accents_where_they_matter_and_says_why(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, written_text = configured(written(tmp_path / "text", text), capsys)
    assert run.vocabulary
    assert (run.vocabulary.lowercase, run.vocabulary.strip_accents) == (True, False)
    assert "strip_accents = false  # would change " in written_text


def test_init_changes_nothing_for_english(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    english = "The cat sat on the mat, i.e. there. It is of the house that Dr. No was in."
    run, text = configured(written(tmp_path / "text", english), capsys)
    assert run.vocabulary
    assert run.corpus
    assert run.vocabulary.strip_accents is None
    assert run.corpus.abbreviations == ()
    assert "strip_accents" not in text
    assert "second_segment" not in text


@pytest.mark.parametrize(
    ("words", "tokens", "batch"),
    # 1.5 pieces a word, 2.2 sentences an example: 39.6, 79.2, 99 and 165 pieces; 330 are a sign
    # that sentences were not found
    [(12, 64, 32), (24, 96, 21), (30, 128, 16), (50, 192, 10), (100, 64, 32)],
)
def test_init_makes_examples_in_which_two_sentences_fit(
    words: int, tokens: int, batch: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "و" + " كتاب" * (words - 1) + ". "
    run, text = configured(written(tmp_path / "text", sentence * 5), capsys)
    assert run.examples
    assert run.encoder
    assert run.pretrain
    assert run.examples.max_seq_lengths == (tokens,)
    assert run.encoder.max_position_embeddings == tokens
    assert [phase.max_seq_length for phase in run.pretrain.phases] == [tokens]
    assert run.pretrain.batch_size == batch  # of as many tokens as in the recipe, or a few fewer
    assert ("  # for two sentences, which are long here" in text) == (tokens > 64)


def test_init_learns_the_abbreviations_of_german(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    german = (
        "Es kostete ca. 5 Mio. Euro bzw. etwas mehr. Sie ging am 3. Juni nach Hause. "
        "Das Haus ist alt, es hat ca. 2 Mio. gekostet bzw. wenig. Er kam am 12. Mai an. "
    )
    run, _ = configured(written(tmp_path / "text", german), capsys)
    assert run.corpus
    assert {"ca", "mio", "bzw", "0"} <= {*run.corpus.abbreviations}


@pytest.mark.parametrize("text_bytes", [1e6, 1e9, 1e10])
def test_init_keeps_accents_of_a_corpus_of_any_size(text_bytes: float, tmp_path: Path) -> None:
    found = look(str(written(tmp_path / "text", f"{PARAGRAPHS['hi']} ที่นี่ดี ไปกัน " + "ดีมากที่สุด " * 9)))
    text = configuration(
        replace(found, sources=(replace(found.sources[0], text_bytes=text_bytes),)), "a"
    )
    run = RunConfig.model_validate(tomllib.loads(text))
    assert run.vocabulary
    assert run.examples
    assert run.vocabulary.strip_accents is False
    assert run.examples.second_segment == "none"


def test_init_asks_for_no_sentence_pairs_of_thai(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, text = configured(written(tmp_path / "text", "วันนี้อากาศดี เราไปเที่ยวกัน ดีไหม"), capsys)
    assert run.examples
    assert run.examples.second_segment == "none"
    assert "does not mark the ends of sentences" in text


def ideographs(seed: int, count: int) -> str:
    rng = random.Random(seed)
    return "".join(chr(0x4E00 + rng.randrange(1500)) for _ in range(count))


def letters(seed: int, count: int, first: int, number: int) -> str:
    rng = random.Random(seed)
    return "".join(chr(first + rng.randrange(number)) for _ in range(count))


SCRIPTS = {
    "Chinese": ideographs,
    "Japanese": lambda seed, count: letters(seed, count, 0x3042, 70),
    "Thai": lambda seed, count: letters(seed, count, 0x0E01, 40),
    "Khmer": lambda seed, count: letters(seed, count, 0x1780, 30),
    "Russian": lambda seed, count: " ".join(
        letters(seed * 1000 + n, 6, 0x0430, 32) for n in range(count // 6)
    ),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_copies_that_differ_in_a_character_are_found_in_every_script(
    script: str, tmp_path: Path
) -> None:
    texts = [SCRIPTS[script](seed, 600) for seed in range(20)]
    others = (next(one for one in texts[0] if one not in (" ", text[300])) for text in texts[:10])
    copies = [text[:300] + one + text[301:] for text, one in zip(texts[:10], others, strict=True)]
    write_jsonl(tmp_path / "a.jsonl", [*texts, *copies])
    near = {"near_duplicates": {}}
    artifact = make_drop_list(
        dedup_table(tmp_path / "out", [source(tmp_path / "a.jsonl")], near), []
    )
    assert len(listed(artifact)) == 10


@pytest.mark.parametrize("script", SCRIPTS)
def test_evaluation_texts_are_found_in_every_script(script: str, tmp_path: Path) -> None:
    texts = [SCRIPTS[script](seed, 600) for seed in range(20)]
    (tmp_path / "test.tsv").write_text("".join(f"{text[100:250]}\n" for text in texts[:8]))
    write_jsonl(tmp_path / "a.jsonl", texts)
    overlap = {"overlap": {"paths": [str(tmp_path / "test.tsv")]}}
    table = dedup_table(tmp_path / "out", [source(tmp_path / "a.jsonl")], overlap)
    assert len(listed(make_drop_list(table, []))) == 8


def test_copies_in_capitals_are_found_beyond_ascii(tmp_path: Path) -> None:
    words = "это длинный текст о том как мы шли домой через лес и пели été à la plage οδός"
    write_jsonl(tmp_path / "a.jsonl", [words, words.upper()])
    near = {"near_duplicates": {}}
    artifact = make_drop_list(
        dedup_table(tmp_path / "out", [source(tmp_path / "a.jsonl")], near), []
    )
    assert len(listed(artifact)) == 1


def test_1500_ideographs_are_all_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = "".join(chr(0x4E00 + n) for n in range(1500))
    for number in range(3):
        text = "。".join(every[n : n + 20] for n in range(0, 1500, 20))
        folder = tmp_path / "text"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.txt").write_text(f"{number}{text}。\n")
    run, _ = configured(folder, capsys)
    found = prepared(tmp_path, run, size=8192).manifest.statistics["splits"]["train"]
    assert found["unknown_tokens"] == 0
    few = prepared(tmp_path / "few", run, size=8192, alphabet=750)
    assert few.manifest.statistics["splits"]["train"]["unknown_share"] > 0.4
    said = capsys.readouterr().err
    assert "% of the training tokens are [UNK]: characters outside the vocabulary; learn" in said


def test_documents_of_one_long_sentence_raise_an_alarm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [" ".join(["wort"] * 300 + [str(number)]) for number in range(30)]
    write_jsonl(tmp_path / "a.jsonl", texts)
    corpus = {"sources": [source(tmp_path / "a.jsonl")]}
    run = RunConfig.model_validate({"name": "a", "seed": 1, "corpus": corpus})
    tokens = prepared(tmp_path, run)
    capsys.readouterr()
    config = {"max_seq_lengths": [64], "copies": 1}
    make_examples(examples_table(tokens, tmp_path / "examples", config=config), [])
    said = capsys.readouterr().err
    assert "warning: examples: 100% of the second segments are random" in said
    assert "every example is truncated; probably sentences are not found: most " in said
    assert "most documents have one (1.0 on average, of " in said


def test_sentences_too_long_for_an_example_raise_another_alarm() -> None:
    text = {"weighted_tokens": 8800, "tokens": 8800, "sentences": 200, "documents": 20}
    counts = ExampleStatistics(rows=100, tokens=6000, next_random=67)
    (alarm,) = alarms(counts, text, passes=1, room=64)
    assert alarm.startswith("67% of the second segments are random (about half expected); ")
    assert "a sentence has 44 tokens on average and an example 64: " in alarm
    assert list(alarms(replace(counts, next_random=60), text, passes=1, room=64)) == []


def test_passages_of_chinese_are_short_verbatim_and_have_lines(tmp_path: Path) -> None:
    lines = [f"{ideographs(2 * n, 30)}。{ideographs(2 * n + 1, 30)}。" for n in range(20)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    config = SourceConfig(reader="text", path=str(tmp_path / "a.txt"), line_break="paragraph")
    found = list(placed_passages([config], words=40, account=Account()))
    assert len(found) == 20
    assert [passage.line for passage in found] == [*range(1, 21)]
    assert [passage.text for passage in found] == lines


def test_words_are_about_as_much_text_in_every_script() -> None:
    assert count_words("two words") == 2
    assert count_words("今天很好") == 2
    assert count_words("ที่นี่ไทย Thai") == 3
    assert count_words("हिन्दी भाषा") == 2


def test_filters_count_words_in_every_script(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [ideographs(1, 200) + "。", ideographs(2, 60) + "。"])
    table = vocabulary_table(tmp_path / "vocabulary", [source(tmp_path / "a.jsonl")])
    tokens = tokens_table(
        tmp_path / "tokens",
        [source(tmp_path / "a.jsonl")],
        vocabulary=make_vocabulary(table, []),
        cleaning={"min_words": 50, "max_mean_word_length": 10, "min_alphabetic_share": 0.8},
        heldout_share=0.0,
    )
    found = make_tokens(tokens, []).manifest.statistics
    assert found["dropped"] == {"short": 1}  # 200 ideographs count as 100 words, 60 as 30


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("cafe\u0301", "CAFÉ"),
        ("soft\u00adhyphen", "softhyphen"),
        ("no\u200bspace", "nospace"),
        ("\u202eturned\u202c", "turned"),
        ("ﬁne ﬂour", "fine flour"),
        ("\uff21\uff22 \uff76\uff9e", "ab ガ"),
        ("İstanbul", "istanbul"),
        ("\ufeffnames", "names"),
        ("می\u200cخواهم", "میخواهم"),
        ("\u1100\u1161\u11a8" * 2, "각각"),
    ],
)
def test_bm25_finds_a_word_however_it_is_encoded(written: str, asked: str) -> None:
    assert search_terms(written) == search_terms(asked) != []
    assert spaced_terms(written) == spaced_terms(asked)


def test_search_without_an_encoder_compares_pairs_of_ideographs() -> None:
    assert search_terms("今天很好。A cat") == ["今天", "天很", "很好", "cat"]
    assert search_terms("हिन्दी भाषा") == ["हिन्दी", "भाषा"]
    assert search_terms("猫 и ПЁС") == ["猫", "пёс"]
    # texts of ASCII alone, which take another way
    everything = "".join(map(chr, range(128))) + " I'm 1st; a_b c-d e.f.g U.S.A. x 42 \t\x1c NEXT"
    expected = search_terms(everything + " é")
    assert search_terms(everything) == expected
    assert expected[-4:] == ["1st", "a_b", "42", "next"]


def test_sentences_are_joined_as_they_were() -> None:
    assert join_sentences(["今天。", "明天。", "A cat.", "A dog."]) == "今天。明天。A cat. A dog."
