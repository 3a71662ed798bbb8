from importlib import metadata
from pathlib import Path

import pytest

from artifacts.errors import IntegrityError, UsageError
from pipeline.demo.packages import module_files, record, sources
from tests.pipeline.installed import install, use


def test_modules_are_sorted_and_of_the_distribution_alone() -> None:
    found = module_files("joblib")
    names = [module.name for module in found]
    assert names == sorted(names)
    assert "joblib/parallel.py" in names
    assert all(name.startswith("joblib/") for name in names)


def test_tests_copies_of_other_projects_and_generated_files_do_not_count() -> None:
    names = [module.name for name in ("joblib", "scipy", "numpy") for module in module_files(name)]
    parts = [part for name in names for part in name.split("/")]
    recorded = [str(file) for file in metadata.distribution("joblib").files or []]
    assert any(name.startswith("joblib/test/") for name in recorded)
    assert any(name.startswith("joblib/externals/") for name in recorded)
    assert not {"test", "tests", "externals", "__pycache__", "version.py"} & set(parts)
    assert not any(part.startswith("test_") and part.endswith(".py") for part in parts)


def test_names_do_not_say_where_it_is_installed() -> None:
    assert not any(module.name.startswith(("/", "..")) for module in module_files("joblib"))


def test_sources_are_the_bytes_on_disk() -> None:
    for module, content in sources("joblib"):
        assert content == module.path.read_bytes()
        assert module.size == len(content)


def test_a_package_that_is_not_installed_is_named_with_the_remedy() -> None:
    with pytest.raises(UsageError, match="no_such_package: not installed here.*pip install"):
        module_files("no_such_package")


def test_a_distribution_without_modules_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, install(tmp_path, "compiled-only", {"compiled.so": b""}))
    with pytest.raises(UsageError, match="compiled-only 1.0: its record names no Python module"):
        module_files("compiled-only")


def test_a_distribution_without_a_record_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, install(tmp_path, "legacy", {"legacy/a.py": '"""What it does."""'}))
    information = tmp_path / "legacy-1.0.dist-info"
    (information / "RECORD").unlink()
    (information / "METADATA").rename(information / "PKG-INFO")
    (information / "SOURCES.txt").write_text("a.py\n")
    information.rename(tmp_path / "legacy-1.0.egg-info")
    for read in (record, module_files):
        with pytest.raises(UsageError, match="legacy 1.0: .* --use-pep517 legacy"):
            read("legacy")


def test_a_file_that_has_vanished_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, install(tmp_path, "broken", {"broken/a.py": "", "broken/b.py": ""}))
    (tmp_path / "broken" / "b.py").unlink()
    with pytest.raises(IntegrityError, match="broken/b.py: missing.*--force-reinstall broken"):
        list(sources("broken"))
