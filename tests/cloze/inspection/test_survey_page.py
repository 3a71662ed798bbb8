"""`cloze inspect RUN/tokens --page`: what is said about a corpus is true, and can be looked at."""

import json
import random
import tomllib
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from cloze.pipeline.survey import copies
from cloze.pipeline.survey import survey as surveying
from tests.browser import browser
from tests.cloze.execution.test_containers import VOCABULARY
from tests.pipeline.corpora import documents, write_jsonl
from tests.test_pages import CONTRASTS

Cloze = Callable[..., Any]

NOTICE = "This notice stands below every message that we send to anybody."
CONFIG = """
name = "{name}"

[corpus]
heldout_share = 0.1

[[corpus.sources]]
reader = "jsonl"
path = "mails.jsonl"
line_break = "paragraph"

[[corpus.sources]]
reader = "blank_line_text"
path = "pages.txt"
line_break = "paragraph"
{more}

[vocabulary]
path = "vocab.txt"
"""
EVIL = "<script>alert(1)</script></pre></title> \u202eback\x00 <!-- ]]> {{7*7}} &amp;"


def copies_of(text: str, count: int) -> list[str]:
    """Texts that differ in one of their words."""
    words = text.split()
    return [" ".join([*words[:30], f"number{at}", *words[31:]]) for at in range(count)]


@pytest.fixture
def mails(folder: Path) -> list[str]:
    """A corpus with planted boilerplate, damage, near-duplicates and personal data."""
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    texts = [f"{text}\n{NOTICE}" for text in documents(1, 40)]
    texts += copies_of(" ".join(documents(5, 30)), 7)
    texts += ["It\u00e2\u20ac\u2122s a caf\u00c3\u0192\u00c2\u00a9 of the old and the new town."]
    texts += ["Write to me@mail.org for more of it, and to the others.", texts[0], EVIL]
    write_jsonl(folder / "mails.jsonl", texts)
    (folder / "pages.txt").write_text("\n\n".join(documents(9, 30)) + "\n")
    return texts


def prepare(cloze: Cloze, folder: Path, *, name: str = "mine", more: str = "") -> None:
    (folder / f"{name}.toml").write_text(CONFIG.format(name=name, more=more))
    done = cloze("tokens", f"{name}.toml")
    assert done.returncode == 0, done.stderr


def surveyed(cloze: Cloze, *, name: str = "mine") -> dict[str, Any]:
    done = cloze("inspect", f"{name}/tokens", "--rows", "0", "--page", f"{name}.html", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["page"] == f"{name}.html"
    return {**answer["survey"], "statistics": answer["manifest"]["statistics"]}


class Checked(HTMLParser):
    """What would make a page invalid, or more than a page."""

    VOID = ("meta", "br", "img", "path", "use", "link", "input", "hr", "rect", "line")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.feed(html)
        self.close()
        self.faults += [f"open: {tag}" for tag in self.open]
        self.faults += [f"id twice: {one}" for one, count in self.ids.items() if count > 1]
        self.faults += [one for one in self.links if one.removeprefix("#") not in self.ids]
        self.faults += [f"control {ord(c):x}" for c in html if ord(c) < 32 and c != "\n"]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "iframe", "img", "object", "link"):
            self.faults.append(tag)
        for name, value in attrs:
            if name.startswith("on"):
                self.faults.append(name)
            if name == "id":
                self.ids[str(value)] += 1
            if name in ("href", "src"):
                self.links.append(str(value))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids[str(value)] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag in self.VOID:
            return
        if not self.open or self.open[-1] != tag:
            self.faults.append(f"</{tag}> in {self.open[-1:]}")
        else:
            self.open.pop()


