"""Figures for the server's pages."""

import pytest

from flows.prefect.artifact_pages import artifact_key, figure_rows, share_done


@pytest.mark.parametrize(
    ("line", "share"),
    [
        ("tokens 120/480 MB 24.1 MB/s remaining 0:15", 0.25),
        ("step=1,000/4,000 loss=1.0 remaining=0:13", 0.25),
        ("tokens 0/0 MB 0.0 MB/s remaining 0:00", 1.0),
        ("tokens 500/480 MB 24.1 MB/s remaining 0:00", 1.0),
        ("3 documents dropped", 0.0),
    ],
)
def test_the_share_that_is_done_is_read_from_the_line(line: str, share: float) -> None:
    assert share_done(line) == share


def test_a_figure_stands_beside_its_error() -> None:
    known = {"package mlm_loss": 3.01234, "tagging f1": 0.71, "tagging f1 ±": 0.0123}
    assert figure_rows(known) == [
        {"figure": "package mlm_loss", "value": "3.012", "±": ""},
        {"figure": "tagging f1", "value": "0.71", "±": "0.012"},
    ]


def test_keys_have_the_form_that_prefect_wants() -> None:
    assert artifact_key("My_Run", "tokens") == "my-run-tokens"
