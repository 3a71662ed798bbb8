"""The rules for documents: which are dropped, what is removed from them and masked in them.

In:  the table `[cleaning]`, or the table `cleaning` of a source.
Out: one frozen `RulesConfig`, with the thresholds of its presets filled in.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from cloze.artifacts.config import Config
from cloze.pipeline.config.presets import known_language, known_preset, with_presets


class RulesConfig(Config):
    """Rules that drop whole documents, remove lines or mask personal data; all off by default.

    Each dropped document and removed line is counted by reason. Words are cut as by the filters of
    datatrove: punctuation is not a word, and `well-known` is two; a share of the text is in
    characters. A line is a paragraph, since cleaning joins wrapped lines.
    """

    presets: tuple[Annotated[str, AfterValidator(known_preset)], ...] = ()
    """Rules by name, with their published thresholds: `gopher` (quality and repetition), `c4`,
    `fineweb` (its own additions). A rule that is set beside it has the value set; 0 or false turns
    it off. FineWeb's recipe is all three with `remove_unterminated_lines = false`."""

    min_words: int = Field(default=0, ge=0)
    """Drop documents with fewer words (Gopher: 50)."""

    max_words: int = Field(default=0, ge=0)
    """Drop documents with more words; 0 is off (Gopher: 100,000)."""

    min_mean_word_length: float = Field(default=0.0, ge=0.0)
    """Drop documents with a shorter mean word length, in characters; 0 is off (Gopher: 3)."""

    max_mean_word_length: float = Field(default=0.0, ge=0.0)
    """Drop documents with a longer mean word length, in characters; 0 is off (Gopher: 10)."""

    max_symbol_to_word_ratio: float = Field(default=0.0, ge=0.0)
    """Drop documents with more hash signs, or more ellipses, per word or mark; 0 is off (Gopher:
    0.1)."""

    max_bullet_line_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Drop documents with a larger share of lines starting with a bullet; 0 is off (Gopher:
    0.9)."""

    max_ellipsis_line_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Drop documents with a larger share of lines ending in an ellipsis; 0 is off (Gopher: 0.3)."""

    min_alphabetic_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Drop documents with a smaller share of words and marks that contain a letter; 0 is off
    (Gopher: 0.8)."""

    min_stop_words: int = Field(default=0, ge=0, le=8)
    """Drop documents with fewer distinct words out of the, be, to, of, and, that, have, with;
    English only (Gopher: 2)."""

    max_duplicate_line_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Drop documents with a larger share of lines that came earlier in them; 0 is off (Gopher,
    Table A1, of lines and of paragraphs: 0.3)."""

    max_duplicate_line_text: float = Field(default=0.0, ge=0.0, le=1.0)
    """Drop documents with a larger share of their text in such lines; 0 is off (Gopher, Table A1,
    of lines and of paragraphs: 0.2)."""

    max_top_2_gram_text: float = Field(default=0.0, ge=0.0, le=1.0)
    """Drop documents with a larger share of their text in their most frequent pair of words; 0 is
    off (Gopher, Table A1: 0.2)."""

    max_top_3_gram_text: float = Field(default=0.0, ge=0.0, le=1.0)
    """The same for three words (Gopher, Table A1: 0.18)."""

    max_top_4_gram_text: float = Field(default=0.0, ge=0.0, le=1.0)
    """The same for four words (Gopher, Table A1: 0.16)."""

    max_duplicate_5_gram_text: float = Field(default=0.0, ge=0.0, le=1.0)
    """Drop documents with a larger share of their text in runs of five words that came earlier in
    them; 0 is off (Gopher, Table A1: 0.15)."""

    max_duplicate_6_gram_text: float = Field(default=0.0, ge=0.0, le=1.0)
    """The same for six words (Gopher, Table A1: 0.14)."""

    max_duplicate_7_gram_text: float = Field(default=0.0, ge=0.0, le=1.0)
    """The same for seven words (Gopher, Table A1: 0.13)."""

    max_duplicate_8_gram_text: float = Field(default=0.0, ge=0.0, le=1.0)
    """The same for eight words (Gopher, Table A1: 0.12)."""

    max_duplicate_9_gram_text: float = Field(default=0.0, ge=0.0, le=1.0)
    """The same for nine words (Gopher, Table A1: 0.11)."""

    max_duplicate_10_gram_text: float = Field(default=0.0, ge=0.0, le=1.0)
    """The same for ten words (Gopher, Table A1: 0.1)."""

    min_terminated_line_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Drop documents with a smaller share of lines that end with a mark that ends sentences, in any
    script; 0 is off (FineWeb: 0.12)."""

    max_short_line_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Drop documents with a larger share of lines of at most `short_line` characters; 0 is off
    (FineWeb: 0.67)."""

    short_line: int = Field(default=30, ge=1)
    """Characters of the longest short line (FineWeb: 30)."""

    max_repeated_line_text: float = Field(default=0.0, ge=0.0, le=1.0)
    """Drop documents with a larger share of their text, without line breaks, in lines that came
    earlier in them; 0 is off (FineWeb: 0.01)."""

    max_line_break_share: float = Field(default=0.0, ge=0.0)
    """Drop documents with more line breaks per word or mark, such as lists; 0 is off (FineWeb:
    0.3)."""

    drop_curly_brackets: bool = False
    """Drop documents that contain `{`: probably code (C4)."""

    drop_lorem_ipsum: bool = False
    """Drop documents that contain `lorem ipsum` (C4)."""

    min_sentences: int = Field(default=0, ge=0)
    """Drop documents with fewer sentences after lines are removed; 0 is off (C4: 5)."""

    blocked_words: tuple[str, ...] = ()
    """Drop documents that contain one of these words or phrases, in any case, as whole words (C4
    has a list of bad words; none comes with this software)."""

    languages: tuple[Annotated[str, AfterValidator(known_language)], ...] = ()
    """Drop documents that are not in one of these languages, by ISO 639 code, as pycld2 detects
    them (the extra `language`); so is text of a few words, for which it detects none. Empty: any
    language."""

    min_language_share: float = Field(default=0.65, gt=0.0, le=1.0)
    """Least share of a document's text in `languages` (FineWeb has a score of 0.65)."""

    max_line_word_length: int = Field(default=0, ge=0)
    """Remove lines with a longer word, in characters; 0 is off (C4's code: 1,000)."""

    remove_citations: bool = False
    """Remove `[12]`, `[]`, `[edit]` and `[citation needed]` from lines (C4's code)."""

    remove_unterminated_lines: bool = False
    """Remove lines that do not end in one of `.?!"'`, or end in `...` (C4)."""

    min_line_words: int = Field(default=0, ge=0)
    """Remove lines with fewer words between white space; 0 is off (C4: 3)."""

    remove_javascript_lines: bool = False
    """Remove lines that mention JavaScript (C4)."""

    remove_policy_lines: bool = False
    """Remove lines that mention terms of use, a privacy or cookie policy, or the use of cookies
    (C4's code)."""

    mask: tuple[Literal["mail", "ip", "phone", "card"], ...] = ()
    """Personal data to replace by an address or number that is reserved for examples: mail
    addresses, public IP addresses (FineWeb, 3.7), telephone numbers with an international or area
    code, and numbers of payment cards with the right check digit (Luhn)."""

    @property
    def changes_text(self) -> bool:
        """Whether any rule removes lines of documents, or masks data in them."""
        return any(
            (
                *(self.max_line_word_length, self.min_line_words, self.mask),
                *(self.remove_citations, self.remove_unterminated_lines),
                *(self.remove_javascript_lines, self.remove_policy_lines),
            )
        )

    max_replacement_share: float = Field(default=0.1, ge=0.0, le=1.0)
    """Drop documents with a larger share of invalid bytes among their characters."""

    @model_validator(mode="before")
    @classmethod
    def _with_presets(cls, settings: object) -> object:
        return with_presets(settings) if isinstance(settings, Mapping) else settings

    @field_validator("blocked_words")
    @classmethod
    def _words_are_words(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        if not all(word.strip() == word != "" for word in words):
            raise ValueError("a word is empty, or begins or ends with white space; remove that")
        return words

    @model_validator(mode="after")
    def _some_pass(self) -> "RulesConfig":
        for least, most in (
            ("min_words", "max_words"),
            ("min_mean_word_length", "max_mean_word_length"),
        ):
            if 0 < getattr(self, most) < getattr(self, least):
                raise ValueError(
                    f"{least} = {getattr(self, least)} exceeds {most} = {getattr(self, most)}, so "
                    "every document would be dropped; raise one or lower the other"
                )
        return self