def test_amounts_are_those_of_the_tokens_and_of_the_files(
    cloze: Cloze, folder: Path, mails: list[str]
) -> None:
    prepare(cloze, folder)
    found = surveyed(cloze)
    of_mails, of_pages = found["sources"]
    assert (of_mails["read"], of_mails["documents"]) == (len(mails), len(mails) - 1)
    assert of_mails["dropped"] == {"duplicate": 1}
    assert (of_pages["read"], of_pages["documents"]) == (30, 30)
    splits = found["statistics"]["splits"].values()
    assert found["tokens"] == sum(split["tokens"] for split in splits)
    assert found["tokens"] == of_mails["tokens"] + of_pages["tokens"]
    assert of_pages["characters"] == sum(len(text) + 1 for text in documents(9, 30))
    assert sum(of_pages["lengths"]["counts"]) == 30
    assert found["sampled_share"] == 1
    assert (found["sampled_read"], found["sampled_kept"]) == (len(mails) + 30, len(mails) + 29)


def test_what_was_planted_is_found_and_each_remedy_is_a_line_that_works(
    cloze: Cloze, folder: Path, mails: list[str]
) -> None:
    prepare(cloze, folder)
    found = surveyed(cloze)
    damage = {one["name"]: one for one in found["damage"]}
    mojibake = damage["UTF-8 read as Windows-1252"]
    assert (mojibake["documents"], mojibake["layers"]) == (1, {"1": 1, "2": 1})
    assert damage["HTML pages"]["by_source"] == {"0": 1}
    lines, words, *_ = found["frequent"]
    assert lines["most"][0] == {"text": NOTICE, "count": 40, "source": 0}
    kept = [*mails[:49], mails[50], *documents(9, 30)]
    whole = Counter(word.strip(".?!,") for text in kept for word in text.lower().split())
    assert words["most"][0]["text"] == whole.most_common(1)[0][0]
    assert words["most"][0]["count"] == whole.most_common(1)[0][1]
    groups = found["copies"]
    assert (groups["searched"], groups["equal"]) == ("sample", 1)
    largest = groups["groups"][0]
    assert (largest["size"], largest["kind"]) == (7, "near")
    assert largest["similarity"] > 0.8
    kept_text, other = largest["texts"][:2]
    assert [kind for kind, _ in kept_text] == ["same"]
    assert [text.rstrip()[:6] for kind, text in other if kind != "same"] == ["number", "number"]
    assert found["personal"]["[cleaning]"]["mail"] == 1

    lines_by_place: dict[str, list[str]] = {}
    for remedy in found["remedies"]:
        lines_by_place.setdefault(remedy["place"].split(",")[0], []).append(remedy["line"])
    assert lines_by_place["[dedup]"] == ["near_duplicates = {}"]
    assert "boilerplate = {}" in lines_by_place["[[corpus.sources]]"]
    assert 'mask = ["mail"]' in lines_by_place["[cleaning]"]
    # all of them together are a configuration that is accepted, and has the effect
    changed = CONFIG.format(name="better", more="")
    for place, own in lines_by_place.items():
        if place == "[[corpus.sources]]":
            known = [line for line in own if line != "html = true"]  # needs the extra `web`
            changed = changed.replace(
                'path = "mails.jsonl"', "\n".join(['path = "mails.jsonl"', *known])
            )
        else:
            changed += "\n" + "\n".join([place, *own]) + "\n"
    (folder / "better.toml").write_text(changed)
    assert tomllib.loads(changed)["corpus"]["sources"][0]["boilerplate"] == {}
    done = cloze("tokens", "better.toml")
    assert done.returncode == 0, done.stderr
    better = surveyed(cloze, name="better")
    assert (better["copies"]["searched"], better["copies"]["near"]) == ("run", 6)
    assert better["copies"]["groups"][0]["size"] == 7
    assert better["edits"]["mail"] == 1
    assert NOTICE not in {one["text"] for one in better["frequent"][0]["most"]}
    again = {(one["place"], one["line"]) for one in better["remedies"]}
    assert ("[dedup]", "near_duplicates = {}") not in again
    changes = [piece for one in better["changes"] for piece in one["pieces"]]
    assert any(kind == "gone" and NOTICE.split()[1] in text for kind, text in changes)


