"""Personal data is masked, what only looks like it is not."""

import pytest

from cloze.pipeline.config.settings import CleaningConfig
from cloze.pipeline.readers.documents import pack
from cloze.pipeline.text.cleaning import clean
from cloze.pipeline.text.personal import KINDS, mask_personal, passes_luhn

MAIL, CARD, PHONE = "mail@example.com", "0000 0000 0000 0000", "555-0100"


def masked(*documents: str, mask: tuple[str, ...] = tuple(KINDS)) -> list[str]:
    (block,) = pack(enumerate(text.encode() for text in documents))
    block, _ = clean(block, line_break="paragraph")
    found, counts = mask_personal(block, CleaningConfig.model_validate({"mask": mask}))
    assert counts.keys() == set(mask)
    return [text.decode().removesuffix("\n") for _, text in found.documents()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Write to jane.doe+news@mail.example.co.uk, please.", f"Write to {MAIL}, please."),
        ("a@b is none, nor @name, nor a@", "a@b is none, nor @name, nor a@"),
        ("Server 8.8.8.8:80 and 2606:4700:4700::1111", "Server 8.8.8.8:80 and 2001:db8::1"),
        ("Server 8.8.8.8.", "Server 192.0.2.1."),
        ("Private 192.168.0.1, 10.1.2.3, version 1.2.3.4.5", None),
        ("At 12:30:45 std::vector a::b 999.1.1.1 ::1", None),
        ("Visa 4111 1111 1111 1111!", f"Visa {CARD}!"),
        ("Amex 378282246310005", f"Amex {CARD}"),
        ("No card 4111 1111 1111 1112, no 1234567890123456", None),
        ("ISBN 978-3-16-148410-0", None),
        ("Call +49 (30) 901820-12 or (212) 555-0123.", f"Call {PHONE} or {PHONE}."),
        ("Call 212-555-0123, +44 20 7946 0958", f"Call {PHONE}, {PHONE}"),
        ("From 1990-2010, 12.500.000 people, 2024-05-06, +5 and 3+4", None),
    ],
)
def test_each_kind_is_masked_and_what_is_none_is_not(text: str, expected: str | None) -> None:
    assert masked(text) == [expected or text]


def test_only_the_kinds_that_are_asked_for() -> None:
    text = "me@mail.org 8.8.8.8"
    assert masked(text, mask=("mail",)) == [f"{MAIL} 8.8.8.8"]
    assert masked(text, mask=()) == [text]


def test_documents_stay_apart_and_are_counted_by_themselves() -> None:
    documents = ["me@mail.org and you@mail.org\nno one", "", "none", "at 8.8.8.8\nx@y.zz"]
    assert masked(*documents) == [
        f"{MAIL} and {MAIL}\nno one",
        *("", "none"),
        f"at 192.0.2.1\n{MAIL}",
    ]
    (block,) = pack(enumerate(text.encode() for text in documents))
    block, _ = clean(block, line_break="paragraph")
    _, counts = mask_personal(block, CleaningConfig(mask=("mail", "ip")))
    assert {name: found.tolist() for name, found in counts.items()} == {
        "mail": [2, 0, 0, 1],
        "ip": [0, 0, 0, 1],
    }


def test_masking_twice_changes_nothing_more() -> None:
    once = masked("me@mail.org 8.8.8.8 4111111111111111 (212) 555-0123 2606:4700:4700::1111")
    assert masked(*once, mask=("mail", "ip", "card")) == once


def test_the_check_digit() -> None:
    assert passes_luhn(b"79927398713")
    assert [passes_luhn(b"7992739871%d" % digit) for digit in range(10)].count(True) == 1
