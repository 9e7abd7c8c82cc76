"""The board of a training run: its steps, who waits for whom, what communication costs, and the hardware under each rank."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.dialect import NATIVE, RANGE, RATE, SCOPE
from rankscope.dashboards.grafana.boards.frame import chosen, frame, node_board, places, run_page
from rankscope.dashboards.grafana.boards.kinds import Column, Graph, Query
from rankscope.dashboards.grafana.boards.marks import (
    ANY_IS_A_WARNING,
    ANY_IS_BAD,
    DEGREES_LEFT,
    none_is_zero,
    or_not_available,
)

UID: Final = "rankscope-run"
RUN: Final = '{run_id=~"$run_id"}'
RANK: Final = '{run_id=~"$run_id", rank=~"$rank"}'
INFO: Final = f'rank_info{{{SCOPE}, run_id=~"$run_id"}}'
REPORTING: Final = f'run_id_rank_state:rank_state:max{{run_id=~"$run_id", state!="silent"}} == 1'
LEGEND: Final = "rank {{rank}} {{host}}"
EVIDENCE: Final = (("Evidence", run_page("${__field.labels.run_id:percentencode}", "${__field.labels.rank:percentencode}")),)
MOST: Final = 8
"""Lines of single ranks in a graph; the others are told by their median and their greatest."""

SILENT: Final = Query(
    'NaN * count by (run_id, state) (run_id_rank_state:rank_state:max{run_id=~"$run_id", state!="running"} == 1)',
    "ranks {{state}}",
)
"""What became of the ranks of which there are no values: the third state, beside a value and a signal that does not exist."""


def run() -> Canvas:
    """The board."""
    about = "A training run as its recorder tells it: steps, waiting, communication, input, throughput, what the recorder costs, and the GPUs under it."
    canvas = Canvas(frame(UID, "Training run", about, dialect=NATIVE, alerts=', run_id=~"$run_id"', since="now-3h"))
    for variable in places("rank_info"):
        canvas.board.with_variable(variable)
    canvas.board.with_variable(chosen("run_id", "Run", f"label_values(rank_info{{{SCOPE}}}, run_id)", start_with_all=False))
    canvas.board.with_variable(chosen("rank", "Rank", f"label_values({INFO}, rank)"))
    _now(canvas)
    _steps(canvas)
    _stragglers(canvas)
    _communication(canvas)
    _input(canvas)
    _hardware(canvas)
    _process(canvas)
    _recorder(canvas)
    return canvas


def with_host(expr: str) -> str:
    """Series of ranks with the host that the rank stepped on last."""
    return f"{expr}\n* on (run_id, rank) group_left (host) run_id_rank:rank_info:latest{RUN}"


def by_rank(metric: str, *, function: str = "rate", window: str = RATE, **labels: str) -> str:
    """A counter of each rank per second, with its run's id and its host, once however many exporters see it."""
    more = "".join(f', {name}="{value}"' for name, value in labels.items())
    series = f'{metric}{{{SCOPE}, rank=~"$rank"{more}}}'
    rated = f"{function}({series}[{window}])" if function else series
    return f"max by (run_id, rank, host) ({rated}\n* on (job, instance, run, rank, slot) group_left (run_id, host) {INFO})"


def summed(metric: str, label: str, *, function: str = "rate", window: str = RATE) -> str:
    """The same added up over the ranks, by a label of the metric."""
    rated = f'{function}({metric}{{{SCOPE}, rank=~"$rank"}}[{window}])'
    joined = f"{rated}\n* on (job, instance, run, rank, slot) group_left (run_id, host) {INFO}"
    return f"sum by (run_id, {label}) (max by (run_id, rank, host, {label}) ({joined}))"


def _ratio(canvas: Canvas, title: str, description: str, name: str, *, warn: float, more: str = "") -> None:
    expr = or_not_available(f'max({name}{{run_id=~"$run_id"{more}}})', REPORTING)
    canvas.figure(title, description, "percentunit", expr, thresholds=((None, "green"), (warn, "orange")), decimals=1)


