"""Kind of a device event: compute, communication or a copy. Each table takes one row per library or name."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal

from rankscope.analysis.result.detail import Direction

WorkKind = Literal["compute", "communication", "memcpy"]
Activity = Literal["gc", "checkpoint", "evaluation"]
"""Activity that interrupts training."""

COMMUNICATION_NAMES: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    # (library, words, pattern of kernel names), case-insensitive. Every name that matches the pattern contains one of the words.
    # Most names contain none, and searching for words takes a tenth of the time.
    ("NCCL, RCCL", ("nccl", "rccl"), r"nccl|rccl"),
    ("DeepEP", ("ep::",), r"\bep::(internode|intranode)|deep_ep::"),
    ("NVSHMEM, rocSHMEM", ("shmem",), r"nvshmem|rocshmem|roc_shmem"),
    (
        "custom all-reduce of inference engines",
        ("device_reduce", "quickreduce", "allreduce_proto"),
        r"cross_device_reduce|quickreduce|allreduce_prototype",
    ),
    (
        "torch symmetric memory",
        ("multimem_", "_shot_", "barrier_kernel"),
        r"multimem_|(one|two)_shot_all_reduce|barrier_kernel.*symm",
    ),
    ("oneCCL", ("ccl",), r"oneccl|\bccl_(all|reduce|broadcast|send|recv)"),
    ("HCCL on Ascend and MTIA", ("hcom_", "hccl"), r"hcom_|\bhccl::|\bhccl"),
    ("MSCCL", ("msccl",), r"msccl"),
    ("TensorRT-LLM", ("shotallreduce",), r"(one|two)ShotAllReduce"),
)

COPY_NAMES: Final[tuple[tuple[str, str], ...]] = (
    # ROCm may implement copies and fills as kernels of its own.
    ("ROCm", r"^__amd_rocclr_(copy|fill)Buffer"),
    ("MTIA", r"^dma_request$"),
    ("Ascend", r"^(MEMCPY|Memcpy|memcpy)_?(ASYNC|Async|async)$"),
)

NO_WORK_NAMES: Final = frozenset(
    {"event_wait", "event_record", "notify_wait", "notify_record", "stream_wait_event", "wait_event"}
)
"""Events on queues of devices (lower case) that only wait for others, or tell them to go on: neither compute nor copying."""

GPU_KERNEL: Final = frozenset({"kernel", "concurrent_kernel", "mtia_ccp_events", "mtia_insight", "privateuse1_kernel"})
GPU_COPY: Final = frozenset({"gpu_memcpy", "gpu_memset", "memcpy", "memset"})
LAUNCH: Final = frozenset(
    {
        "cuda_runtime",
        "cuda_driver",
        "runtime",
        "xpu_runtime",
        "xpu_driver",
        "mtia_runtime",
        "privateuse1_runtime",
        "privateuse1_driver",
    }
)
CPU_OP: Final = frozenset({"cpu_op", "operator"})
ANNOTATION: Final = frozenset({"user_annotation"})
GPU_ANNOTATION: Final = frozenset({"gpu_user_annotation"})
PYTHON_FUNCTION: Final = frozenset({"python_function"})

# On a CPU build operators are the work. These only wrap operators, start communication, or wait for it.
NOT_CPU_WORK: Final[tuple[str, ...]] = (
    "autograd::engine::",
    "torch::autograd::",
    "torch::distributed::",
    "torch.distributed.",
    "c10d::",
    "_c10d_functional",
    "c10d_functional::",
    "symm_mem::",
    "profiler::",
    "rpc::",
)

# Communication on CPU threads: the worker's annotation. The calling thread shows only the enqueue, as ``c10d::…``.
CPU_COMMUNICATION: Final[tuple[str, ...]] = ("gloo:", "mpi:", "ucc:")

# Operators and annotations in which the calling thread requests communication on a device.
ASKS_FOR_COMMUNICATION: Final[tuple[str, ...]] = (
    "nccl:",
    "record_param_comms",
    "c10d::",
    "_c10d_functional::",
    "c10d_functional::",
    "symm_mem::",
)

_COMMUNICATION = tuple((words, re.compile(pattern, re.IGNORECASE)) for _, words, pattern in COMMUNICATION_NAMES)
_COPY = re.compile("|".join(pattern for _, pattern in COPY_NAMES))


def classify_kernel(name: str) -> WorkKind:
    """Return the kind of a device kernel by its name, for kernels without linked communication metadata."""
    if _COPY.search(name):
        return "memcpy"
    lower = name.lower()
    talks = any(pattern.search(name) for words, pattern in _COMMUNICATION if any(word in lower for word in words))
    return "communication" if talks else "compute"


def is_work(name: str) -> bool:
    """Return whether an event on a device is work, rather than waiting for other work."""
    return name.lower().replace(" ", "_") not in NO_WORK_NAMES


def asks_for_communication(name: str) -> bool:
    """Return whether an operator or annotation on the calling thread requests communication."""
    return name.startswith(ASKS_FOR_COMMUNICATION)


def is_cpu_work(name: str) -> bool:
    """Return whether a CPU operator computes something itself, as ``aten::mm`` does, rather than wrapping other operators."""
    return "::" in name and not name.startswith(NOT_CPU_WORK)


def is_cpu_communication(name: str) -> bool:
    """Return whether a user annotation marks a communication library at work on a CPU thread."""
    return name.startswith(CPU_COMMUNICATION)


def is_point_to_point(op: str) -> bool:
    """Return whether an operation is between two ranks rather than a group."""
    return op in {"send", "recv", "isend", "irecv", "recv_any_source", "batch_isend_irecv", "coalesced"}


OPERATION_NAMES: Final[dict[str, str]] = {
    # normalised spelling (lower case, no underscores) -> the operation's name in records
    "allreduce": "all_reduce",
    "crossdevicereduce": "all_reduce",
    "quickreduce": "all_reduce",
    "allreducecoalesced": "all_reduce_coalesced",
    "allgather": "all_gather",
    "allgatherbase": "all_gather_base",
    "allgatherintotensor": "all_gather_base",
    "allgathersingle": "all_gather_base",
    "allgatherv": "all_gatherv",
    "allgathercoalesced": "all_gather_coalesced",
    "allgatherintotensorcoalesced": "all_gather_coalesced",
    "allgatherbasecoalesced": "all_gather_coalesced",
    "allgathersinglecoalesced": "all_gather_coalesced",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter_base",
    "reducescattertensor": "reduce_scatter_base",
    "reducescattersingle": "reduce_scatter_base",
    "reducescatterv": "reduce_scatterv",
    "reducescattercoalesced": "reduce_scatter_coalesced",
    "reducescattertensorcoalesced": "reduce_scatter_coalesced",
    "reducescatterbasecoalesced": "reduce_scatter_coalesced",
    "reducescattersinglecoalesced": "reduce_scatter_coalesced",
    "alltoall": "all_to_all",
    "alltoallsingle": "all_to_all",
    "alltoallbase": "all_to_all",
    "alltoallv": "all_to_allv",
    "alltoallvsingle": "all_to_allv",
    "broadcast": "broadcast",
    "broadcastoop": "broadcast",
    "reduce": "reduce",
    "reduceoop": "reduce",
    "gather": "gather",
    "gathersingle": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "allreducebarrier": "barrier",
    "allreducesparse": "sparse_all_reduce",
    "sparseallreduce": "sparse_all_reduce",
    "send": "send",
    "recv": "recv",
    "recvanysource": "recv",
    "sendrecv": "send_recv",
}


@lru_cache(1024)
def operation_name(spelling: str) -> str:
    """Return the one name of an operation, however a library spells it: ``allreduce_``, ``AllReduce``, ``gloo:all_reduce`` →
    ``all_reduce``, ``nccl:send 0->1`` → ``send``.
    """
    bare = spelling.rpartition(":")[2].partition(" ")[0]
    known = OPERATION_NAMES.get(bare.replace("_", "").lower())
    return known or bare.strip("_").lower() or "unknown"


_KERNEL_OPERATION = re.compile(
    r"(cross_device_reduce|quickreduce|All_?Reduce|All_?Gather|Reduce_?Scatter|Broadcast|Send_?Recv|All_?To_?All|Reduce"
    r"|dispatch|combine|notify)",
    re.IGNORECASE,
)


def operation_of_kernel(name: str) -> str:
    """Return the operation in a communication kernel's name; ``unknown`` where it has none (``ncclDevKernel_Generic``)."""
    found = _KERNEL_OPERATION.search(name)
    return operation_name(found.group(1)) if found else "unknown"


