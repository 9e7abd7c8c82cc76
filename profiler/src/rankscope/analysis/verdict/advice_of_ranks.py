"""Advice about ranks and hosts that make the others wait: physical reasons first, then causes."""

from __future__ import annotations

from typing import Final

import msgspec

from rankscope.analysis.verdict.advice_rows import (
    COLLECT,
    DUMP,
    EVALUATE_LESS,
    FEWER_THREADS,
    LINKS_ALONE,
    LOAD_AHEAD,
    SAVE_ASIDE,
    SEGMENTS,
    Row,
    for_host,
    for_rank,
    for_verdict,
)

_RECORD_ALL: Final = "Record every step, with phases and CPU time of rank {rank}: {record}"

_WITHOUT: Final = "Start the job again without {without}; if no rank is slow then, replace %s"

_DRAIN: Final = 'Take the host out: scontrol update NodeName={node} State=DRAIN Reason="rankscope: rank {rank} slow, %s"'

_CHOICE: Final = (
    "Compare what chooses kernels on {ranks} and on the others, and let all choose the same: versions of driver, CUDA, cuBLAS, "
    "cuDNN and Triton; the cache of torch.compile's autotuning (TORCHINDUCTOR_CACHE_DIR); torch.backends.cudnn.benchmark"
)
_GIVEN: Final = "Compare what these kernels are given there and elsewhere: shapes, strides, alignment, routing of tokens"

_ADDITIONAL: Final = (
    "Look at {stalls_at} in the code: why does {ranks} run it more often than the others?",
    "Find what {ranks} computes and the others do not: branches by rank, layers that only it has, metrics, retries",
)

_READINGS: Final = "Look at the readings of rank {rank}'s GPU on {host}: nvidia-smi -q -d %s"

_CAPTURE: Final = (
    "While it trains, profile steps to see whether the GPU work or the CPU work of {ranks} is late: "
    "rankscope capture {run} --steps 20"
)
_RECORD_WINDOWS: Final = "If it has ended, record a run with profiled steps: rankscope run --window-every 50 -- ..."

_SERVED: Final = (
    "Compare the power supplies, the cooling and the clocks of {host} with those of another host (ipmitool sdr; nvidia-smi -q -d "
    "POWER,TEMPERATURE,CLOCK,PERFORMANCE), over time by the metrics of rankscope exporter"
)
_SHARED: Final = (
    "Check what the ranks of {host} share: PCIe switches and the width of their links (nvidia-smi topo -m, lspci -vv), the NICs "
    "(ibstat, ethtool -S), CPUs and memory"
)
_WITHOUT_HOST: Final = "Start the job again without {without}; if no rank is slow then, the host is at fault, not the job"
# In an order that loses no unsaved work, as in the rules for nodes.
_OUT_OF_SERVICE: Final = (
    'Take {nodes} out of service: scontrol update NodeName={node_list} State=DRAIN Reason="rankscope: slow host"; in Kubernetes '
    "kubectl cordon {nodes}, let the jobs there reach a checkpoint or end, then kubectl drain {nodes} --ignore-daemonsets "
    "--delete-emptydir-data"
)
_READINGS_OF_HOST: Final = "Compare the readings of the GPUs of {host} with those of another host: nvidia-smi -q -d %s"


def _for_hardware(reason: str, topics: str, *actions: str, drain: bool = True) -> tuple[Row, Row]:
    """Return the rows for a host and for a rank that the hardware holds back.

    ``topics``: sections of ``nvidia-smi -q`` that show it. ``drain``: the host may have to be taken out to mend it.
    """
    draining = (_DRAIN % reason.replace("_", " "),) if drain else ()
    out = (_OUT_OF_SERVICE,) if drain else ()
    of_host = for_host("mend_host", "hardware", 0.05, *actions, _READINGS_OF_HOST % topics, *out)
    of_rank = for_rank("mend_hardware", "hardware", 0.05, *actions, _READINGS % topics, *draining)
    return msgspec.structs.replace(of_host, reason=reason), msgspec.structs.replace(of_rank, reason=reason)