def _now(canvas: Canvas) -> None:
    canvas.row("Now")
    canvas.figure(
        "Ranks",
        "Ranks of the run that report.",
        "none",
        f"count({REPORTING})",
        links=(("Evidence", run_page("${run_id:percentencode}")),),
    )
    canvas.figure(
        "Ranks silent",
        "Ranks that went while others go on.",
        "none",
        none_is_zero(f"count(run_id_rank:rank_state:vanished{RUN} == 1)", REPORTING),
        thresholds=ANY_IS_BAD,
    )
    canvas.figure(
        "Since the last step",
        "How long ago any rank that runs finished a step.",
        "s",
        or_not_available(f"max(run_id:rank_step_age_seconds:min{RUN})", REPORTING),
        thresholds=((None, "green"), (600, "red")),
    )
    canvas.figure(
        "Step",
        "Wall time of a step over the last 5 minutes; of several runs the longest.",
        "s",
        or_not_available(f"max(run_id:rank_step_seconds_per_step:rate5m{RUN})", REPORTING),
    )
    canvas.figure(
        "Samples",
        "Samples per second of all ranks over 5 minutes, where the batch size is visible.",
        "cps",
        or_not_available(f"sum(run_id:rank_samples:rate5m{RUN})", REPORTING),
    )
    canvas.figure(
        "Tokens",
        "Tokens per second of all ranks over 5 minutes, where the script says.",
        "cps",
        or_not_available(f"sum(run_id:rank_tokens:rate5m{RUN})", REPORTING),
    )
    _ratio(
        canvas, "Blocked", "Share of the steps that ranks spend waiting for others.", "run_id:rank_blocked:ratio_rate5m", warn=0.2
    )
    _ratio(
        canvas,
        "Worst straggler",
        "Share of every step that the others wait for the slowest rank's own excess.",
        "run_id_rank:rank_own_excess:ratio_rate5m",
        warn=0.1,
    )
    _ratio(canvas, "Input wait", "Share of the steps spent waiting for data.", "run_id:rank_input_wait:ratio_rate5m", warn=0.1)
    _ratio(
        canvas,
        "Exposed communication",
        "Share of profiled steps in which nothing but communication went on.",
        "run_id:rank_exposed_communication:ratio_increase1h",
        warn=0.2,
    )
    canvas.figure(
        "Overlap",
        "Share of the communication that compute hid, in the profiled steps of the last hour. Without communication there is none.",
        "percentunit",
        or_not_available(f"min(run_id:rank_overlap:ratio_increase1h{RUN})", REPORTING),
        decimals=1,
    )
    canvas.figure(
        "Recorder",
        "Share of the steps that the recorder itself costs.",
        "percentunit",
        or_not_available(f"sum by (run_id) (run_id_part:rank_recorder:ratio_rate5m{RUN})", REPORTING),
        thresholds=((None, "green"), (0.01, "orange")),
        decimals=2,
    )