def test_samples_stand_on_both_sides_of_a_rules_limit(
    cloze: Cloze, folder: Path, mails: list[str]
) -> None:
    prepare(cloze, folder, more="\n[cleaning]\nmin_words = 12\nmin_line_words = 2")
    found = surveyed(cloze)
    rules = {rule["setting"]: rule for rule in found["rules"]}
    own = rules["min_words"]
    assert (own["on"], own["limit"], own["preset"]) == (True, 12, "")
    assert own["count"] == found["reasons"]["short"]
    assert own["of"] == len(mails) + 30
    assert max(sample["value"] for sample in own["out"]) == 11
    assert min(sample["value"] for sample in own["kept"]) == 12
    # off, so tried with its published limit
    other = rules["max_words"]
    assert (other["on"], other["limit"], other["preset"]) == (False, 100_000, "gopher")
    assert (other["count"], other["out"]) == (0, [])
    assert found["rules"][0]["on"]
    assert found["presets"]["gopher"] >= rules["min_mean_word_length"]["count"]
    fates = {change["fate"] for change in found["changes"]}
    assert fates <= {"kept", "short", "dropped as a copy, or by a drop list"}


def test_a_source_with_its_own_rules_is_tried_with_these(
    cloze: Cloze, folder: Path, mails: list[str]
) -> None:
    prepare(cloze, folder, more="cleaning = { min_words = 9 }\n\n[cleaning]\nmin_words = 12")
    found = surveyed(cloze)
    rules = {rule["place"]: rule for rule in found["rules"] if rule["setting"] == "min_words"}
    own = "[corpus.sources.cleaning], of source 1"
    assert {place: rule["limit"] for place, rule in rules.items()} == {"[cleaning]": 12, own: 9}
    assert (rules["[cleaning]"]["of"], rules[own]["of"]) == (len(mails), 30)
    dropped = [source["dropped"].get("short", 0) for source in found["sources"]]
    assert [rules["[cleaning]"]["count"], rules[own]["count"]] == dropped
    assert found["personal"].keys() == {"[cleaning]", own}


def test_only_documents_with_other_changes_than_white_space_are_shown_as_changed(
    cloze: Cloze, folder: Path, mails: list[str]
) -> None:
    spaced = [text.replace(" ", wide) for text in documents(7, 4) for wide in "\u00a0\u2009\u3000"]
    write_jsonl(
        folder / "mails.jsonl", [*spaced, "It has one\u00ad soft hyphen, and no more of it."]
    )
    prepare(cloze, folder)
    changes = [one for one in surveyed(cloze)["changes"] if one["chosen"] == "changed"]
    assert [one["pieces"][1:3] for one in changes] == [
        [["gone", "one\u00ad "], ["new", "one "]],
    ]


def test_a_page_is_valid_runs_nothing_and_is_the_same_every_time(
    cloze: Cloze, folder: Path, mails: list[str]
) -> None:
    prepare(cloze, folder)
    surveyed(cloze)
    first = (folder / "mine.html").read_text("utf-8")
    checked = Checked(first)
    assert checked.faults == []
    assert "&lt;script&gt;alert(1)" in first
    assert '<span class="out">[202E]</span>' in first or "[202E]" in first
    surveyed(cloze)
    assert (folder / "mine.html").read_text("utf-8") == first


@pytest.mark.slow
def test_a_page_of_a_hostile_corpus_is_no_larger_than_promised(cloze: Cloze, folder: Path) -> None:
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    rng = random.Random(4)
    letters = ["&", "<", '"', "'", "\u202e", "\ue000", "\u00e2\u20ac\u2122", "\U0001f600"]
    texts = [
        "\n".join(
            " ".join("".join(rng.choices(letters, k=40)) for _ in range(40)) for _ in range(25)
        )
        for _ in range(20)
    ]
    write_jsonl(folder / "mails.jsonl", [*texts, *(f"{text} x" for text in texts)])
    sources = [
        f'[[corpus.sources]]\nreader = "jsonl"\npath = "{"&" * 60}{n}.jsonl"' for n in range(60)
    ]
    for number in range(60):
        write_jsonl(folder / f"{'&' * 60}{number}.jsonl", texts[number % 20 :][:1])
    (folder / "pages.txt").write_text("\n\n".join(texts[:2]) + "\n")
    prepare(cloze, folder, more="\n" + "\n".join(sources))
    surveyed(cloze)
    page = (folder / "mine.html").read_bytes()
    assert len(page) < 5_000_000
    assert Checked(page.decode()).faults == []


