"""What an engine would refuse or never find, refused before anything runs.

In:  the machine file's Beam runner and options, the options after `--`, and what workers will read.
Out: nothing, or a `UsageError` that names the option, what it is, and what was expected.

Only the text of the options is looked at; nothing is asked of a service.
"""

import re
import sys
from collections.abc import Mapping, Sequence

from cloze.artifacts.errors import UsageError
from cloze.pipeline.config.dataflow import check_dataflow
from cloze.pipeline.config.settings import PipelineMachine

PLACEHOLDER = re.compile(r"\b(MY_[A-Z]+|YOUR_[A-Z]+|my-bucket|(?:WORKER_)?HOST)\b")
"""What our machine files have where only their user knows the name."""

LOOPBACK = re.compile(r"^(?:\w+://)?(localhost|127\.\d+\.\d+\.\d+|\[?::1\]?)(:\d+)?(/|$)")

PYTHON_IN_IMAGE = re.compile(r"(?:python|py)-?(3)\.?(\d+)")
"""How tags and names of images say which Python they have: beam_python3.11_sdk, 0.1.0-py3.11."""


def given_options(machine: PipelineMachine, words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The values of each option by name, those of the command line instead of the machine's.

    A flag has the value "true"; of an option given several times all values are kept.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, value in machine.options.items():
        values = value if isinstance(value, tuple) else (value,)
        if values != (False,):
            found[name] = tuple("true" if one is True else str(one) for one in values)
    typed: dict[str, tuple[str, ...]] = {}
    names = [number for number, word in enumerate(words) if word.startswith("--") and word != "--"]
    for number, following in zip(names, [*names, len(words)][1:], strict=True):
        name, assigned, value = words[number].removeprefix("--").partition("=")
        # As Beam's parser reads them: without `=`, an option's values reach up to the next option.
        values = (value,) if assigned else tuple(words[number + 1 : following]) or ("true",)
        typed[name] = (*typed.get(name, ()), *values)
    return {**found, **typed}


def refuse_placeholders(values: Mapping[str, str], *, source: str) -> None:
    """Refuse what was left as it stands in an example; `source` says where to replace it."""
    for place, value in values.items():
        if left := PLACEHOLDER.search(value):
            raise UsageError(
                f"{place} = {value}: {left[0]} is a placeholder; put the real name there, {source}"
            )


def check_engine(
    machine: PipelineMachine,
    words: Sequence[str],
    *,
    workspace: str,
    files: Mapping[str, str],
) -> None:
    """Refuse options that cannot work, and files that the engine's workers cannot reach.

    `words`: the options after `--`; `files`: by field of the configuration, what workers read.
    """
    if machine.runner == "local":
        return
    options = given_options(machine, words)
    refuse_placeholders(
        {name: value for name, values in options.items() for value in values},
        source="in [pipeline.options] of the machine file or after --",
    )
    if options.get("flink_master") and any(options.get("job_endpoint", ())):
        raise UsageError(
            f"flink_master = {options['flink_master'][0]} has no effect beside job_endpoint = "
            f"{options['job_endpoint'][0]}: the job goes to that job server, which was started "
            "with its cluster's address; remove one of them (after --: --job_endpoint= )"
        )
    if machine.runner == "DataflowRunner":
        check_dataflow(options, workspace=workspace)
    _check_reach(machine.runner, options, workspace=workspace, files=files)
    _check_python(options)


def _check_reach(
    runner: str,
    options: Mapping[str, tuple[str, ...]],
    *,
    workspace: str,
    files: Mapping[str, str],
) -> None:
    where = workers_elsewhere(runner, options)
    if not where:
        return
    # Workers of a cluster of one's own may share a disk with us; Dataflow's, and those in
    # containers, see none of ours.
    shared = runner not in ("DataflowRunner",) and "DOCKER" not in options.get(
        "environment_type", ()
    )
    if _is_here(workspace):
        if shared:
            return  # then all hosts share a disk, which may have the corpus too
        raise UsageError(
            f"workspace = {workspace}: {where} cannot reach a folder of this machine; give a "
            "bucket, for example --workspace gs://BUCKET/runs"
        )
    for place, path in files.items():
        if path and _is_here(path) and not (shared and path.startswith("file://")):
            escape = ", or file:///… if every worker's host has it there" if shared else ""
            raise UsageError(
                f"{place} = {path}: {where} cannot reach a file of this machine; copy it to a "
                f"store that they can read, for example beside the workspace {workspace}, and "
                f"give its URL{escape}"
            )


def _is_here(path: str) -> bool:
    """Whether it is no URL; the packages that read one may be missing here."""
    return "://" not in path or path.startswith("file://")


def workers_elsewhere(runner: str, options: Mapping[str, tuple[str, ...]]) -> str:
    """The engine's workers, in words, if they are not on this machine; else empty."""
    if runner == "DataflowRunner":
        return "Dataflow's workers"
    addresses: tuple[str, ...] = (
        ("dask_client_address",) if runner == "DaskRunner" else ("job_endpoint",)
    )
    # The address of a pool of workers, which the job server does not start.
    if "EXTERNAL" in options.get("environment_type", ()):
        addresses = (*addresses, "environment_config")
    for name in addresses:
        for address in options.get(name, ()):
            if address and address != "embed" and not LOOPBACK.match(address):
                return f"the workers of {name} = {address}"
    if "DOCKER" in options.get("environment_type", ()):
        return "workers in containers (environment_type = DOCKER)"
    return ""


def _check_python(options: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse an image whose name says that it has another Python than this one.

    Functions are sent as bytecode, which another version cannot run; an image that does not say is
    found out by its first worker (cloze.pipeline.runner.engine_job).
    """
    # Under the one name or the other, as engines have it.
    images = [*options.get("sdk_container_image", ())]
    if "DOCKER" in options.get("environment_type", ()):
        images += options.get("environment_config", ())
    for image in images:
        found = PYTHON_IN_IMAGE.search(image)
        if found and (int(found[1]), int(found[2])) != sys.version_info[:2]:
            ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
            raise UsageError(
                f"{image} has Python {found[1]}.{found[2]}, this environment {ours}: its workers "
                f"could not run what is sent to them; build the image with --build-arg "
                f"PYTHON={ours}, or use an environment with Python {found[1]}.{found[2]}"
            )
