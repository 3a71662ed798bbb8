"""Paragraphs are split where sentences end, and nowhere else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.pipeline.text import sentences
from cloze.pipeline.text.sentences import split_sentences


def split(paragraph: str) -> list[str]:
    raw = np.frombuffer(f"{paragraph}\n".encode(), dtype=np.uint8)
    text, ends, _ = split_sentences(raw, np.array([len(raw)]))
    assert ends.tolist() == [len(text)]
    return text.tobytes().decode().removesuffix("\n").split("\n")


WHOLE = [
    "Dr. Smith met Mr. J. R. Ewing at St. Mary's.",
    "He left the U.S. Army in Jan. 1990 for good.",
    "It cost approx. 5.50 dollars, i.e. Nothing at all.",
    "See Fig. 3 and No. 7, pp. 12 ff. for more.",
    'She said "Stop!" and "why?" to him.',
    "The Yahoo! site was e.g. slow.",
    "1. The first item of a list",
    "He worked at Acme Inc. Vienna for years.",
    "born c. 1230 BC",
    "no end mark at all",
    "What?! no",
    "ends with a mark.",
    "A. B. Cdef",
    "It was decided in Roe v. Wade, before Brown v. Board of Education.",
    "In the matter of J. A. W. Smith and A. I. Jones",
    "See Rev. Rul. 59-60 and Fed. R. Civ. P. 12(b)(6).",
    "Under Pub. L. No. 94-142 and F. Supp. 2d 123, Cal. App. 4th 12.",
    "He founded the firm of J. A. Maffei in Munich.",
    "A city in Ill. (pop. 256,000) on a river",
    "It is so.[12] and so on",
    "А. С. Пушкин и Л. Н. Толстой",
    "Γ. Παπανδρέου, Խ. Աբովյան",
    "「好。」、他说",
    "Yahoo… Inc was his home",
    "(Armenian: Ներքին) is a village",
    "ต่างๆ ที่นี่",
    "۱. متن اول",
    "१२. पहला भाग",
    "٣. القسم",
]

CUT = [
    ["First one.", "Second one."],
    ["Is it?", "Yes!", "Good."],
    ['He said "Stop."', "Then he left."],
    ["(All in brackets.)", "[Another one.]", '"A third."'],
    ["It ended in the U.S.", "The war was over."],
    ["She works for Acme Inc.", "He does not."],
    ["Wait...", "What now?"],
    ["It was 1999.", "5 years later it ended."],
    ["They met at 5 p.m.", "After that nothing."],
    ["“Quoted.”", "“Again.”", "‘Last.’"],
    ["Das ist gut.", "Ähnlich ist dies.", "Übung."],
    ["Это так.", "Другое предложение."],
    ["Is the answer no?", "Yes."],
    ["He said no.", "Next."],
    ["今天很好。", "「明天呢？」", "好！"],
    ["This is about J. A. W.", "The court held otherwise."],
    ["He met Charles V.", "It was in 1520."],
    ["We took the app.", "Apple made it."],
    ["It is known.[17]", "Nobody doubts it. [3] [4]", "Or so they say.[5][6]"],
    ["It is known.[117]", "Nobody doubts it."],
    ["See the list.", "[A] is first."],
    ["यह घर है।", "वह गया।", "हम आए।"],
    ["یہ گھر ہے۔", "وہ کہاں گیا؟", "ہم آئے۔"],
    ["هل هذا بيت؟", "ذهب.", "جئنا."],
    ["Սա տուն է։", "Նա գնաց։", "Մենք եկանք:", "Այո։"],
    ["ሰላም ነው።", "ሄደ።"],
    ["Πού πας;", "Στο σπίτι.", "Γιατί\u037e", "Έτσι."],
    ["នេះជាផ្ទះ។", "គាត់ទៅ។"],
    ["ဒါအိမ်ပါ။", "သူသွားတယ်။"],
    ["Он ждал…", "Она пришла."],
    ["Es ist gut.“", "„So?“", "»Ja.«", "Er ging."],
    ["Это «Дом.»", "Она ушла."],
    ["집에 왔다.", "그는 갔다.", "왜?"],
    ["วันนี้อากาศดี", "เราไปเที่ยวกัน"],
]

GLUED = [
    ["今天很好。", "明天呢？", "好！"],
    ["他说：「好。」", "「不。」"],
    ["今天很好！？」", "明天呢？！", "好。"],
    ["これが美味!", "組内で評価。"],
    ["ｱﾒﾀﾞ｡", "ﾊﾚﾀﾞ｡"],
    ["यह घर है।", "वह गया।"],
    ['"这是对的。"', "他说。"],
    ["他说。", '"你好。"', '"不好！"', "她走了。"],
    ["一起去看《摔跤吧！爸爸》好吗？", "好！"],
    ["看《好。", "不好。"],
]


@pytest.mark.parametrize("text", WHOLE)
def test_marks_inside_a_sentence_do_not_cut(text: str) -> None:
    assert split(text) == [text]


@pytest.mark.parametrize("parts", CUT, ids=lambda parts: parts[0])
def test_sentences_are_cut(parts: list[str]) -> None:
    space = "" if parts[0].endswith("。") else " "
    assert split(space.join(parts)) == parts


@pytest.mark.parametrize("parts", GLUED, ids=lambda parts: parts[0])
def test_sentences_without_a_space_between_them_are_cut_and_remembered(parts: list[str]) -> None:
    whole = "".join(parts)
    raw = np.frombuffer(f"{whole}\n".encode(), dtype=np.uint8)
    text, _, glued = split_sentences(raw, np.array([len(raw)]))
    assert text.tobytes().decode().splitlines() == parts
    assert np.delete(text, glued).tobytes() == raw.tobytes()


def test_a_corpus_has_abbreviations_of_its_own() -> None:
    german = "Das kostet 5 Mio. Euro, z. B. am 3. Juni bzw. Montag."
    raw = np.frombuffer(f"{german} Ende.\n".encode(), dtype=np.uint8)
    words = ("mio", "z", "b", "bzw", "0")
    text, _, _ = split_sentences(raw, np.array([len(raw)]), words)
    assert text.tobytes().decode().splitlines() == [german, "Ende."]
    assert len(split(f"{german} Ende.")) > 2
    russian = "Это стоит 5 тыс. Долларов."
    raw = np.frombuffer(f"{russian}\n".encode(), dtype=np.uint8)
    text, _, _ = split_sentences(raw, np.array([len(raw)]), ("тыс",))
    assert text.tobytes().decode().splitlines() == [russian]


def test_abbreviations_of_a_corpus_have_any_length() -> None:
    text = "Это проф. Иванов. Вот Архит. Попов. Мы помним Александровское. Она спала."
    raw = np.frombuffer(f"{text}\n".encode(), dtype=np.uint8)
    split, _, _ = split_sentences(raw, np.array([len(raw)]), ("проф", "архит"))
    assert split.tobytes().decode().splitlines() == [
        "Это проф. Иванов.",
        "Вот Архит. Попов.",
        "Мы помним Александровское.",
        "Она спала.",
    ]


def test_small_letters_beyond_ascii_go_on() -> None:
    assert split("der Nr. 5 usw. über alles. élan. это? да") == [
        "der Nr. 5 usw. über alles. élan. это? да"
    ]


def test_line_feeds_stay_where_they_are() -> None:
    assert split("One. Two.\nthree. Four") == ["One.", "Two.", "three.", "Four"]


def test_lists_in_disguise_are_cut_at_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "MAX_SENTENCE_BYTES", 50)
    words = [f"word{number}" for number in range(60)]
    parts = split(" ".join(words))
    assert " ".join(parts).split() == words
    assert max(map(len, parts)) <= 50
    assert split("x" * 500) == ["x" * 500]


@given(st.text(st.sampled_from("aA.?! \n\"')(1é中。」“”…[]-:"), max_size=60))
def test_nothing_but_white_space_changes(text: str) -> None:
    line = " ".join(text.split()) or "x"
    assert "".join("".join(split(line)).split()) == "".join(line.split())


@given(
    st.lists(st.text(st.sampled_from('aAMrs.?! 1۱。」《》"'), min_size=1, max_size=20), min_size=1)
)
def test_a_document_is_cut_alike_wherever_it_stands(documents: list[str]) -> None:
    lines = [" ".join(document.split()) or "x" for document in documents]
    raw = [f"{line}\n".encode() for line in lines]
    text, ends, _ = split_sentences(
        np.frombuffer(b"".join(raw), dtype=np.uint8), np.cumsum([len(part) for part in raw])
    )
    starts = [0, *ends[:-1].tolist()]
    found = [text[a:b].tobytes().decode() for a, b in zip(starts, ends.tolist(), strict=True)]
    assert found == ["".join(f"{part}\n" for part in split(line)) for line in lines]