def test_of_a_large_corpus_a_sample_is_looked_at_and_amounts_stay_exact(
    cloze: Cloze, folder: Path, mails: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(cloze, folder)
    whole = surveyed(cloze)
    size = sum((folder / name).stat().st_size for name in ("mails.jsonl", "pages.txt"))
    monkeypatch.setattr(surveying, "SAMPLE_BYTES", size // 2)
    half = surveyed(cloze)
    assert half["sampled_share"] == pytest.approx(0.5, abs=0.01)
    assert 0 < half["sampled_read"] < whole["sampled_read"]
    assert half["sources"] == whole["sources"]
    assert half["copies"] == whole["copies"]
    page = (folder / "mine.html").read_text("utf-8")
    assert f"{half['sampled_read']} documents" in page
    assert "drawn by digest" in page


def test_among_very_many_documents_copies_are_searched_for_in_a_sample(
    cloze: Cloze, folder: Path, mails: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "MOST_DOCUMENTS", 20)
    prepare(cloze, folder)
    found = surveyed(cloze)["copies"]
    assert 10 <= found["documents"] <= 20
    assert f"among a sample ({found['documents']})" in (folder / "mine.html").read_text("utf-8")


def test_a_corpus_that_has_changed_and_what_is_no_run_are_refused(
    cloze: Cloze, folder: Path, mails: list[str]
) -> None:
    prepare(cloze, folder)
    directory = json.loads(cloze("inspect", "mine/tokens", "--json").stdout)["directory"]
    done = cloze("inspect", directory, "--page", "mine.html")
    assert done.returncode == 2
    assert "name it as RUN/tokens" in done.stderr
    done = cloze("inspect", "mine/vocabulary", "--page", "mine.html")
    assert done.returncode == 2
    assert "--page: not supported for vocabulary; inspect RUN/tokens" in done.stderr
    write_jsonl(folder / "mails.jsonl", [*mails, "One more document that nobody has seen."])
    done = cloze("inspect", "mine/tokens", "--page", "mine.html")
    assert done.returncode != 0
    assert "files have changed since; run `cloze tokens CONFIG` again first" in done.stderr
    write_jsonl(folder / "mails.jsonl", mails[5:])
    done = cloze("inspect", "mine/tokens", "--page", "mine.html")
    assert done.returncode != 0
    assert "are not in the corpus any more" in done.stderr
    assert not (folder / "mine.html").exists()


@pytest.mark.parametrize("text", ["One document. It has two sentences.", "x"])
def test_a_corpus_of_hardly_anything_has_a_page(cloze: Cloze, folder: Path, text: str) -> None:
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    write_jsonl(folder / "mails.jsonl", [text])
    (folder / "pages.txt").write_text("\n")
    prepare(cloze, folder)
    found = surveyed(cloze)
    assert found["tokens"] == sum(s["tokens"] for s in found["statistics"]["splits"].values())
    assert Checked((folder / "mine.html").read_text("utf-8")).faults == []


@pytest.mark.parametrize(("width", "mode"), [(1200, "dark"), (390, "light")])
def test_the_page_fits_a_desktop_and_a_phone_and_can_be_read(
    cloze: Cloze, folder: Path, mails: list[str], width: int, mode: str
) -> None:
    write_jsonl(
        folder / "mails.jsonl", [*mails, "\u0633\u0644\u0627\u0645 " * 9, "W" * 9000 + " x"]
    )
    prepare(cloze, folder)
    surveyed(cloze)
    with browser() as page:
        page.open((folder / "mine.html").as_uri(), width=width, mode=mode)
        page.text("What to change", "Copies", "Before and after cleaning")
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0
        assert json.loads(page.evaluate(CONTRASTS)) == {}
