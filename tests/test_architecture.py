"""The layers: artifacts ← pipeline, artifacts ← model, flows above them, cloze on top.

Beside them stand rooms that import this core, and that it never imports.

Read from the syntax of every module; nothing is imported.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
FACE = "cloze"
LINKED = ("artifacts", "pipeline", "model", "flows")
"""Folders at the top of the checkout, to which links in the face's point: `cloze.model`, …"""

PACKAGES = (*LINKED, FACE)
MODULES = {
    (f"{FACE}." if package in LINKED else "")
    + ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((PROJECT / package).rglob("*.py"))
}
UNPICKLING = {
    *("pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"),
    *("torch.load", "np.load", "numpy.load", "eval", "exec"),
}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
CONFIGS = {
    *("cloze.pipeline.config.settings", "cloze.pipeline.config.formats"),
    *("cloze.model.config", "cloze.model.task_families", "cloze.flows.config"),
}

ALLOWED = {
    "artifacts": {"artifacts"},
    "pipeline": {"artifacts", "pipeline"},
    "model": {"artifacts", "model"},
    "flows": {"artifacts", "flows"},
    "cloze": {"artifacts", "flows", "model", "cloze"},
    "cloze.demo": {"artifacts", "pipeline", "cloze.demo"},
    "cloze.paper": {"artifacts", "flows", "model", "cloze", "cloze.paper"},
}
"""Which of our packages each may import, besides single modules (below)."""

BESIDE = ("cloze.demo", "cloze.paper")
"""Rooms beside the core: they import it, never the reverse. The core finds what they offer by the
names of their modules: `FORMATS`, `COMMANDS`, `FLOWS`, `OTHER_LAYERS`, `SERVER_FORMATS`."""

SINGLE_MODULES = {
    "model": {"cloze.pipeline.text.scripts"},
    "flows": CONFIGS | {"cloze.model.hardware", "cloze.pipeline.config.engines"},
    "cloze": CONFIGS
    | {
        *(f"cloze.pipeline.readers.{name}" for name in ("compression", "documents", "structure")),
        *(f"cloze.pipeline.readers.{name}" for name in ("input_shards", "tables")),
        "cloze.pipeline.config.engines",
        "cloze.pipeline.kept_documents",
        "cloze.pipeline.runner.beam",
        *(f"cloze.pipeline.survey.{name}" for name in ("remedies", "results", "survey")),
        "cloze.pipeline.text.abbreviations",
        "cloze.pipeline.text.account",
        "cloze.pipeline.text.scripts",
        "cloze.pipeline.text.sentences",
        "cloze.pipeline.text.texts",
    },
}
"""The configurations; baselines count words as the pipeline does; plans know what this machine's
arithmetic is, and which options an engine refuses; and the face sees samples of a corpus through
its readers, cut as its splitter cuts, and its passages, shows what a survey of it
finds, and asks Beam which options it knows."""

FORBIDDEN = {
    "artifacts": {"apache_beam", "torch", "deepspeed", "prefect", "cyclopts", "rich"},
    "pipeline": {"torch", "deepspeed", "prefect", "transformers"},
    "model": {"apache_beam", "prefect", "transformers"},
    "flows": {"apache_beam", "torch", "deepspeed", "transformers"},
    "cloze": {"apache_beam", "deepspeed", "transformers"},
}
"""Libraries that would drag one part's installation into another."""

EXEMPT = {"cloze.inspection.doctor", "cloze.model.inference.onnx"}
"""The one looks for a GPU; the other, behind the extra `onnx`, traces classes of transformers."""


def imports(path: Path, *, whole: bool = True) -> Iterator[str]:
    """Dotted names that a module imports, anywhere in it or (not `whole`) at its top."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree) if whole else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def calls(path: Path) -> set[str]:
    """What a module calls, as written: `torch.load`, `self.close`."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}


def ours(path: Path) -> set[str]:
    """Our modules among a module's imports."""
    return {
        name for name in imports(path) if name in MODULES and MODULES[name].name != "__init__.py"
    }


def room_of(module: str) -> str:
    """The room beside the core that a module belongs to, or else its package."""
    beside = (room for room in BESIDE if module == room or module.startswith(f"{room}."))
    return next(beside, package_of(module))


def package_of(module: str) -> str:
    """The one of `PACKAGES` that a module is in."""
    first, second = f"{module}..".split(".")[:2]
    return second if second in LINKED else first


@pytest.mark.parametrize("package", ALLOWED)
def test_a_layer_imports_only_what_lies_below_it(package: str) -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        if room_of(module) == package
        for name in ours(path) - SINGLE_MODULES.get(package, set())
        if room_of(name) not in ALLOWED[package]
    ]
    assert wrong == []


