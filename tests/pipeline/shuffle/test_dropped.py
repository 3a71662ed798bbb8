"""The summary of the tokens stage: documents read, kept and dropped, with remedies."""

import re
from pathlib import Path

from tests.conftest import PROJECT, cloze
from tests.pipeline.corpora import documents

LATIN_1 = "Dès Noël où un zéphyr haï me vêt de glaçons würmiens, ".encode("latin-1") * 20
LATIN_1 = bytes(byte for byte in LATIN_1 if byte >= 0x80) * 3 + LATIN_1


def test_prepare_ends_with_an_account_of_what_was_read_kept_and_dropped(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number, text in enumerate(documents(1, 30)):
        (folder / f"{number:02}.txt").write_text(text)
    (folder / "30.txt").write_text(documents(1, 1)[0])
    (folder / "empty.txt").write_text(" \n")
    (folder / "old.txt").write_bytes(LATIN_1)
    (folder / "one bad byte.txt").write_bytes(b"A long enough text with one \xff byte in it.")
    done = cloze(
        *("tokens", str(PROJECT / "configs" / "text_folder.toml"), "--workspace", str(tmp_path)),
        *("--set", f"corpus.sources.0.path='{folder}'", "--set", "vocabulary.size=300"),
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "tokens: " in line]
    account = "\n".join(re.sub(r".*tokens: ", "", line) for line in lines)
    assert re.search(r"34 documents read, 31 kept: .*\d+ heldout", account)
    duplicate = r"1 dropped as duplicate, the same text came earlier; for example .*30\.txt at 0"
    assert re.search(duplicate, account)
    assert re.search(r"1 dropped as empty, nothing is left .*empty\.txt at 0", account)
    assert re.search(r"1 dropped as not_text, too many bytes .*iconv.*old\.txt at 0", account)
    assert "2 with bytes that are not UTF-8" in account