def _steps(canvas: Canvas) -> None:
    steps, wall = by_rank("rank_steps_total"), by_rank("rank_step_duration_seconds_sum")
    per_step = f"{wall}\n/\n({steps} > 0)"
    run_steps = f"sum by (run_id) ({steps})"
    canvas.row("Steps")
    canvas.graph(
        "Step time",
        "Wall time of a step: the median rank, the slowest, and what the run is used to.",
        "s",
        Query(f"quantile by (run_id) (0.5, {per_step})", "{{run_id}} median rank"),
        Query(f"max by (run_id) ({per_step})", "{{run_id}} slowest rank"),
        Query(f"run_id:rank_step_seconds_per_step:usual{RUN}", "{{run_id}} usual", dashed=True),
        SILENT,
    )
    canvas.buckets(
        "Steps by duration",
        "How many steps took how long.",
        "s",
        Query(
            summed("rank_step_duration_seconds_bucket", "le", function="increase", window=RATE).replace(
                "sum by (run_id, le)", "sum by (le)"
            ),
            "{{le}}",
        ),
        width=8,
    )
    canvas.graph(
        "Phases of a step",
        "Seconds of each phase in a step, over all ranks: a ratio of sums.",
        "s",
        Query(f"{summed('rank_phase_seconds_total', 'phase')}\n/ on (run_id) group_left ()\n({run_steps} > 0)", "{{phase}}"),
        SILENT,
        look=Graph(stacked=True),
    )
    canvas.graph(
        "Steps per minute", "Steps that the run completes.", "opm", Query(f"60 * max by (run_id) ({steps})", "{{run_id}}"), SILENT
    )
    canvas.graph(
        "Throughput",
        "Samples and tokens of all ranks per second, where they are known.",
        "cps",
        Query(f"sum by (run_id) ({by_rank('rank_samples_total')})", "{{run_id}} samples"),
        Query(f"sum by (run_id) ({by_rank('rank_tokens_total')})", "{{run_id}} tokens"),
        SILENT,
    )
    canvas.graph(
        "Arithmetic",
        "Floating-point operations of all ranks per second, where the script says.",
        "flops",
        Query(f"sum by (run_id) ({by_rank('rank_flops_total')})", "{{run_id}}"),
        SILENT,
    )
    canvas.graph(
        "Device's view of the phases",
        "Seconds of each phase in a step as the device's main stream saw it.",
        "s",
        Query(f"{summed('rank_device_seconds_total', 'phase')}\n/ on (run_id) group_left ()\n({run_steps} > 0)", "{{phase}}"),
        SILENT,
        look=Graph(stacked=True),
    )
    canvas.graph(
        "Sections of the script",
        "Seconds in a step of the sections that the script itself names.",
        "s",
        Query(
            f"{summed('rank_section_seconds_total', 'section')}\n/ on (run_id) group_left ()\n({run_steps} > 0)", "{{section}}"
        ),
        SILENT,
    )
    canvas.graph(
        "Steps with something special",
        "Steps in which there was a checkpoint, an evaluation, a garbage collection, a skipped optimizer, in the time shown.",
        "none",
        Query(f"ceil({summed('rank_steps_tagged_total', 'tag', function='increase', window=RANGE)})", "{{tag}}"),
        SILENT,
    )


def _stragglers(canvas: Canvas) -> None:
    own = f"run_id_rank:rank_own_seconds_per_step:rate5m{RANK}"
    blocked = f"run_id_rank:rank_blocked:ratio_rate5m{RANK}"
    excess = f"run_id_rank:rank_own_excess:ratio_rate5m{RANK}"
    info = f"run_id_rank:rank_info:latest{RANK}"
    identity = "run_id, rank, host, gpu_uuid"
    canvas.row("Stragglers")
    canvas.graph(
        "Own time of a step",
        f"What a rank itself needs for a step, waiting for others left out, over 5 minutes: the {MOST} slowest, the median of the run.",
        "s",
        Query(with_host(f"topk by (run_id) ({MOST}, {own})"), LEGEND),
        Query(f"run_id:rank_own_seconds_per_step:median_rate5m{RUN}", "{{run_id}} ordinary rank", dashed=True),
        SILENT,
        look=Graph(links=EVIDENCE),
    )
    canvas.graph(
        "Time the others wait for it",
        f"Share of the run's step that others wait because of a rank's excess over the median: the {MOST} worst.",
        "percentunit",
        Query(with_host(f"topk by (run_id) ({MOST}, {excess})"), LEGEND),
        SILENT,
        look=Graph(links=EVIDENCE, minimum=None, thresholds=((None, "green"), (0.1, "orange"))),
    )
    canvas.graph(
        "Blocked",
        f"Share of its steps that a rank waits for others: the {MOST} that wait least, of whom a straggler is one, and the run.",
        "percentunit",
        Query(with_host(f"bottomk by (run_id) ({MOST}, {blocked})"), LEGEND),
        Query(f"run_id:rank_blocked:ratio_rate5m{RUN}", "{{run_id}} whole run", dashed=True),
        SILENT,
        look=Graph(links=EVIDENCE, maximum=1),
    )
    canvas.graph(
        "Where ranks are blocked",
        "Share of the time of each phase that ranks wait for others, over all ranks.",
        "percentunit",
        Query(
            f"{summed('rank_blocked_seconds_total', 'phase')}\n/\n({summed('rank_phase_seconds_total', 'phase')} > 0)",
            "{{phase}}",
        ),
        SILENT,
        look=Graph(maximum=1),
    )
    canvas.graph(
        "Where the device is blocked",
        "Share of the time of each phase that the device's main stream waits for other ranks.",
        "percentunit",
        Query(
            f"{summed('rank_device_blocked_seconds_total', 'phase')}\n/\n({summed('rank_device_seconds_total', 'phase')} > 0)",
            "{{phase}}",
        ),
        SILENT,
        look=Graph(maximum=1),
    )
    canvas.graph(
        "Waiting for a CPU",
        f"Share of time that the training thread could have run and had no CPU: the {MOST} worst.",
        "percentunit",
        Query(f"topk by (run_id) ({MOST}, {by_rank('rank_run_queue_seconds_total')})", LEGEND),
        SILENT,
        look=Graph(links=EVIDENCE),
    )
    canvas.sheet(
        "Ranks",
        "Where each rank is, what it needs for a step itself, how long it waits, and what the others wait for it.",
        [
            Column(source="rank", title="Rank", links=(("Evidence", run_page(rank="${__data.fields.rank:percentencode}")),)),
            Column(source="host", title="Host"),
            Column(source="gpu_uuid", title="GPU"),
            Column(source="run_id", title="Run"),
            Column(source="Value #B", title="Own time of a step", unit="s"),
            Column(source="Value #C", title="Blocked", unit="percentunit"),
            Column(
                source="Value #D", title="Others wait for it", unit="percentunit", thresholds=((None, "green"), (0.1, "orange"))
            ),
            Column(source="Value #E", title="Last step", unit="dateTimeAsIso"),
        ],
        f"max by ({identity}) ({info})",
        *(
            f"max by ({identity}) ({expr}\n* on (run_id, rank) group_left (host, gpu_uuid) {info})"
            for expr in (own, blocked, excess, f"1000 * run_id_rank:rank_last_step_timestamp_seconds:max{RANK}")
        ),
        sort="Others wait for it",
    )


