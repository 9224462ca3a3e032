"""Where in a cluster a process runs: its container, Kubernetes pod and Slurm job, as far as /proc
tells.

    read_cluster(Path("/proc/4242"))    # Cluster(slurm_job="77", slurm_step="0", ...)

The cgroups have the numbers: of containers and pods by cgroups of versions 1 and 2, of Slurm

    /slurm/uid_1000/job_77/step_0/task_0                                version 1
    /system.slice/node1_slurmstepd.scope/job_77/step_0/user/task_0      version 2

The names of a pod are in no cgroup. They are what the process itself was given: by the variables
that a pod's author takes from the downward API, by OpenTelemetry's, and by the file with the
namespace that each service account has. What is in none of them is unknown. The variables of
another user's process cannot be read.

Source of the paths: Slurm's documents of cgroup/v1 and cgroup/v2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

_MAX_READ: Final = 4096
# A pod has some variables for each service of its namespace.
_MAX_VARIABLES: Final = 256 * 1024
_MAX_NAME: Final = 253  # of a Kubernetes object
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_CONTAINER: Final = re.compile(rb"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?=/|$)", re.MULTILINE)
_POD: Final = re.compile(rb"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})")
_SLURM: Final = re.compile(
    rb"/(?:[\w.-]+_)?slurm[^\n]*?/job_([0-9]+)(?:/step_([0-9]+(?:[+][0-9]+)?|[a-z]+))?(?=/|$)",
    re.MULTILINE,
)
_SERVICE_ACCOUNT: Final = "root/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_OTEL: Final = "OTEL_RESOURCE_ATTRIBUTES"
# By what they are, in the order in which they count.
_POD_NAMES: Final = ("POD_NAME", "K8S_POD_NAME", "MY_POD_NAME")
_NAMESPACES: Final = ("POD_NAMESPACE", "K8S_POD_NAMESPACE", "K8S_NAMESPACE", "MY_POD_NAMESPACE")
_CONTAINERS: Final = ("CONTAINER_NAME", "K8S_CONTAINER_NAME", "MY_CONTAINER_NAME")
_POD_UIDS: Final = ("POD_UID", "K8S_POD_UID", "MY_POD_UID")
_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KUBERNETES: Final = "KUBERNETES_SERVICE_HOST"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where a process runs; None is unknown.

    Attributes:
        container: the container's ID.
        pod: the pod's UID.
        pod_name, pod_namespace, container_name: as in Kubernetes.
        slurm_job: the job's number; each task of an array has one of its own.
        slurm_step: "0", "0+1" (of a heterogeneous job), "batch", "extern" or "interactive".
        slurm_array: the array's job and the task in it, "70_4".
    """

    container: str | None = None
    pod: str | None = None
    pod_name: str | None = None
    pod_namespace: str | None = None
    container_name: str | None = None
    slurm_job: str | None = None
    slurm_step: str | None = None
    slurm_array: str | None = None


def read_cluster(directory: Path) -> Cluster:
    """Where a process runs.

    directory: the process's in /proc.
    """
    groups = read_file(directory / "cgroup", _MAX_READ)
    container, pod = _find(_CONTAINER, groups), _find(_POD, groups)
    slurm = _SLURM.search(groups)
    is_slurm = slurm is not None
    variables = _read_variables(directory)
    if pod is None and _KUBERNETES in variables:
        pod = _first(variables, _POD_UIDS, _UID)
    is_kubernetes = pod is not None or _KUBERNETES in variables
    return Cluster(
        container=container,
        pod=None if pod is None else pod.replace("_", "-"),
        pod_name=_first(variables, _POD_NAMES) if is_kubernetes else None,
        pod_namespace=_namespace(directory, variables) if is_kubernetes else None,
        container_name=_first(variables, _CONTAINERS) if is_kubernetes else None,
        slurm_job=None if slurm is None else slurm[1].decode(),
        slurm_step=None if slurm is None or slurm[2] is None else slurm[2].decode(),
        slurm_array=_array(variables) if is_slurm else None,
    )


def _namespace(directory: Path, variables: Mapping[str, str]) -> str | None:
    name = _first(variables, _NAMESPACES)
    if name is None:
        text = (
            read_file(directory / _SERVICE_ACCOUNT, _MAX_NAME + 1).decode(errors="replace").strip()
        )
        name = text if _is_name(text) else None
    return name


def _array(variables: Mapping[str, str]) -> str | None:
    """The task of an array, of whose numbers the cgroup has none."""
    words = variables.get("SLURM_ARRAY_JOB_ID", ""), variables.get("SLURM_ARRAY_TASK_ID", "")
    return "_".join(words) if all(word.isdecimal() for word in words) else None


def _first(
    variables: Mapping[str, str], names: tuple[str, ...], pattern: re.Pattern[str] = _NAME
) -> str | None:
    values = (variables.get(name, "") for name in names)
    return next((value for value in values if _is_name(value, pattern)), None)


def _is_name(text: str, pattern: re.Pattern[str] = _NAME) -> bool:
    return len(text) <= _MAX_NAME and pattern.fullmatch(text) is not None


_OTEL_NAMES: Final = {
    "k8s.pod.name": _POD_NAMES[0],
    "k8s.namespace.name": _NAMESPACES[0],
    "k8s.container.name": _CONTAINERS[0],
    "k8s.pod.uid": _POD_UIDS[0],
}
_WANTED: Final = frozenset(
    {*_POD_NAMES, *_NAMESPACES, *_CONTAINERS, *_POD_UIDS, _KUBERNETES, _OTEL,
     "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"}
)  # fmt: skip


def _read_variables(directory: Path) -> dict[str, str]:
    """The process's variables that are asked about here; all others are left."""
    variables = {}
    for entry in read_file(directory / "environ", _MAX_VARIABLES).split(b"\0"):
        name, _, value = entry.decode(errors="replace").partition("=")
        if name in _WANTED:
            variables[name] = value
    for pair in variables.pop(_OTEL, "").split(","):
        key, _, value = pair.partition("=")
        if key.strip() in _OTEL_NAMES:
            variables.setdefault(_OTEL_NAMES[key.strip()], unquote(value.strip()))
    return variables


def _find(pattern: re.Pattern[bytes], text: bytes) -> str | None:
    match = pattern.search(text)
    return None if match is None else match[1].decode()


def read_file(path: Path, size: int) -> bytes:
    """The first bytes of a file; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""
