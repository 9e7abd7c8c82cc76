"""Kind of a device event: compute, communication or a copy. Each table takes one row per library or name."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal

from rankscope.analysis.operations import OPERATIONS
from rankscope.analysis.result.detail import Direction

_ANONYMOUS: Final = "anonymous"
_CLONE: Final = re.compile(r"( \[clone [^\]]*\]|\.kd)+$")
"""Suffix of ROCm's kernels and of a compiler's clones."""
_UNNAMED_NAMESPACE: Final = re.compile(r"\(anonymous namespace\)|<unnamed>|_GLOBAL__N_\w*")
_MANGLED: Final = re.compile(r"_ZN?K?(?=\d|L|St|12?_GLOBAL)")
_LENGTH: Final = re.compile(r"L?(\d+)")


@lru_cache(maxsize=1 << 14)
def function_of(name: str) -> str:
    """Return the qualified name of a kernel's function, without return type, template arguments and parameters.

    ``void a::(anonymous namespace)::f<int, b::C>(b::D)`` and ``_ZN1a12_GLOBAL__N_11fIiN1b1CEEEvNS1_1DE`` → ``a::anonymous::f``.
    """
    name = _CLONE.sub("", name.strip())
    start = _MANGLED.match(name)
    if start is not None and (parts := _mangled_parts(name, start.end())):
        return "::".join(parts)
    bare = _without_brackets(_UNNAMED_NAMESPACE.sub(_ANONYMOUS, name)).split()
    return bare[-1] if bare else name


def last_part(function: str) -> str:
    """Return the function's own name, without namespaces and classes."""
    return function.rpartition("::")[2]


def _mangled_parts(name: str, at: int) -> list[str]:
    """Return the identifiers of a name in the mangling of the Itanium ABI, each of which has its length in front."""
    parts: list[str] = []
    nested = name.startswith("_ZN")
    while (length := _LENGTH.match(name, at)) is not None:
        at = length.end() + int(length.group(1)[:4])
        part = name[length.end() : at]
        parts.append(_ANONYMOUS if _UNNAMED_NAMESPACE.match(part) else part)
        if not nested:
            break
    return parts


def _without_brackets(name: str) -> str:
    """Return the text outside all angle and round brackets; one that is never closed was cut off."""
    outside: list[str] = []
    angles = rounds = 0
    for letter in name:
        if letter == "(":
            rounds += 1
        elif letter == ")":
            rounds = max(0, rounds - 1)
        elif letter == "<" and not rounds:
            angles += 1
        elif letter == ">" and not rounds:
            angles = max(0, angles - 1)
        elif not angles and not rounds:
            outside.append(letter)
    return "".join(outside)


WorkKind = Literal["compute", "communication", "memcpy"]
Activity = Literal["gc", "checkpoint", "evaluation"]
"""Activity that interrupts training."""

_COLLECTIVE: Final = (
    r"(?<!warp)(?<!warp_)(?<!block)(?<!block_)"
    r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|all2all|(?<![a-z0-9])a2av?(?![a-z0-9])|moea2a(dispatch|combine)"
    r"|moe_?(distribute_?(dispatch|combine)|comm_?kernel))[^:]*$"
)

COMMUNICATION_NAMES: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    # (library, words, pattern), case-insensitive, of the qualified name of a kernel's function (``function_of``): types of
    # parameters say nothing. Every name that matches the pattern contains one of the words. Most names contain none, and
    # searching for words takes a tenth of the time.
    ("NCCL, RCCL", ("nccl", "rccl"), r"nccl|rccl"),
    (
        "libraries of other vendors, as MCCL, CNCL, BKCL and IXCCL",
        ("ccl", "cncl", "bkcl"),
        r"(?<![a-z])([a-z]{0,4}ccl|cncl|bkcl)(dev|kernel|generic|_|::)",
    ),
    (
        # Most libraries name the collective: flashinfer, TensorRT-LLM, SGLang, vLLM, aiter, MSCCL++, torch's symmetric memory.
        # Fused kernels count, too: the wait is in them. Reductions of a warp or block are within one device.
        "a collective in the function's own name",
        (
            *("allreduce", "all_reduce", "allgather", "all_gather", "reducescatter", "reduce_scatter"),
            *("toall", "to_all", "all2all", "a2a", "moe"),
        ),
        _COLLECTIVE,
    ),
    (
        "DeepEP and its relatives in UCCL and NCCL, HybridEP",
        ("internode", "intranode", "_ep::"),
        r"\b(inter|intra)node(_ll)?::|\b(deep|hybrid)_ep::(?!.*(layout|logue|scan|permute))",
    ),
    (
        "MoRI",
        ("epdispatch", "epcombine", "mori::"),
        r"(?<![a-z])ep(dispatch|combine)(intra|inter|low|sync|all|copy)|mori::collective",
    ),
    (
        "NVSHMEM, rocSHMEM, ISHMEM",
        ("shmem", "_on_stream"),
        (
            r"nvshmem|roc_?shmem|ishmem|mori(::|_)shmem"
            r"|\b(barrier|sync|alltoall|broadcast|fcollect|rdxn|reducescatter|wait_until)_on_stream"
        ),
    ),
    (
        "custom all-reduce of inference engines",
        ("device_reduce", "quickreduce", "aiter::", "flashinfer::comm::", "lamport"),
        # Lamport kernels wait for the data of their peers; the others of this name fill the buffers.
        r"cross_device_reduce|quickreduce|\baiter::(ar|ag|rs)_(ll_)?gfx|\bflashinfer::comm::|lamport(?!_?init)[^:]*$",
    ),
    ("torch symmetric memory", ("multimem_", "symmetric_memory::"), r"multimem_|\bsymmetric_memory::"),
    ("TransformerEngine userbuffers", ("userbuffers_", "ubx_kernel_"), r"userbuffers_|\bubx_kernel_"),
    (
        "Triton-distributed, pplx",
        ("node", "dispatchkernel", "combinekernel"),
        r"(dispatch|combine|barrier|sync|notify)[a-z_]*_?(intra|inter)_?node|^((anonymous|pplx)::)*(dispatch|combine)Kernel$",
    ),
    ("oneCCL, FlagCX", ("ccl", "flagcx"), r"oneccl|\bccl_(all|reduce|broadcast|send|recv)|flagcx"),
    ("HCCL on Ascend and MTIA", ("hcom_", "hccl"), r"hcom_|\bhccl"),
    ("MSCCL, MSCCL++", ("msccl",), r"msccl"),
)