def _communication(canvas: Canvas) -> None:
    windows = summed("rank_window_seconds_total", "state", function="increase", window="1h")
    canvas.row("Communication")
    canvas.graph(
        "Overlap of communication",
        "Share of the communication that compute hid, in the profiled steps of the last hour: a ratio of sums.",
        "percentunit",
        Query(f"run_id:rank_overlap:ratio_increase1h{RUN}", "{{run_id}}"),
        SILENT,
        look=Graph(maximum=1),
    )
    canvas.graph(
        "Exposed communication",
        "Share of profiled steps in which nothing but communication went on.",
        "percentunit",
        Query(f"run_id:rank_exposed_communication:ratio_increase1h{RUN}", "{{run_id}}"),
        SILENT,
        look=Graph(maximum=1),
    )
    canvas.graph(
        "Profiled time by state",
        "What the device did in the profiled steps of the last hour. Overlap is part of compute, too.",
        "s",
        Query(windows, "{{state}}"),
        SILENT,
    )
    canvas.graph(
        "Exposed communication of a step",
        f"Communication per step that nothing hid, in each rank's last profiled step: the {MOST} worst.",
        "s",
        Query(f"topk by (run_id) ({MOST}, {by_rank('rank_exposed_communication_seconds', function='')})", LEGEND),
        SILENT,
        look=Graph(links=EVIDENCE),
    )
    canvas.graph(
        "Overlap by rank",
        f"Share of its communication that compute hid, in each rank's last profiled step: the {MOST} lowest.",
        "percentunit",
        Query(f"bottomk by (run_id) ({MOST}, {by_rank('rank_overlap_ratio', function='')})", LEGEND),
        SILENT,
        look=Graph(links=EVIDENCE, maximum=1),
    )


