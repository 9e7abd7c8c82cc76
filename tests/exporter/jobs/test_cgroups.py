"""Control groups and environments of processes, as the various launchers and runtimes set them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.exporter.jobs.cgroups import CgroupIdentity, parse_cgroups
from rankscope.exporter.jobs.environment import ranks_of, variables
from rankscope.exporter.jobs.party import Ranks

UID = "6f1b2c3d-0000-4444-8888-abcdefabcdef"
UNDER = UID.replace("-", "_")
ONE, TWO = "0123456789abcdef" * 4, "fedcba9876543210" * 4
SLUID = "s5K1KKYAYG5D00"
IN_POD = CgroupIdentity(pod_uid=UID, container_id=ONE)


@pytest.mark.parametrize(
    ("text", "identity"),
    [
        # Kubernetes: version 2 and 1, systemd and cgroupfs, containerd, CRI-O, Docker
        (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice/cri-containerd-{ONE}.scope", IN_POD),
        (f"0::/kubepods.slice/kubepods-pod{UNDER}.slice/crio-{ONE}.scope/container", IN_POD),
        (f"12:devices:/kubepods/besteffort/pod{UID}/{ONE}\n1:name=systemd:/kubepods/besteffort/pod{UID}/{ONE}", IN_POD),
        (f"4:memory:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDER}.slice/docker-{ONE}.scope", IN_POD),
        (f"0::/system.slice/containerd.service/kubepods-burstable-pod{UNDER}.slice:cri-containerd:{ONE}", IN_POD),
        # a reader in its own cgroup namespace
        (f"0::/../../kubepods-burstable-pod{UNDER}.slice/cri-containerd-{ONE}.scope", IN_POD),
        (f"0::/../cri-containerd-{ONE}.scope", CgroupIdentity(container_id=ONE)),
        # a static pod has a hash; a node that is itself a container; a container in a pod's container
        (f"0::/kubepods/pod{'a' * 32}/{ONE}", CgroupIdentity(pod_uid="a" * 32, container_id=ONE)),
        (f"0::/docker/{TWO}/kubelet.slice/kubelet-kubepods-pod{UNDER}.slice/cri-containerd-{ONE}.scope", IN_POD),
        (f"0::/kubepods/pod{UID}/{TWO}/kubepods/pod{'b' * 32}/{ONE}", IN_POD),
        # containers without Kubernetes
        (f"0::/system.slice/docker-{ONE}.scope", CgroupIdentity(container_id=ONE)),
        (f"9:cpuset:/docker/{ONE}", CgroupIdentity(container_id=ONE)),
        (f"0::/machine.slice/libpod-{ONE}.scope/container", CgroupIdentity(container_id=ONE)),
        # Slurm: version 1, version 2, several slurmd on a node, a namespace, in a pod
        (
            "11:devices:/slurm/uid_1000/job_123/step_0/task_0\n1:name=systemd:/system.slice/slurmd.service",
            CgroupIdentity(job_id="123"),
        ),
        ("11:devices:/slurm_node1/uid_1000/job_123/step_batch", CgroupIdentity(job_id="123")),
        ("0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0", CgroupIdentity(job_id="123")),
        ("0::/system.slice/node1_slurmstepd.scope/job_123/step_extern/user", CgroupIdentity(job_id="123")),
        ("0::/../job_123/step_0/user/task_1", CgroupIdentity(job_id="123")),
        (f"0::/kubepods/pod{UID}/{ONE}/system.slice/slurmstepd.scope/job_5/step_0", CgroupIdentity("5", UID, ONE)),
        # Slurm 26.05 and later: the SLUID, also for a reader in the scope's own namespace, and with CgroupJobIdPaths=yes
        (f"0::/system.slice/slurmstepd.scope/{SLUID}/step_0/user/task_0", CgroupIdentity(sluid=SLUID)),
        (f"0::/system.slice/node1_slurmstepd.scope/{SLUID}/step_extern/user/task_special", CgroupIdentity(sluid=SLUID)),
        (f"0::/../{SLUID}/step_batch/user/task_0", CgroupIdentity(sluid=SLUID)),
        (f"0::/kubepods/pod{UID}/{ONE}/system.slice/slurmstepd.scope/{SLUID}/step_0", CgroupIdentity(None, UID, ONE, SLUID)),
        # paths that users can create themselves
        (f"0::/system.slice/slurmstepd.scope/{SLUID}/step_0/user/task_0/slurm/job_999", CgroupIdentity(sluid=SLUID)),
        (f"0::/system.slice/slurmstepd.scope/job_123/step_0/user/slurmstepd.scope/{SLUID}", CgroupIdentity(job_id="123")),
        (f"0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/{SLUID}/step_0", CgroupIdentity()),
        (f"0::/system.slice/my.service/{SLUID}", CgroupIdentity()),
        # no SLUIDs
        ("0::/system.slice/slurmstepd.scope/system", CgroupIdentity()),
        (f"0::/system.slice/slurmstepd.scope/{SLUID.lower()}/step_0", CgroupIdentity()),
        (
            "0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0/slurmstepd.scope/job_999/step_0",
            CgroupIdentity(job_id="123"),
        ),
        (f"0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_999/step_0/{ONE}", CgroupIdentity()),
        ("0::/system.slice/my.service/job_999/step_0", CgroupIdentity()),
        ("0::/", CgroupIdentity()),
        ("", CgroupIdentity()),
        ("nonsense\n0:\n::", CgroupIdentity()),
    ],
)
def test_jobs_pods_and_containers_are_found_in_every_layout(text: str, identity: CgroupIdentity) -> None:
    assert parse_cgroups(text) == identity


@given(st.text(alphabet=st.sampled_from("0123456789abcdef:/_.-podjslurmtei\n"), max_size=300))
def test_arbitrary_cgroup_text_is_parsed_without_error(text: str) -> None:
    identity = parse_cgroups(text)

    assert identity.job_id is None or identity.job_id.isdecimal()
    assert identity.container_id is None or len(identity.container_id) == 64


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "16"}, Ranks(rank="3", local_rank="1", world_size="16")),
        ({"RANK": "-1", "WORLD_SIZE": "many", "LOCAL_RANK": "007"}, Ranks(local_rank="7")),
        ({"RANK": "٣", "WORLD_SIZE": "9" * 30}, Ranks()),
        ({"TORCHELASTIC_RUN_ID": "none"}, Ranks()),
        ({"TORCHELASTIC_RUN_ID": "t1"}, Ranks(run_id="t1")),
        ({"TORCHELASTIC_RUN_ID": "t1", "RANKSCOPE_RUN_ID": "r1"}, Ranks(run_id="r1")),
        ({"RANKSCOPE_RUN_ID": 'r"1\n'}, Ranks()),
        ({"RANKSCOPE_RUN_ID": "r" * 200}, Ranks()),
    ],
)
def test_ranks_and_runs_come_from_the_environment(environ: dict[str, str], ranks: Ranks) -> None:
    assert ranks_of(environ) == ranks


def test_truncated_variable_is_ignored() -> None:
    assert variables(b"RANK=1\0=odd\0nothing\0RANK=2\0WORLD_SIZE=12") == {"RANK": "1", "": "odd"}
    assert variables(b"RANK=1") == {}
