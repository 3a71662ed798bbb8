"""Figures for the server's pages."""

from flows.prefect.tracking import artifact_key, figure_rows


def test_a_figure_stands_beside_its_error() -> None:
    known = {"package mlm_loss": 3.01234, "tagging f1": 0.71, "tagging f1 ±": 0.0123}
    assert figure_rows(known) == [
        {"figure": "package mlm_loss", "value": "3.012", "±": ""},
        {"figure": "tagging f1", "value": "0.71", "±": "0.012"},
    ]


def test_keys_have_the_form_that_prefect_wants() -> None:
    assert artifact_key("My_Run", "tokens") == "my-run-tokens"