def _input(canvas: Canvas) -> None:
    steps = by_rank("rank_step_duration_seconds_sum")
    canvas.row("Input")
    canvas.graph(
        "Input wait",
        "Share of the steps spent waiting for data, over all ranks.",
        "percentunit",
        Query(f"run_id:rank_input_wait:ratio_rate5m{RUN}", "{{run_id}}"),
        SILENT,
        look=Graph(maximum=1),
    )
    canvas.graph(
        "Input wait by rank",
        f"Share of its steps that a rank waits for data: the {MOST} worst.",
        "percentunit",
        Query(f"topk by (run_id) ({MOST}, {by_rank('rank_phase_seconds_total', phase='data')}\n/\n({steps} > 0))", LEGEND),
        SILENT,
        look=Graph(links=EVIDENCE, maximum=1),
    )
    canvas.graph(
        "Elements of the batches",
        "Tensor elements of the batches that a rank trains on, per second: the greatest and the least.",
        "cps",
        Query(f"max by (run_id) ({by_rank('rank_input_elements_total')})", "{{run_id}} most"),
        Query(f"min by (run_id) ({by_rank('rank_input_elements_total')})", "{{run_id}} least"),
        SILENT,
    )


GPU_OF_RANK: Final = (
    f'topk by (uuid) (1, max by (uuid, rank, run_id) (gpu_job_info{{{SCOPE}, run_id=~"$run_id", rank=~"$rank"}})\nor on (uuid)\n'
    f'max by (uuid, rank, run_id) (label_replace(rank_info{{{SCOPE}, run_id=~"$run_id", rank=~"$rank", gpu_uuid!=""}}, "uuid", "$1", "gpu_uuid", "(.+)")))'
)
"""Which rank is on a GPU: what the exporter joined, else what the rank itself says."""


def _hardware(canvas: Canvas) -> None:
    def under(metric: str, **labels: str) -> str:
        return f"max by (uuid) ({NATIVE.selector(metric, **labels)})\n* on (uuid) group_left (rank, run_id)\n{GPU_OF_RANK}"

    def rated(metric: str, **labels: str) -> str:
        return f"max by (uuid) (rate({NATIVE.selector(metric, **labels)}[{RATE}]))\n* on (uuid) group_left (rank, run_id)\n{GPU_OF_RANK}"

    canvas.row("Hardware under the ranks")
    for title, unit, expr, text in (
        (
            "GPU power",
            "watt",
            under("gpu_power_watts"),
            "What the GPU of each rank draws: who waits in a collective draws little.",
        ),
        (
            "SMs active",
            "percentunit",
            rated("gpu_sm_active_seconds_total"),
            "Share of time in which an SM of the rank's GPU had a warp (Hopper and newer).",
        ),
        (
            "Tensor cores active",
            "percentunit",
            rated("gpu_tensor_active_seconds_total"),
            "Share of the peak of the tensor cores of the rank's GPU (Hopper and newer).",
        ),
        ("SM clock", "hertz", under("gpu_clock_hertz", clock="sm"), "A clock that is lower than the others' makes a straggler."),
        (
            "Throttled",
            "percentunit",
            f"sum by (uuid, rank, run_id) ({rated('gpu_throttle_seconds_total')})",
            "Share of time in which the clocks were held down, for any reason.",
        ),
        ("NVLink sent", "Bps", rated("gpu_nvlink_transmit_bytes_total"), "Bytes that the rank's GPU sends over NVLink."),
    ):
        canvas.graph(
            title,
            f"{text} The {MOST} greatest.",
            unit,
            Query(f"topk by (run_id) ({MOST}, {expr})", "rank {{rank}}"),
            SILENT,
            look=Graph(links=EVIDENCE),
        )
    margin = under("gpu_temperature_margin_celsius")
    canvas.graph(
        "Margin to slowdown",
        f"Degrees that the rank's GPU has left until it slows down by its own limit. The {MOST} least.",
        "celsius",
        Query(f"bottomk by (run_id) ({MOST}, {margin})", "rank {{rank}}"),
        SILENT,
        look=Graph(links=EVIDENCE, minimum=None, thresholds=DEGREES_LEFT),
    )
    identity = "run_id, rank, host, instance, index, model, simulated, uuid"
    of_gpu = "max by (uuid, host, instance, index, model, simulated) (uuid:gpu_info:latest)"
    canvas.sheet(
        "GPUs of the run",
        "Which GPU each rank is on, and what state it is in.",
        [
            Column(source="rank", title="Rank", links=(("Evidence", run_page(rank="${__data.fields.rank:percentencode}")),)),
            Column(source="host", title="Host", links=(("Everything of this host", node_board(NATIVE)),)),
            Column(source="index", title="GPU"),
            Column(source="model", title="Model"),
            Column(source="state", title="State"),
            Column(source="simulated", title="Simulated"),
            Column(source="uuid", title="UUID"),
        ],
        f"max by ({identity}, state) (max by (uuid, host, instance, index, model, simulated, state) (uuid_state:gpu_state:active)\n"
        f"* on (uuid) group_left (rank, run_id)\n{GPU_OF_RANK})\nor on (uuid)\n"
        f"max by ({identity}) ({of_gpu}\n* on (uuid) group_left (rank, run_id)\n{GPU_OF_RANK})",
        width=16,
    )