_OF_A_COMPILER: Final = re.compile(r"triton_[a-z]+_fused_|triton_(poi|red|per|tem|for)_")
"""Kernels that TorchInductor names after the operators around them, such as ``all_gather_into_tensor``: they only compute."""

COPY_NAMES: Final[tuple[tuple[str, str], ...]] = (
    # ROCm may implement copies and fills as kernels of its own.
    ("ROCm", r"^__amd_rocclr_(copy|fill)Buffer"),
    ("MTIA, Gaudi", r"^(?i:dma)_?(?i:request|copy|memcpy|memset|transfer)(?![a-z])"),
    ("Ascend", r"^(MEMCPY|Memcpy|memcpy)_?(ASYNC|Async|async)$"),
)

NO_WORK_NAMES: Final = (
    r"^((event|notify|capture|semaphore|value|flag)_(wait|record|reset|write|set)"
    r"|(stream_)?wait_(on_|for_)?(event|notify|semaphore|value|flag))(?![a-z])"
)
"""Pattern of events on queues of devices (lower case, underscores) that only wait for others, or tell them to go on: neither
compute nor copying."""

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
_NAMES_COLLECTIVE = re.compile(_COLLECTIVE, re.IGNORECASE)
_COPY = re.compile("|".join(pattern for _, pattern in COPY_NAMES))
_NO_WORK = re.compile(NO_WORK_NAMES)


def classify_kernel(name: str) -> WorkKind:
    """Return the kind of a device kernel by its name, for kernels without linked communication metadata."""
    if _COPY.search(name):
        return "memcpy"
    if _OF_A_COMPILER.match(name):
        return "compute"
    function = function_of(name)
    lower = function.lower()
    talks = any(pattern.search(function) for words, pattern in _COMMUNICATION if any(word in lower for word in words))
    return "communication" if talks else "compute"


def is_work(name: str) -> bool:
    """Return whether an event on a device is work, rather than waiting for other work."""
    return _NO_WORK.match(name.lower().replace(" ", "_")) is None


def asks_for_communication(name: str) -> bool:
    """Return whether an operator or annotation on the calling thread requests communication.

    Operators of inference engines name the collective, as ``_C_custom_ar::all_reduce`` and ``sglang::inplace_all_reduce`` do.
    """
    return name.startswith(ASKS_FOR_COMMUNICATION) or ("::" in name and _NAMES_COLLECTIVE.search(name) is not None)


def is_cpu_work(name: str) -> bool:
    """Return whether a CPU operator computes something itself, as ``aten::mm`` does, rather than wrapping other operators."""
    return "::" in name and not name.startswith(NOT_CPU_WORK)


_KERNEL_OPERATIONS: Final = tuple(
    (row.name, re.compile(row.kernels, re.IGNORECASE)) for row in OPERATIONS.values() if row.kernels
)


def operation_of_kernel(name: str) -> str:
    """Return the operation in a communication kernel's name; ``unknown`` where it has none (``ncclDevKernel_Generic``).

    A kernel that is communication only because the user says so is a ``collective`` then, in which all ranks meet; "reduce" in
    its name is no reduction to one rank.
    """
    own = last_part(function_of(name))
    op = next((op for op, pattern in _KERNEL_OPERATIONS if pattern.search(own)), None)
    if op in (None, "reduce") and classify_kernel(name) != "communication":
        return "collective"
    return op or "unknown"


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


_MEMORY: Final = re.compile(r"\(([A-Za-z ]{1,24}-> ?[A-Za-z ]{1,24})\)")


def memory_of(name: str) -> str | None:
    """Return the kinds of memory in an event's name, such as ``Pageable -> Device``; ``None`` where it has none."""
    match = _MEMORY.search(name)
    return match.group(1) if match else None


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
