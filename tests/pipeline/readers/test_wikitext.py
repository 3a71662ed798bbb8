"""Of an article's source the passages stay, and what surrounds them goes."""

import pytest

from pipeline.readers.wikipedia import plain_text


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
        ("Name ({{lang|el|x}}) and ( , ) and (; b).", "Name  and  and (b)."),
        ("{{unclosed Text.\nNext paragraph.", "{{unclosed Text.\nNext paragraph."),
        ("__NOTOC__Text.", "Text."),
        ("", ""),
    ],
)
def test_constructs(source: str, expected: str) -> None:
    assert plain_text(source) == expected


def test_hostile_nesting_ends() -> None:
    assert plain_text("{{" * 3000 + "x" + "}}" * 3000) is not None
    assert plain_text("[[a|" * 3000 + "]]" * 3000) is not None