DIRECTIONS: Final[tuple[tuple[Direction, str], ...]] = (
    # (direction, pattern of event names); CUDA, then ROCm, then Level Zero (M is the host's memory).
    ("host to device", r"HtoD|HostToDevice|H2D|\bM2D"),
    ("device to host", r"DtoH|DeviceToHost|D2H|\bD2M"),
    ("peer to peer", r"PtoP|Peer|P2P"),
    ("device to device", r"DtoD|DeviceToDevice|D2D"),
    ("host to host", r"HtoH|HostToHost|H2H|\bM2M"),
    ("fill", r"[Mm]emset|[Ff]ill"),
)

_COMPILED_DIRECTIONS: Final = tuple((direction, re.compile(pattern)) for direction, pattern in DIRECTIONS)


def direction_of(name: str) -> Direction:
    """Return the direction of a copy by its event's name; ``unknown`` where the name has none."""
    return next((direction for direction, pattern in _COMPILED_DIRECTIONS if pattern.search(name)), "unknown")


FUNCTIONS: Final[tuple[tuple[Activity, str], ...]] = (
    # Names as torch 2.13 writes them with with_stack=True: "file(line): function". The collections that Python starts by itself
    # need record_python_gc_info of torch.profiler._ExperimentalConfig, too.
    ("gc", r"Python GC$|<built-in function collect>$"),
    (
        "checkpoint",
        r"torch/serialization\.py\(\d+\): save$|torch/distributed/checkpoint/state_dict_saver\.py\(\d+\): (async_)?save$",
    ),
    (
        "checkpoint",
        r"safetensors/torch\.py\(\d+\): save_(file|model)$|.{1,200}\(\d+\): (async_)?save_(checkpoint|ckpt|pretrained)$",
    ),
    ("evaluation", r".{1,200}\(\d+\): (run_)?(evaluate|evaluation|validate|validation)$"),
)
"""Python functions that interrupt training; only these are kept of a trace's Python functions."""

_FUNCTIONS: Final = tuple((activity, re.compile(pattern)) for activity, pattern in FUNCTIONS)


@lru_cache(maxsize=1 << 16)
def activity_of_function(name: str) -> Activity | None:
    """Return the activity that a Python function is, by its name in a trace."""
    return next((activity for activity, pattern in _FUNCTIONS if pattern.match(name)), None)
