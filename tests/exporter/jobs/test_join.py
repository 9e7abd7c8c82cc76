"""The join gives one series per device, whatever happens on it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.exporter.jobs.job_node import CONTAINER, POD_UID, USERS, Proc, fleet, gpu, gpu_uuid, mig, mig_uuid

from rankscope.exporter.catalogue import BY_NAME
from rankscope.exporter.jobs.collector import JobsCollector
from rankscope.exporter.jobs.devices import bare_uuid
from rankscope.exporter.jobs.join import Claim, join
from rankscope.exporter.jobs.names import UserNames
from rankscope.exporter.jobs.party import Allocation, GpuUse, PartyIdentity, Ranks, SchedulerDevice
from rankscope.exporter.source import FleetState, Series

JOB_7 = PartyIdentity(job_id="7", user="ann", uid=1000, account="physics", partition="a100")
JOB_8 = PartyIdentity(job_id="8", user="bob", uid=1001, account="physics", partition="a100")
POD_A = PartyIdentity(namespace="ml", pod="a", container="train")
POD_B = PartyIdentity(namespace="ml", pod="b", container="train")
JOBS = {"7": JOB_7, "8": JOB_8}


def _join(*holders: PartyIdentity, uses: tuple[GpuUse, ...] = (), claims: tuple[Claim, ...] = ()) -> tuple[dict[str, str], int]:
    answer = join(holders, uses, jobs=JOBS, claims=claims, names=USERS)
    return dict(answer.labels), answer.parties


def _rank(rank: str, *, run_id: str | None = None) -> Ranks:
    return Ranks(rank=rank, local_rank=rank, world_size="8", run_id=run_id)


def test_idle_gpu_has_no_labels_and_no_jobs() -> None:
    assert _join() == ({}, 0)


def test_job_that_holds_and_uses_a_gpu_has_all_labels() -> None:
    use = GpuUse(pid=1, uid=1000, job_id="7", ranks=_rank("3", run_id="r1"), environ_read=True)

    assert _join(JOB_7, uses=(use,)) == (
        {
            "job_id": "7",
            "user": "ann",
            "account": "physics",
            "partition": "a100",
            "rank": "3",
            "local_rank": "3",
            "world_size": "8",
            "run_id": "r1",
        },
        1,
    )


def test_idle_holder_has_only_job_labels() -> None:
    assert _join(JOB_7) == ({"job_id": "7", "user": "ann", "account": "physics", "partition": "a100"}, 1)


def test_stray_process_is_counted_and_keeps_the_holder_labels() -> None:
    own = GpuUse(pid=1, uid=1000, job_id="7", ranks=_rank("3"), environ_read=True)
    stray = GpuUse(pid=2, uid=1001, ranks=_rank("0"), environ_read=True)
    alone, _ = _join(JOB_7, uses=(own,))

    assert _join(JOB_7, uses=(own, stray)) == (alone, 2)


def test_jobs_sharing_by_mps_keep_only_common_labels() -> None:
    uses = (
        GpuUse(pid=1, uid=1000, job_id="7", ranks=_rank("3"), environ_read=True),
        GpuUse(pid=2, uid=1001, job_id="8", ranks=_rank("0"), environ_read=True),
        GpuUse(pid=3, uid=0, service=True),
    )

    assert _join(JOB_7, JOB_8, uses=uses) == (
        {
            "job_id": "multiple",
            "user": "multiple",
            "account": "physics",
            "partition": "a100",
            "rank": "multiple",
            "local_rank": "multiple",
            "world_size": "8",
        },
        2,
    )


def test_label_of_only_one_job_becomes_multiple() -> None:
    assert _join(JOB_7, PartyIdentity(job_id="8", uid=1001))[0] == {
        "job_id": "multiple",
        "user": "multiple",
        "account": "multiple",
        "partition": "multiple",
    }


def test_time_slicing_pods_and_containers_are_joined() -> None:
    assert _join(POD_A, POD_B) == ({"namespace_k8s": "ml", "pod_k8s": "multiple", "container_k8s": "train"}, 2)
    two_containers = (POD_A, PartyIdentity(namespace="ml", pod="a", container="eval"))
    assert _join(*two_containers) == ({"namespace_k8s": "ml", "pod_k8s": "a", "container_k8s": "multiple"}, 1)


def test_pod_processes_are_matched_without_a_pod_uid_of_the_kubelet() -> None:
    own = GpuUse(pid=1, uid=0, pod_uid="u1", container_id="c1", ranks=_rank("2"), environ_read=True)
    other = GpuUse(pid=2, uid=0, pod_uid="u2", container_id="c2", ranks=_rank("2"), environ_read=True)

    labels, parties = _join(POD_A, uses=(own,))
    assert (labels["pod_k8s"], labels["rank"], "user" in labels, parties) == ("a", "2", False, 1)
    assert _join(POD_A, uses=(own, other))[1] == 2
    assert _join(POD_A, POD_B, uses=(own,))[1] == 2


def test_slurm_jobs_inside_a_pod_have_job_and_pod_labels() -> None:
    in_pod = GpuUse(pid=1, uid=0, pod_uid="u1", environ_read=True)
    by_id, by_sluid = replace(in_pod, job_id="5"), replace(in_pod, sluid="s5K1KKYAYG5D00", claimed_job_id="5")

    for use in (by_id, by_sluid):
        labels, parties = _join(POD_A, uses=(use,))
        assert (labels["pod_k8s"], labels["job_id"], parties) == ("a", "5", 1)
    # without a job in the cgroup, a number in the environment shows nothing
    assert "job_id" not in _join(POD_A, uses=(replace(in_pod, claimed_job_id="5"),))[0]


def test_user_of_an_unallocated_gpu_is_named_outside_containers() -> None:
    assert _join(uses=(GpuUse(pid=1, uid=1000),)) == ({"user": "ann"}, 1)
    assert _join(uses=(GpuUse(pid=1, uid=1000), GpuUse(pid=2, uid=1001))) == ({"user": "multiple"}, 2)
    assert _join(uses=(GpuUse(pid=1, uid=1000, container_id="c1"),)) == ({}, 1)
    assert _join(uses=(GpuUse(pid=1, uid=1000, job_id="9", account="a", partition="p"),)) == (
        {"job_id": "9", "user": "ann", "account": "a", "partition": "p"},
        1,
    )


def test_job_id_in_an_environment_does_not_replace_the_holder() -> None:
    use = GpuUse(pid=1, uid=1000, claimed_job_id="7", ranks=_rank("1"), environ_read=True)
    spoofed = GpuUse(pid=2, uid=1001, claimed_job_id="7", ranks=_rank("5"), environ_read=True)
    unknown = GpuUse(pid=3, uid=1001, claimed_job_id="99", environ_read=True)

    assert _join(JOB_7, uses=(use,))[1] == 1
    labels, parties = _join(JOB_7, uses=(use, spoofed))
    assert (labels["rank"], labels["user"], parties) == ("1", "ann", 2)
    assert _join(uses=(spoofed,)) == ({"user": "bob", "rank": "5", "local_rank": "5", "world_size": "8"}, 1)
    assert _join(uses=(unknown,)) == ({"job_id": "99", "user": "bob"}, 1)
    assert _join(JOB_7, uses=(unknown,))[1] == 2


def test_unreadable_process_of_the_holders_user_counts_as_holder() -> None:
    assert _join(JOB_7, uses=(GpuUse(pid=1, uid=1000),))[1] == 1


def test_spool_overrides_processes_that_open_all_devices() -> None:
    everybody = tuple(GpuUse(pid=rank, uid=1000, job_id="7", ranks=_rank(str(rank)), environ_read=True) for rank in range(8))
    assert _join(JOB_7, uses=everybody)[0]["rank"] == "multiple"

    labels, parties = _join(JOB_7, uses=everybody, claims=(Claim(1000, _rank("0", run_id="r1")),))

    assert (labels["rank"], labels["run_id"], parties) == ("0", "r1", 1)


def test_spool_files_of_another_user_are_ignored() -> None:
    use = GpuUse(pid=1, uid=1000, job_id="7", ranks=_rank("3"), environ_read=True)
    spoofed = Claim(1001, _rank("0", run_id="evil"))

    assert _join(JOB_7, uses=(use,), claims=(spoofed,)) == _join(JOB_7, uses=(use,))
    assert _join(JOB_7, claims=(spoofed,)) == _join(JOB_7)
    assert _join(JOB_7, claims=(Claim(1000, _rank("0", run_id="r1")),))[0]["run_id"] == "r1"


def test_silent_rank_is_used_only_without_another_source() -> None:
    silent = Claim(1000, _rank("3", run_id="old"), silent=True)
    unreadable, readable = GpuUse(pid=1, uid=1000, job_id="7"), GpuUse(pid=1, uid=1000, job_id="7", environ_read=True)

    assert _join(JOB_7, uses=(unreadable,), claims=(silent,))[0]["run_id"] == "old"
    assert "run_id" not in _join(JOB_7, uses=(readable,), claims=(silent,))[0]
    assert "run_id" not in _join(JOB_7, claims=(silent,))[0]


def test_spool_identifies_users_of_invisible_processes() -> None:
    assert _join(claims=(Claim(1000, _rank("3", run_id="r1")),)) == (
        {"user": "ann", "rank": "3", "local_rank": "3", "world_size": "8", "run_id": "r1"},
        1,
    )
    labels, parties = _join(claims=(Claim(1000, _rank("3", run_id="r1")), Claim(1001, _rank("0", run_id="evil"))))
    assert (labels["user"], labels["run_id"], parties) == ("multiple", "multiple", 2)


_WORDS = st.sampled_from([None, "a", "b"])
_JOB_IDS = st.sampled_from([None, "7", "8"])
_UIDS = st.sampled_from([0, 1000, 1001])
_RANKS = st.builds(Ranks, rank=_JOB_IDS, local_rank=_JOB_IDS, world_size=_JOB_IDS, run_id=_WORDS)
_UUIDS = [gpu_uuid(0), gpu_uuid(1), mig_uuid(0), mig_uuid(1), "GPU-unknown"]
_DEVICES = st.one_of(
    st.builds(SchedulerDevice, uuid=st.sampled_from(_UUIDS)),
    st.builds(SchedulerDevice, number=st.integers(0, 3), gpu_instance=st.sampled_from([None, 1, 2])),
    st.builds(SchedulerDevice, uuid=st.just(gpu_uuid(0)), gpu_instance=st.integers(0, 2), compute_instance=st.integers(0, 1)),
    st.just(SchedulerDevice()),
)
_IDENTITIES = st.one_of(
    st.builds(
        PartyIdentity, job_id=st.sampled_from(["7", "8"]), user=_WORDS, uid=st.none() | _UIDS, account=_WORDS, partition=_WORDS
    ),
    st.builds(PartyIdentity, namespace=_WORDS, pod=_WORDS, container=_WORDS),
)
_ALLOCATIONS = st.lists(st.builds(Allocation, _IDENTITIES, st.lists(_DEVICES, max_size=3).map(tuple)), max_size=5)
_USES = st.builds(
    GpuUse,
    pid=st.just(0),
    uid=_UIDS,
    job_id=_JOB_IDS,
    pod_uid=st.sampled_from([None, POD_UID]),
    container_id=st.sampled_from([None, CONTAINER]),
    claimed_job_id=_JOB_IDS,
    account=_WORDS,
    ranks=_RANKS,
    environ_read=st.booleans(),
    service=st.booleans(),
)
_NAMED_POD = st.builds(
    GpuUse, pid=st.just(0), uid=_UIDS, pod_uid=_WORDS, namespace=st.just("ml"), pod=st.sampled_from(["a", "b"])
)
_CLAIMS = st.lists(st.builds(Claim, _UIDS, _RANKS, st.booleans()), max_size=3)


@st.composite
def _fleets(draw: st.DrawFn) -> FleetState:
    migs = draw(st.sampled_from([(), (mig(0, 1),), (mig(0, 1), mig(1, 2))]))
    pids = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["", *(item.uuid for item in migs)])), max_size=4)
    return fleet(
        gpu(0, pids=draw(st.none() | pids), migs=migs, up=draw(st.booleans())),
        gpu(1, pids=draw(st.none() | st.lists(st.integers(1, 4), max_size=3)), up=draw(st.booleans())),
    )


@pytest.mark.slow
@given(
    st.lists(_fleets(), min_size=1, max_size=2),
    _ALLOCATIONS,
    st.lists(_USES | _NAMED_POD, max_size=4),
    st.dictionaries(st.sampled_from(_UUIDS), _CLAIMS),
)
def test_every_device_has_at_most_one_series(
    states: list[FleetState], allocations: list[Allocation], uses: list[GpuUse], claims: dict[str, list[Claim]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        jobs = JobsCollector(
            slurm_dir=Path(folder) / "none", proc=Proc(Path(folder) / "proc").path, user_names=UserNames(lambda uid: USERS[uid])
        )
        jobs._sources[0]._call = lambda: tuple(allocations)
        jobs._processes.read = lambda listed, *, now_s=None: {pid: uses[pid - 1] for pid in listed if pid <= len(uses)}  # type: ignore[method-assign]
        spooled = {bare_uuid(uuid): claim for uuid, claim in claims.items()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rankscope.exporter.jobs.collector.claims_of", lambda _sample: spooled)
            for state in states:
                _check(jobs.read(state))


def _check(series: tuple[Series, ...]) -> None:
    seen = set()
    for sample in series:
        labels = dict(sample.labels)
        allowed = BY_NAME[sample.metric].labels
        # at most one series per uuid, or per tenant; labels in the catalogue's order, without duplicates or empty values
        key = sample.labels if sample.metric.startswith("gpu_tenant_") else labels.get("uuid", labels.get("source"))
        assert (sample.metric, key) not in seen
        seen.add((sample.metric, key))
        assert [name for name in allowed if name in labels] == [name for name, _ in sample.labels]
        assert all(labels.values())
    infos = {dict(sample.labels)["uuid"] for sample in series if sample.metric == "gpu_job_info"}
    counted = {dict(sample.labels)["uuid"] for sample in series if sample.metric == "gpu_jobs" and sample.value > 0}
    assert infos == counted
