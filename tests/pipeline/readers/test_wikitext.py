"""Text passages are extracted from wikitext and everything else is removed."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.pipeline.readers.wikipedia import (
    _HEADING,
    _REMOVED_ELEMENTS,
    plain_text,
    wikitext_of,
    without_elements,
)
from tests.waiting import PATIENCE


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("'''Bold''' and ''italic'' and '''''both'''''.", "Bold and italic and both."),
        ("A [[link]], a [[target|label]], [[a|b|c]].", "A link, a label, c."),
        ("[[File:a.jpg|thumb|A [[nested]] caption]]Text.", "Text."),
        ("[[Category:Things]]\n[[de:Ding]]\nText.", "Text."),
        ("[[Star Wars: A New Hope]] is a film.", "Star Wars: A New Hope is a film."),
        ("Site [http://x.org its name] and [//y.org] here.", "Site its name and  here."),
        ("{{Infobox|a={{b|{{c}}}}|d=e}}Text.", "Text."),
        ('Text<ref name=a>Source {{cite}}</ref>, more<ref name="a" />.', "Text, more."),
        ("<!-- hidden --> Shown <!-- never closed", " Shown "),
        ("{| class=x\n|-\n| cell {| inner |}\n|}\nText.", "Text."),
        ("== Heading ==\nText.\n=== Deeper ===\n", "Text."),
        ("* list\n# numbered\n: indented\n; term\nText.", "Text."),
        ("a<br/>b<br>c <small>small</small> <math>x^2</math>.", "a\nb\nc small ."),
        ("Name ({{IPA|el|x}}) and ( , ) and (; b).", "Name  and  and (b)."),
        ("{{unclosed Text.\nNext paragraph.", "{{unclosed Text.\nNext paragraph."),
        ("__NOTOC__Text.", "Text."),
        ("He met [[:en:Hi|Hi]], a [[w:Dog|dog]], [[Re:Zero]].", "He met Hi, a dog, Re:Zero."),
        ("In [[de:Hund|Hund]] as in [[Help:Contents|help]].", "In Hund as in help."),
        ("Text.\n[[zh-min-nan:Ding]]\n", "Text."),
        ("See [[:Category:Dogs]] and [[image:a.jpg|a]].", "See Category:Dogs and ."),
        ("'''!!!''' is a band.\n[[*NSYNC]] is, too.", "!!! is a band.\n*NSYNC is, too."),
        ("-{zh-hans:计算机;zh-hant:電腦}-和-{网}-。-{H|zh:a;}-", "计算机和网。"),
        ("{{convert|5|km|mi}} or {{cvt|5|to|10|kg|abbr=on}}.", "5 km or 5 to 10 kg."),
        ("In {{w|nuclear power|power plants}}.", "In power plants."),
        ("A {{nowrap|whole {{abbr|no.|number}}}}.{{cite|x}}", "A whole no.."),
        (
            "{{Convert|60|and(-)|80|kg}} of 22 {{cvt|22|e6acre|km2}}.",
            "60 and 80 kg of 22 22 million acre.",
        ),
        ("{{formatnum:18}} °C, {{formatNum: 1000 }}.", "18 °C, 1000."),
        (
            "Is ''{{lang|ar|الله}}'' ({{transl|ar|ALA|Allāh}}, {{lang-he|אל}}).",
            "Is الله (Allāh, אל).",
        ),
        ("[[Insha'Allah|{{lang|ar|إن شاء الله|dir=rtl}}]] means so.", "إن شاء الله means so."),
        ("The {{ill|de|Gotha}} and {{ill|Ernst|de|Ernst (Herzog)}}.", "The Gotha and Ernst."),
        ("A {{nowrap|[[a|b]] and [[c=d|e]]}} here.", "A b and e here."),
        (
            "He wrote {{quote|Ideas of [[A B|B]]{{cite|x}} spread.|author=C}} then.",
            "He wrote Ideas of B spread. then.",
        ),
        (
            "The <code>name</code> of a <code><nowiki>[x]</nowiki></code> is set.",
            "The name of a [x] is set.",
        ),
        ("Run:\n<code>rm -r a</code>\n<code>\nfor\n</code>\nDone.", "Run:\nDone."),
        ("<tr><td>87 km<td>33 mi\n  <TH align=left>Length\nText <td>here.", "Text here."),
        ("", ""),
    ],
)
def test_constructs(source: str, expected: str) -> None:
    assert plain_text(source) == expected


def test_links_to_media_are_recognised_in_the_language_of_the_dump() -> None:
    text = "[[Файл:a.jpg|мини|подпис]]Текст."
    assert plain_text(text, media="file|Файл") == "Текст."


def test_hostile_nesting_ends() -> None:
    assert plain_text("{{" * 3000 + "x" + "}}" * 3000) is not None
    assert plain_text("[[a|" * 3000 + "]]" * 3000) is not None


OLD_ELEMENT = re.compile(rf"<({_REMOVED_ELEMENTS})\b[^<>]*>.*?</\1\s*>", re.DOTALL | re.IGNORECASE)
OLD_PAGE_TEXT = re.compile(rb"<text\b[^>]*?(?:/>|>(?P<text>.*?)</text>)", re.DOTALL)
OLD_HEADING = re.compile(r"^=+.*=+\s*$")

MARKUP = st.lists(
    st.sampled_from(
        [
            *"<>/=[]{}|(,;) a",
            "<ref",
            "<ref>",
            "</ref",
            "</ref >",
            "<REF/>",
            "<table>",
            "</TABLE>",
            "<text",
            "<text>",
            "</text>",
            "<text/>",
            "\n",
            "//",
            "http:",
        ]
    ),
    max_size=30,
).map("".join)


@given(MARKUP)
def test_linear_parsing_finds_what_the_obvious_patterns_find(text: str) -> None:
    assert without_elements(text) == OLD_ELEMENT.sub("", text)
    found = OLD_PAGE_TEXT.search(text.encode())
    assert wikitext_of(text.encode()) == ((found["text"] if found else None) or b"")
    for line in text.split("\n"):
        assert bool(_HEADING.fullmatch(line.strip())) == bool(OLD_HEADING.match(line.strip()))


@pytest.mark.parametrize(
    "piece",
    [
        "[//a",
        "[a",
        "(",
        "( ",
        "=",
        "= ",
        "<ref>",
        "<ref",
        "</ref ",
        "{{",
        "{{a",
        "{|",
        "[[",
        "'",
        "<",
        "<!--",
        "__A",
        "<br ",
        "<text",
        "<text>",
        "<text ",
        "<a",
        "(,",
        "[//a ",
        "{",
        "-{",
        "-{a",
        "''[[",
        "{{convert|",
        "{{convert|5|",
        "zh:",
        "<code",
        "<code>",
        "<code>a",
        "<code>a</code>",
        "<td",
        "{{w|",
        "{{w|[[a|",
    ],
)
def test_no_markup_takes_longer_than_in_proportion_to_its_length(piece: str) -> None:
    text = piece * (100_000 // len(piece)) + "x"
    began = time.process_time()
    plain_text(text)
    plain_text("{{w|" + text.replace("{", "").replace("}", "") + "}}")
    plain_text("=" * len(text) + "x")
    plain_text("(" + " " * len(text))
    wikitext_of(text.encode())
    assert time.process_time() - began < PATIENCE, "for 100 KB; cubic patterns took days"