FOR_RANKS: Final[tuple[Row, ...]] = (
    # The host of a device waits for it, so records of the host do not tell which of the two is late.
    for_host("see_device_of_host", "device_unseen", 0.05, _CAPTURE, _RECORD_WINDOWS, _SERVED, _SHARED, _OUT_OF_SERVICE),
    for_rank(
        "see_device",
        "device_unseen",
        0.05,
        _CAPTURE,
        _RECORD_WINDOWS,
        _READINGS % "CLOCK,PERFORMANCE,TEMPERATURE,POWER",
    ),
    *_for_hardware(
        "xid", "PAGE_RETIREMENT,ECC", "On {host}, find the errors in the kernel's log, and what each asks for: dmesg | grep Xid"
    ),
    *_for_hardware(
        "ecc", "ECC,ROW_REMAPPER", "Reset the GPU of {ranks} once the job is off it; if the errors come again, replace the GPU"
    ),
    *_for_hardware("thermal_throttle", "TEMPERATURE,PERFORMANCE", "Check airflow, fans and coolant of {host}"),
    *_for_hardware("power_brake", "POWER,PERFORMANCE", "Check the power supplies of {host} and what its rack may draw"),
    *_for_hardware(
        "power_cap",
        "POWER",
        "Compare the power limit of rank {rank}'s GPU with the others', and raise it if rack and cooling allow: nvidia-smi -pl",
        drain=False,
    ),
    *_for_hardware(
        "clock",
        "CLOCK,PERFORMANCE",
        "Reset the clocks of {host}'s GPUs, if they are locked: nvidia-smi -rgc; nvidia-smi -rac",
        drain=False,
    ),
    *_for_hardware(
        "link",
        "PERFORMANCE",
        "Compare the PCIe links of {host}: nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv",
        "Find NVLinks that are down or have errors on {host}: nvidia-smi nvlink -s; nvidia-smi nvlink -e",
    ),
    for_rank(
        "memory_of_rank",
        "memory_pressure",
        0.05,
        "Find what {ranks} holds on its GPU and the others do not: longer sequences, work that only it does, or another process "
        "(nvidia-smi)",
        SEGMENTS,
    ),
    for_host(
        "data_loading_of_host",
        "input",
        0.02,
        "Compare the storage of {host} with another host's: mounts, caches, its network, and what else reads there (iostat -x)",
        LOAD_AHEAD,
    ),
    for_rank(
        "data_loading_of_rank",
        "input",
        0.02,
        "Time the dataset of {ranks} alone, and compare its storage, its CPU load and the size of its shard with the others'",
        LOAD_AHEAD,
    ),
    for_rank(
        "cpus_of_rank",
        "cpu_contention",
        0.05,
        "Find what else runs beside {ranks} (top, systemd-cgtop), and give it CPUs of its own",
        FEWER_THREADS,
    ),
    *(
        msgspec.structs.replace(for_rank("kernels_of_rank", "kernels", 0.05, _CHOICE, _GIVEN), reason=reason)
        for reason in ("few_kernels", "other_kernels")
    ),
    for_host("compare_hosts", "compute", 0.05, _SERVED, _SHARED, _WITHOUT_HOST, _OUT_OF_SERVICE),
    for_host(
        "links_of_host",
        "communication",
        0.05,
        "Check the NICs of {host}, their cables and switch ports for errors and lower rates: ibstat and ibdiagnet, ethtool -S, "
        "lspci -vv for their PCIe links, nvidia-smi nvlink -e, or the metrics of rankscope exporter",
        LINKS_ALONE,
        _WITHOUT_HOST,
        _OUT_OF_SERVICE,
    ),
    for_host(
        "stalls_of_host",
        "host",
        0.05,
        "Find what differs on {host}: other processes (top, systemd-cgtop), the clock of its CPUs (cpupower frequency-info), "
        "memory, storage",
        DUMP % "the ranks of {host}{unseen}",
        "Look at {stalls_at} in the code: what does it wait for on {host} and not on the other hosts?",
        _WITHOUT_HOST,
    ),
    for_rank(
        "own_profiler",
        "profiler",
        0.05,
        "Switch the script's own profiler off on {ranks}, or let it trace a few steps only: "
        "torch.profiler.schedule(wait, warmup, active, repeat=1); record_shapes, profile_memory and with_stack cost most",
    ),
    *(
        msgspec.structs.replace(for_rank("additional_work", "additional_work", 0.05, *_ADDITIONAL), reason=reason)
        for reason in ("more_calls", "other_code")
    ),
    for_rank(
        "compare_processors",
        "processor",
        0.05,
        "Compare the processor of {ranks} with the others': model and frequency (lscpu), cores that it may use (taskset -p), "
        "threads (OMP_NUM_THREADS), and what else runs there (top)",
        "Look at {stalls_at} in the code: does {ranks} do there what the others do?",
        _WITHOUT % "the host",
    ),
    for_rank(
        "compare_devices",
        "compute",
        0.05,
        "Compare clocks, temperature and power of the device of {ranks} with its neighbours': rankscope exporter",
        _WITHOUT % "the host or its GPU",
    ),
    for_rank(
        "check_links",
        "communication",
        0.05,
        "Check the links of {ranks} for errors and lower rates: nvidia-smi nvlink -e, ibstat and ibdiagnet, or the NVLink and "
        "PCIe metrics of rankscope exporter",
        LINKS_ALONE,
        _WITHOUT % "the host or its GPU",
    ),
    for_rank(
        "equal_batches",
        "enlarged_batches",
        0.05,
        "Find what the script of {ranks} adds to its batches after the loader (padding, augmentation, repeated or generated "
        "samples), and give every rank as much; compare model_elements with input_elements: rankscope steps {run} --format csv",
    ),
    for_rank(
        "balance_work",
        "imbalance",
        0.05,
        "Give {ranks} and the others as many tokens: pack sequences, or batch by length with a cap on tokens; for experts, an "
        "auxiliary loss or a lower capacity factor",
    ),
    for_rank("gc_policy_of_rank", "gc", 0.02, COLLECT),
    for_rank(
        "checkpoints",
        "checkpoint",
        0.02,
        SAVE_ASIDE,
    ),
    for_rank(
        "evaluation",
        "evaluation",
        0.02,
        EVALUATE_LESS,
    ),
    for_rank(
        "stalls",
        "host",
        0.05,
        DUMP % "{ranks}{unseen}",
        "Look at {stalls_at} in the code: what does it wait for on {ranks} and not on the others (storage, locks, a log, "
        "a sleep)?",
        _RECORD_ALL,
    ),
    msgspec.structs.replace(for_verdict("straggler", _SERVED, _SHARED, _WITHOUT_HOST, _OUT_OF_SERVICE), whole_host=True),
    # ``{run:.0}`` shows nothing: there is a page for runs only.
    for_verdict("straggler", "Look at {ranks} on the page{run:.0}", _RECORD_ALL),
)
