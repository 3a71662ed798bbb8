"""Line rules remove the right lines and citations, and say how many."""

from typing import Any

from cloze.pipeline.config.settings import CleaningConfig
from cloze.pipeline.readers.documents import pack
from cloze.pipeline.text.cleaning import clean
from cloze.pipeline.text.line_rules import apply_line_rules


def left(*documents: str, **options: Any) -> tuple[list[str], dict[str, list[int]]]:
    """What is left of the documents, and what was removed from each."""
    (block,) = pack(enumerate(text.encode() for text in documents))
    block, _ = clean(block, line_break="paragraph")
    found, removed = apply_line_rules(block, CleaningConfig(**options))
    assert len(found.ends) == len(documents)
    texts = [text.decode().removesuffix("\n") for _, text in found.documents()]
    return texts, {name: counts.tolist() for name, counts in removed.items()}


def test_nothing_is_removed_by_default() -> None:
    assert left("a\nb [1]", "") == (["a\nb [1]", ""], {})


def test_lines_that_do_not_end_like_a_sentence() -> None:
    text = "One.\nTwo\nThree?\nFour!\nFive\"\nSix'\nSeven...\nEight…\nNine:\n."
    assert left(text, "No", remove_unterminated_lines=True) == (
        ["One.\nThree?\nFour!\nFive\"\nSix'\n.", ""],
        {"unterminated": [4, 1]},
    )


def test_lines_of_few_words() -> None:
    assert left("a b c.\nd e.\nf", "g h i j", min_line_words=3) == (
        ["a b c.", "g h i j"],
        {"few_words": [2, 0]},
    )


def test_lines_with_a_long_word_in_characters() -> None:
    fits, long = "é" * 10, "é" * 11
    assert left(f"a {fits} b\n{long}\nc {long}", fits, max_line_word_length=10) == (
        [f"a {fits} b", fits],
        {"long_word": [2, 0]},
    )


def test_lines_about_javascript_and_policies() -> None:
    text = (
        "Enable JavaScript now.\nA java script.\nOur Privacy Policy\nWe use cookies.\nBake cookies."
    )
    assert left(text, "TERMS OF USE", remove_javascript_lines=True, remove_policy_lines=True) == (
        ["A java script.\nBake cookies.", ""],
        {"javascript": [1, 0], "policy": [2, 1]},
    )


def test_citations_are_removed_with_the_space_around_them() -> None:
    text = "A [1] b[23], c[edit].\n[]\nD [citation needed] e [f] [4a]."
    assert left("x", text, remove_citations=True) == (
        ["x", "A b, c.\nD e [f] [4a]."],
        {"citations": [0, 5]},
    )


def test_a_line_is_counted_for_the_first_rule_in_the_order_of_c4() -> None:
    """As in C4, words are counted before citations are removed, and ends looked at after that."""
    text = (
        "Plain text of a line.\nNo end and javascript\nToo short.\nUses javascript and use cookies."
        "\nIt ends here. [1]\nTwo [2] words.\nIt uses cookies for you."
    )
    found, removed = left(text, presets=("c4",))
    assert found == ["Plain text of a line.\nTwo words."]
    assert removed == {
        "long_word": [0],
        "citations": [2],
        "unterminated": [2],
        "few_words": [1],
        "javascript": [1],
        "policy": [1],
    }


def test_a_document_can_lose_all_its_lines_and_others_are_untouched() -> None:
    documents = ["nothing here", "All is well.", "", "no end\nno end"]
    assert left(*documents, remove_unterminated_lines=True) == (
        ["", "All is well.", "", ""],
        {"unterminated": [1, 0, 0, 2]},
    )
