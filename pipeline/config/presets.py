"""Presets of quality rules, and the languages that a document can be told to be in.

In:  the names in `cleaning.presets`.
Out: the settings that each stands for.

The thresholds are the published ones: Gopher (Rae et al. 2021, arXiv 2112.11446, A.1.1 and Table
A1), C4 (Raffel et al. 2020, arXiv 1910.10683, 2.2, and its code), FineWeb (Penedo et al. 2024,
arXiv 2406.17557, 3.6).
"""

from collections.abc import Mapping

Setting = bool | int | float | tuple[str, ...]

PRESETS: Mapping[str, Mapping[str, Setting]] = {
    "gopher": {
        "min_words": 50,
        "max_words": 100_000,
        "min_mean_word_length": 3.0,
        "max_mean_word_length": 10.0,
        "max_symbol_to_word_ratio": 0.1,
        "max_bullet_line_share": 0.9,
        "max_ellipsis_line_share": 0.3,
        "min_alphabetic_share": 0.8,
        "min_stop_words": 2,
        "max_duplicate_line_share": 0.3,
        "max_duplicate_line_text": 0.2,
        "max_top_2_gram_text": 0.2,
        "max_top_3_gram_text": 0.18,
        "max_top_4_gram_text": 0.16,
        "max_duplicate_5_gram_text": 0.15,
        "max_duplicate_6_gram_text": 0.14,
        "max_duplicate_7_gram_text": 0.13,
        "max_duplicate_8_gram_text": 0.12,
        "max_duplicate_9_gram_text": 0.11,
        "max_duplicate_10_gram_text": 0.1,
    },
    "c4": {
        "max_line_word_length": 1000,
        "remove_citations": True,
        "remove_unterminated_lines": True,
        "min_line_words": 3,
        "remove_javascript_lines": True,
        "remove_policy_lines": True,
        "min_sentences": 5,
        "drop_curly_brackets": True,
        "drop_lorem_ipsum": True,
    },
    "fineweb": {
        "min_terminated_line_share": 0.12,
        "max_short_line_share": 0.67,
        "max_repeated_line_text": 0.01,
        "max_line_break_share": 0.3,
    },
}

_CODES = """
aa ab af ak am ar as ay az ba be bg bh bi bn bo br bs ca ceb chr co crs cs cy da de dv dz el en
eo es et eu fa fi fj fo fr fy ga gd gl gn gu gv ha haw he hi hmn hr ht hu hy ia id ie ig ik is
it iu ja jv ka kha kk kl km kn ko ks ku ky la lb lg lif ln lo lt lv mfe mg mi mk ml mn mr ms mt
my na ne nl nn no nr nso ny oc om or pa pl ps pt qu rm rn ro ru rw sa sco sd sg si sk sl sm sn
so sq sr ss st su sv sw syr ta te tg th ti tk tl tlh tn to tr ts tt ug uk ur uz ve vi vo war wo
xh yi yo za zh zu
"""
LANGUAGES = frozenset(_CODES.split())
"""ISO 639 codes of the languages that pycld2 tells apart."""


def with_presets(settings: Mapping[str, object]) -> dict[str, object]:
    """`settings` with those of its `presets`, where they are not set by themselves."""
    named = settings.get("presets")
    found: dict[str, object] = {}
    for name in named if isinstance(named, list | tuple) else ():
        if isinstance(name, str):  # others are refused where the field is read
            found |= PRESETS.get(name, {})
    return found | dict(settings)


def known_preset(name: str) -> str:
    """`name`, if it is a preset; raises `ValueError`."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset; expected {', '.join(PRESETS)}")
    return name


def known_language(code: str) -> str:
    """`code`, if it is a language that can be told; raises `ValueError`."""
    if code not in LANGUAGES:
        raise ValueError(
            f"unknown language; expected an ISO 639 code such as en or de, one of "
            f"{', '.join(sorted(LANGUAGES))}"
        )
    return code
