"""The fixtures of flows, since an ablation is a set of runs."""

from tests.flows.conftest import inline, machine, run, run_table, standins, texts

__all__ = ["inline", "machine", "run", "run_table", "standins", "texts"]
