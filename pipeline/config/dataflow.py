"""What the Dataflow service refuses, most of it minutes after a job was sent, in our words.

In:  Beam's options for Dataflow, by name.
Out: nothing, or a `UsageError` with the option, its value, what was expected, and the remedy.

The rules are those of Google's reference of the Dataflow and Compute APIs and of Beam 2.77's
`PipelineOptionsValidator`. Whether a project, region or machine type exists is not asked.
"""

import os
import re
from collections.abc import Mapping
from typing import NoReturn

from cloze.artifacts.errors import UsageError

Options = Mapping[str, tuple[str, ...]]

PROJECT = re.compile(r"([a-z0-9.-]+\.[a-z]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
REGION = re.compile(
    r"(africa|asia|australia|europe|me|northamerica|southamerica|us)"
    r"-(north|south|east|west|central|northeast|northwest|southeast|southwest)\d{1,2}"
)
ZONE = re.compile(rf"({REGION.pattern})-[a-z]")
JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,1022}[a-z0-9])?")
LABEL_KEY = re.compile(r"[a-z][-_a-z0-9]{0,62}")
LABEL_VALUE = re.compile(r"[-_a-z0-9]{0,63}")
MOST_LABELS = 64
BUCKET = re.compile(r"[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9]")
IMAGE = re.compile(
    r"(?P<registry>[a-z0-9-]+(\.[a-z0-9-]+)+)(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+"
    r"(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
MACHINE_TYPE = re.compile(
    r"[a-z]\d+[a-z]*-(standard|highmem|highcpu|megamem|ultramem|hypermem|custom)(-\d+){1,2}"
    r"(-ext|-lssd)?|custom-\d+-\d+(-ext)?|[am]\d+-\w+-\d+g?"
)
SHARED_CORE = re.compile(r"f1-micro|g1-small|e2-(micro|small|medium)")
ARM = re.compile(r"(t2a|c4a|n4a)-")
ACCOUNT = re.compile(r"[\w.-]+@([\w-]+\.iam|developer|[\w-]+\.google)\.gserviceaccount\.com")
SUBNETWORK = re.compile(
    r"(https://www\.googleapis\.com/compute/v1/projects/[^/]+/)?regions/(?P<region>[^/]+)"
    r"/subnetworks/[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
)
SMALLEST_DISK = 30
"""Gigabytes: the images of the workers alone need most of it."""


def check_dataflow(options: Options, *, workspace: str) -> None:
    """Refuse options with which the service would refuse the job or start no worker."""
    for check in (_project, _region, _buckets, _names, _image, _workers, _network):
        check(options)
    if not workspace.startswith("gs://"):
        _refuse("workspace", workspace, "Dataflow's workers write there", "a folder in a bucket, "
                "gs://BUCKET/runs")  # fmt: skip


def _refuse(option: str, value: str, why: str, expected: str) -> NoReturn:
    shown = f"{option} = {value}" if value else f"{option} is missing"
    raise UsageError(f"DataflowRunner: {shown}: {why}; expected {expected}")


def _one(options: Options, *names: str) -> str:
    """The last value of an option, under the first of its names that is given."""
    return next((options[name][-1] for name in names if options.get(name)), "")


def _project(options: Options) -> None:
    project = _one(options, "project")
    expected = "the project's id, as `gcloud projects list` prints it: my-project-123"
    if not project:
        _refuse("project", "", "jobs are run and paid by a project", expected)
    if project.isdigit():
        _refuse("project", project, "that is the project's number", expected)
    if not PROJECT.fullmatch(project):
        why = "an id has 6 to 30 lower-case letters, digits and dashes, a letter first"
        _refuse("project", project, why, expected)


def _region(options: Options) -> None:
    region, zone = _one(options, "region"), _one(options, "worker_zone", "zone")
    expected = "a region such as us-central1 or europe-west3"
    if not region:
        _refuse("region", "", "the service has no default", expected)
    if ZONE.fullmatch(region):
        _refuse("region", region, "that is a zone", f"its region, {region[:-2]}")
    if not REGION.fullmatch(region):
        _refuse("region", region, "not a name of a region", expected)
    if zone and not ZONE.fullmatch(zone):
        _refuse("worker_zone", zone, "not a name of a zone", f"one such as {region}-b")
    if zone and _one(options, "worker_region"):
        _refuse("worker_zone", zone, "worker_region is given too", "one of them")


def _buckets(options: Options) -> None:
    if not _one(options, "temp_location", "staging_location"):
        expected = "a folder in a bucket, gs://BUCKET/temp"
        _refuse("temp_location", "", "programs are staged and results kept there", expected)
    for name in ("temp_location", "staging_location", "template_location"):
        place = _one(options, name)
        # Beam or the service would find each of these out later, in words of its own.
        scheme, _, rest = place.partition("://")
        bucket, slash, folder = rest.partition("/")
        expected = f"a folder in a bucket, gs://BUCKET/{name.partition('_')[0]}"
        if place and scheme != "gs":
            _refuse(name, place, "the service reads only Google Cloud Storage", expected)
        if place and not BUCKET.fullmatch(bucket):
            why = "a bucket's name has 3 to 63 lower-case letters, digits, dashes, dots"
            _refuse(name, place, why, expected)
        if place and not (slash and folder.strip("/")):
            _refuse(name, place, "a bucket without a folder", expected)


def _names(options: Options) -> None:
    if (name := _one(options, "job_name")) and not JOB_NAME.fullmatch(name):
        why = "lower-case letters, digits and dashes, a letter first, no dash at the end"
        _refuse("job_name", name, why, f"for example {_slug(name)}")
    labels = [*options.get("labels", ()), *options.get("label", ())]
    for label in labels:
        key, assigned, value = label.partition("=")
        if not (assigned and LABEL_KEY.fullmatch(key) and LABEL_VALUE.fullmatch(value)):
            why = "keys and values have up to 63 lower-case letters, digits, - and _"
            _refuse("labels", label, why, "key=value, the key with a letter first")
    if len(labels) > MOST_LABELS:
        _refuse("labels", f"{len(labels)} of them", "too many", f"at most {MOST_LABELS}")
    account = _one(options, "service_account_email")
    if account and not ACCOUNT.fullmatch(account):
        expected = "NAME@PROJECT.iam.gserviceaccount.com"
        _refuse("service_account_email", account, "not a service account's address", expected)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789") or "cloze"


def _image(options: Options) -> None:
    image = _one(options, "sdk_container_image", "worker_harness_container_image")
    location = _one(options, "sdk_location")
    brings_us = ("setup_file", "extra_packages", "extra_package", "requirements_file")
    expected = "REGION-docker.pkg.dev/PROJECT/REPOSITORY/cloze-beam-worker:TAG"
    if not image and not any(options.get(name) for name in brings_us):
        why = "the service's own image has no Cloze in it, so no worker could run a task"
        _refuse("sdk_container_image", "", why, f"{expected} (infra/images)")
    if image and not IMAGE.fullmatch(image):
        _refuse("sdk_container_image", image, "no image in a registry", expected)
    for name in ("setup_file", "requirements_file"):
        if (file := _one(options, name)) and not os.path.isfile(file):
            _refuse(name, file, "no such file", "a file of this machine")
    _sdk(location)


def _sdk(location: str) -> None:
    """Beam's own package, if not that of the image; `container` and `default` mean the image's."""
    expected = '"container", or Beam\'s package: a .tar.gz or apache_beam-….whl'
    if location in ("", "default", "container"):
        return
    name = location.rpartition("/")[2]
    if name.endswith(".whl") and not name.startswith("apache_beam"):
        _refuse("sdk_location", location, "a wheel of something else", expected)
    if not location.startswith(("gs://", "http://", "https://")) and not os.path.exists(location):
        _refuse("sdk_location", location, "no such file", expected)


def _number(options: Options, name: str, *, least: int) -> int | None:
    value = _one(options, name)
    if not value:
        return None
    if not value.isdigit() or int(value) < least:
        _refuse(name, value, "too few or not a number", f"a whole number from {least}")
    return int(value)


def _workers(options: Options) -> None:
    kind = _one(options, "machine_type", "worker_machine_type")
    expected = "one such as n2-standard-4 or e2-highmem-8"
    if kind and SHARED_CORE.fullmatch(kind):
        _refuse("machine_type", kind, "the service does not support shared cores", expected)
    if kind and not MACHINE_TYPE.fullmatch(kind):
        _refuse("machine_type", kind, "not a name of a machine type", expected)
    if ARM.match(kind):
        _refuse("machine_type", kind, "the image of workers is for x86-64", expected)
    first = _number(options, "num_workers", least=1)
    most = _number(options, "max_num_workers", least=1)
    if first and most and first > most:
        _refuse("num_workers", str(first), f"max_num_workers is {most}", f"at most {most}")
    _number(options, "disk_size_gb", least=SMALLEST_DISK)
    _one_of(options, "autoscaling_algorithm", "NONE", "THROUGHPUT_BASED")
    _one_of(options, "flexrs_goal", "COST_OPTIMIZED", "SPEED_OPTIMIZED")


def _one_of(options: Options, name: str, *allowed: str) -> None:
    value = _one(options, name)
    if value and value not in allowed:
        _refuse(name, value, "not a value of it", " or ".join(allowed))


def _network(options: Options) -> None:
    subnetwork, region = _one(options, "subnetwork"), _one(options, "region")
    if not subnetwork:
        return
    found = SUBNETWORK.fullmatch(subnetwork)
    expected = f"regions/{region}/subnetworks/NAME"
    if not found:
        _refuse("subnetwork", subnetwork, "a name alone is not enough", expected)
    if found["region"] != region:
        _refuse("subnetwork", subnetwork, f"the job is in {region}", expected)