def test_what_stands_beside_the_core_is_imported_by_no_other_room() -> None:
    assert not {name for room, names in ALLOWED.items() if room not in BESIDE for name in names} & {
        *BESIDE
    }
    assert {room_of(module) for module in MODULES} == {*PACKAGES, *BESIDE}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_layer_leaves_the_others_libraries_alone(package: str) -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        if package_of(module) == package and module not in EXEMPT
        for name in imports(path)
        if name.partition(".")[0] in FORBIDDEN[package]
    ]
    assert wrong == []


def test_modules_do_not_import_each_other_in_circles() -> None:
    graph = {module: ours(path) for module, path in MODULES.items()}
    finished: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> None:
        assert module not in path, " → ".join([*path[path.index(module) :], module])
        if module not in finished:
            path.append(module)
            for name in sorted(graph[module]):
                visit(name)
            finished.add(path.pop())

    for module in graph:
        visit(module)


def test_our_own_modules_are_imported_at_the_top() -> None:
    """Lazy imports hide the graph; only the face may, for its start, and who starts Beam."""
    lazy = [
        f"{module} imports {name} inside a function"
        for module, path in MODULES.items()
        if package_of(module) != FACE and module != "cloze.pipeline.runner.execution"
        for name in set(imports(path)) - set(imports(path, whole=False))
        if name.partition(".")[0] == FACE
    ]
    assert lazy == []


def test_init_files_are_empty_but_that_of_the_face() -> None:
    files = [path for path in MODULES.values() if path.name == "__init__.py"]
    wrong = [str(path) for path in files if path.stat().st_size and path.parent.name != FACE]
    assert wrong == []


def test_every_module_says_what_it_is_for() -> None:
    texts = {module: path.read_text("utf-8") for module, path in MODULES.items()}
    assert [name for name, text in texts.items() if text and not documented(text)] == []


def documented(text: str) -> bool:
    return bool(ast.get_docstring(ast.parse(text)))


def test_every_package_is_part_of_the_one_that_is_installed() -> None:
    """So that a user's own `model.py` never meets ours."""
    links = {path.name: path.resolve() for path in (PROJECT / FACE).iterdir() if path.is_symlink()}
    assert links == {name: PROJECT / name for name in LINKED}


def test_flow_modules_do_not_postpone_annotations() -> None:
    """`from __future__ import annotations` breaks served flows with pydantic parameters."""
    wrong = [
        module
        for module, path in MODULES.items()
        if package_of(module) == "flows" and "__future__.annotations" in imports(path)
    ]
    assert wrong == []


def test_nothing_that_is_read_can_execute_code() -> None:
    wrong = [
        f"{module}: {name}"
        for module, path in MODULES.items()
        for name in UNPICKLING & {*imports(path), *calls(path)}
    ]
    assert wrong == []


def test_nothing_runs_through_a_shell_or_is_code_of_a_model() -> None:
    """Slurm's batch script alone is one; whatever is put into it is quoted."""
    wrong = [
        f"{module}: {ast.unparse(node)}"
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and (
            ast.unparse(node.func) in SHELLS
            or {one.arg for one in node.keywords} & {"shell", "trust_remote_code"}
        )
    ]
    assert wrong == []


def test_what_is_temporary_has_an_owner_who_can_be_asked() -> None:
    """So that what a killed command left is cleared; files without names leave nothing."""
    makers = {"TemporaryDirectory", "NamedTemporaryFile", "SpooledTemporaryFile"}
    makers |= {"mkdtemp", "mkstemp", "mktemp"}
    wrong = [
        f"{module}: {name}"
        for module, path in MODULES.items()
        for name in calls(path)
        if name.rpartition(".")[2] in makers and module != "cloze.artifacts.runtime.temporary"
    ]
    assert wrong == []


def test_onnxruntime_is_imported_only_where_its_telemetry_is_off() -> None:
    wrong = [
        str(path)
        for folder in (*PACKAGES, "benchmarks")
        for path in (PROJECT / folder).rglob("*.py")
        if "import onnxruntime" in (text := path.read_text("utf-8"))
        and "ORT_DISABLE_TELEMETRY" not in text.partition("import onnxruntime")[0]
    ]
    assert wrong == []


def test_prefect_keeps_no_results() -> None:
    """They are pickles, and whoever can write them could have code run."""
    decorators = [
        ast.unparse(decorator)
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if ast.unparse(decorator).startswith(("flow(", "task("))
    ]
    assert len(decorators) >= 7
    assert [line for line in decorators if "persist_result=False" not in line] == []