def _process(canvas: Canvas) -> None:
    canvas.row("Processes", collapsed=True)
    for title, unit, metric, function, text in (
        ("Device memory at its peak", "bytes", "rank_device_memory_peak_bytes", "", "Most memory that tensors held at once."),
        (
            "Device memory of tensors",
            "bytes",
            "rank_device_memory_allocated_bytes",
            "",
            "Memory held by tensors at the end of a recent step.",
        ),
        (
            "Device memory of the allocator",
            "bytes",
            "rank_device_memory_reserved_bytes",
            "",
            "Memory held by the allocator at the end of a recent step.",
        ),
        (
            "Allocator retries",
            "cps",
            "rank_allocator_retries_total",
            "rate",
            "Allocations that needed the cache given back first: close to out of memory.",
        ),
        ("Resident memory", "bytes", "rank_resident_memory_bytes", "", "Memory of the process on the host."),
        ("CPU time", "percentunit", "rank_cpu_seconds_total", "rate", "Share of time in which the training thread was on a CPU."),
        (
            "Garbage collection",
            "percentunit",
            "rank_gc_seconds_total",
            "rate",
            "Share of time spent in Python's garbage collection.",
        ),
    ):
        canvas.graph(
            title,
            f"{text} The {MOST} greatest.",
            unit,
            Query(f"topk by (run_id) ({MOST}, {by_rank(metric, function=function)})", LEGEND),
            SILENT,
            look=Graph(links=EVIDENCE),
        )


def _recorder(canvas: Canvas) -> None:
    canvas.row("Recorder")
    canvas.graph(
        "What the recorder costs",
        "Share of the steps, by part: the steps themselves, profiled windows; dashed: what it may cost.",
        "percentunit",
        Query(f"run_id_part:rank_recorder:ratio_rate5m{RUN}", "{{run_id}} {{part}}"),
        Query(f"max by (run_id) ({by_rank('rank_recorder_budget_ratio', function='')})", "{{run_id}} budget", dashed=True),
        SILENT,
    )
    canvas.graph(
        "Records lost",
        "Records that the ring had no room for, or that could not be written, in the time shown.",
        "none",
        Query(f"sum by (run_id) ({by_rank('rank_recorder_dropped_total', function='increase', window=RANGE)})", "{{run_id}}"),
        SILENT,
    )
    canvas.graph(
        "Profiled windows",
        "Windows that were due in the time shown: recorded, missed.",
        "none",
        Query(f"ceil({summed('rank_windows_total', 'outcome', function='increase', window=RANGE)})", "{{outcome}}"),
        SILENT,
    )
    canvas.graph(
        "Ranks by state",
        "Running; disabled: the recorder switched itself off while training goes on; silent: nothing comes any more.",
        "none",
        Query('count by (state) (run_id_rank_state:rank_state:max{run_id=~"$run_id"} == 1)', "{{state}}"),
        look=Graph(stacked=True),
    )
    canvas.sheet(
        "Ranks whose recorder is off",
        "They train on and are not observed; disabled_reason in the rank's rank.json says why.",
        [
            Column(source="run_id", title="Run", links=(("Evidence", run_page()),)),
            Column(source="rank", title="Rank"),
            Column(source="state", title="State", thresholds=ANY_IS_A_WARNING),
        ],
        'max by (run_id, rank, state) (run_id_rank_state:rank_state:max{run_id=~"$run_id", state=~"disabled|silent"} == 1)',
        width=8,
    )
