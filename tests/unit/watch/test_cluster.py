"""Where in a cluster a process runs, from made-up directories of /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from ullage.operate.watch.nvml.cluster import Cluster, read_cluster

ID = "8f" * 32
UID = "0d5e9cd8-5a2c-4f4e-9c1e-0123456789ab"
IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.fixture
def process(tmp_path: Path) -> Path:
    """The directory of a process of which nothing is known."""
    return tmp_path


def make(process: Path, cgroup: str = "0::/\n", **variables: str) -> Cluster:
    """What is known of a process with these cgroups and variables."""
    (process / "cgroup").write_text(cgroup)
    entries = {"HOME": "/home/ada", "API_KEY": "a secret", **variables}
    text = "".join(f"{name}={value}\0" for name, value in entries.items())
    (process / "environ").write_bytes(text.encode())
    return read_cluster(process)


@pytest.mark.parametrize(
    ("cgroup", "job", "step"),
    [
        ("4:memory:/slurm/uid_1000/job_77/step_0/task_0\n1:cpu:/\n", "77", "0"),
        ("9:freezer:/slurm_node1/uid_0/job_77/step_batch\n", "77", "batch"),
        ("0::/system.slice/slurmstepd.scope/job_77/step_3/user/task_0\n", "77", "3"),
        ("0::/system.slice/node-1_slurmstepd.scope/job_77/step_0+1/user/task_2\n", "77", "0+1"),
        ("0::/system.slice/slurmstepd.scope/job_77/step_extern/user\n", "77", "extern"),
        ("0::/system.slice/slurmstepd.scope/job_77/step_interactive/user/task_0", "77",
         "interactive"),
        ("4:memory:/slurm/uid_1000/job_77\n", "77", None),
        ("0::/user.slice/slurm.service\n", None, None),
        ("0::/system.slice/slurmstepd.scope/system\n", None, None),
        ("0::/other/job_77/step_0\n", None, None),
    ],
)  # fmt: skip
def test_slurm_jobs_and_steps(process: Path, cgroup: str, job: str, step: str) -> None:
    assert make(process, cgroup) == Cluster(slurm_job=job, slurm_step=step)


def test_the_task_of_an_array_is_in_the_variables(process: Path) -> None:
    array = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "4"}
    cgroup = "0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0\n"
    assert make(process, cgroup, **array).slurm_array == "70_4"
    assert make(process, cgroup, **{**array, "SLURM_ARRAY_TASK_ID": "x"}).slurm_array is None
    assert make(process, "0::/user.slice\n", **array).slurm_array is None, "a shell of the job's"


def test_the_pods_names_are_those_that_the_process_was_given(process: Path) -> None:
    slice_ = f"kubepods-pod{UID.replace('-', '_')}.slice"
    cgroup = f"0::/kubepods.slice/{slice_}/cri-containerd-{ID}.scope\n"
    names = {"POD_NAME": "train-0", "POD_NAMESPACE": "research", "CONTAINER_NAME": "main"}
    assert make(process, cgroup, **names) == Cluster(ID, UID, "train-0", "research", "main")
    assert make(process, cgroup) == Cluster(ID, UID), "what is not known is left out"


def test_opentelemetrys_attributes_have_the_names_too(process: Path) -> None:
    text = f"service.name=x, k8s.pod.name=train%2D0,k8s.namespace.name=research,k8s.pod.uid={UID},"
    known = make(process, OTEL_RESOURCE_ATTRIBUTES=text + "k8s.container.name=main", **IN_A_POD)
    assert known == Cluster(None, UID, "train-0", "research", "main")


def test_inside_a_container_the_cgroup_has_nothing(process: Path) -> None:
    """Its own cgroup is the root of its namespace."""
    account = process / "root/var/run/secrets/kubernetes.io/serviceaccount"
    account.mkdir(parents=True)
    (account / "namespace").write_text("research\n")
    known = make(process, "0::/\n", POD_UID=UID, HOSTNAME="train-0", **IN_A_POD)
    assert known == Cluster(pod=UID, pod_namespace="research")


@pytest.mark.parametrize("value", ["Train 0", "a\x1b[31m", "x" * 300, ""])
def test_what_cannot_be_a_name_is_none(process: Path, value: str) -> None:
    assert make(process, POD_NAME=value, POD_UID=value, **IN_A_POD) == Cluster()


def test_outside_kubernetes_such_variables_mean_nothing(process: Path) -> None:
    assert make(process, POD_NAME="train-0", POD_NAMESPACE="research") == Cluster()


def test_a_process_that_may_not_be_read_is_unknown(process: Path) -> None:
    assert read_cluster(process / "none") == Cluster()
