"""Abbreviations are learnt from running text."""

from cloze.pipeline.text.abbreviations import NUMBERS, learn_abbreviations

GERMAN = (
    "Er kam am 3. Juni bzw. am Montag, und es kostete ca. 5 Mio. Euro im Jahr. "
    "Sie ging nach Hause. Das Haus war alt. Am 4. Mai bzw. danach kam sie wieder, ca. um acht. "
    "Die Stadt hat 2 Mio. Einwohner bzw. etwas mehr. Das Haus ist teuer. Ca. 3 Mio. sind es. "
    "Die Reise am 7. Juli war lang. Sie kam am 12. August zu Hause an. Er war alt. "
) * 4


def test_german_abbreviations_and_ordinals_are_found() -> None:
    found = learn_abbreviations([GERMAN])
    assert {"bzw", "ca", "mio", NUMBERS} <= {*found}
    assert not {"hause", "alt", "jahr", "an", "wieder"} & {*found}


def test_initials_and_units_are_found_in_russian() -> None:
    russian = (
        "Дом построен в 1990 г. на улице. Он стоит 5 тыс. рублей, т. е. дорого. Мы шли домой. "
        "Город основан в 1703 г. и растёт. Там живёт 7 тыс. человек. Мы любим дом. "
    ) * 4
    found = learn_abbreviations([russian])
    assert {"г", "тыс"} <= {*found}
    assert not {"домой", "дом", "улице"} & {*found}


def test_nothing_is_found_where_full_stops_only_end_sentences() -> None:
    assert learn_abbreviations(["The house is old. It stands here. " * 20]) == []
    assert learn_abbreviations(["집에 왔다. 그는 있다. 여기 있다. " * 20]) == []
    assert learn_abbreviations([""]) == []
