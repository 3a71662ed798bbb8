"""`precision = "auto"`: decided by the features of the CPU that trains."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cloze.artifacts.store import Artifact
from cloze.model import hardware
from cloze.model.config import (
    EncoderConfig,
    FinetuneConfig,
    FinetuneStage,
    PretrainConfig,
    PretrainStage,
)
from tests.model.training.training_fixtures import examples_artifact, stage_table


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return examples_artifact(tmp_path_factory.mktemp("examples"), lengths=(32,))


@pytest.mark.parametrize(
    ("flags", "limit", "expected"),
    [
        ("avx2 avx512f avx512_bf16", "", "bf16"),
        ("avx2 avx512f amx_bf16", "", "bf16"),
        ("avx2 avx512f", "", "fp32"),
        ("avx2", "ALL", "fp32"),
        ("avx2 avx512_bf16", "AVX2", "fp32"),
        ("avx2 avx512_bf16", "AVX512_CORE", "fp32"),
        ("avx2 avx512_bf16", "avx512_core_bf16", "bf16"),
        ("avx2 avx512_bf16 amx_bf16", "AVX512_CORE_AMX", "bf16"),
    ],
)
def test_auto_is_bf16_where_the_processor_has_its_products(
    flags: str, limit: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "_flags", lambda: set(flags.split()))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert hardware.machine_precision()[0] == expected
    assert FinetuneStage(finetune=FinetuneConfig()).finetune.precision == expected
    recipe = PretrainConfig(precision="fp32")
    for given, found in ((recipe, "fp32"), (PretrainConfig(), expected)):
        stage = PretrainStage(seed=0, encoder=EncoderConfig(), pretrain=given)
        assert stage.pretrain.precision == found


@pytest.mark.parametrize(
    ("vendor", "expected"), [("GenuineIntel", True), ("AuthenticAMD", False), ("", True)]
)
def test_fp32_products_are_the_librarys_except_on_amds_processors(
    vendor: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t: avx2 fma\n"
    monkeypatch.setattr(Path, "read_text", lambda path: described)
    assert hardware.has_fast_fp32_library.__wrapped__() is expected


def without_compiler(folder: Path) -> str:
    """A PATH with everything that the trainer may call, except gcc."""
    for tool in ("sh", "env", "uname"):
        (folder / tool).symlink_to(str(shutil.which(tool)))
    return str(folder)


@pytest.mark.parametrize(
    ("limit", "precision"), [("AVX2", None), ("AVX512_CORE", None), ("AVX2", "bf16"), ("", None)]
)
def test_training_runs_on_any_processor_with_and_without_a_compiler(
    limit: str, precision: str | None, examples: Artifact, tmp_path: Path
) -> None:
    path = stage_table(tmp_path, examples, steps=3, precision=precision or "auto")
    (tmp_path / "bin").mkdir()
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": limit or "ALL"}
    if not limit:
        environment["PATH"] = without_compiler(tmp_path / "bin")
    argv = [
        sys.executable,
        "-P",
        "-m",
        "cloze.model.training.start",
        "cloze.model.training.pretrain",
    ]
    done = subprocess.run(
        [*argv, "--config", str(path)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "precision=" in line]
    assert len(said) == 1
    if limit:
        assert f"precision={precision or 'fp32'}" in said[0]
    if precision == "bf16":
        assert 'set pretrain.precision = "fp32"' in done.stderr
