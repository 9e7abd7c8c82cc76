"""Rows of the board of one host: errors, metrics that are off by default, and the collection itself."""

from __future__ import annotations

from typing import Any, Final

from rankscope.dashboards.grafana.boards.panels.availability import exporter_availability
from rankscope.dashboards.grafana.boards.panels.canvas import Canvas
from rankscope.dashboards.grafana.boards.panels.columns import labels
from rankscope.dashboards.grafana.boards.panels.kinds import BoardColumn, Query, placeholder
from rankscope.dashboards.grafana.boards.panels.marks import ANY_IS_BAD, YES_NO
from rankscope.dashboards.grafana.boards.panels.promql import GPU_LEGEND, SCOPE, gpu_increases, gpu_values, gpus_without
from rankscope.dashboards.grafana.boards.panels.xids import xid_sheet

_GROWTH: Final = (
    ("ECC errors", "gpu_ecc_errors_total", " {{error}} {{memory}}",
     "Memory errors in the time shown: corrected ones are worn memory, uncorrected ones cost the job."),
    ("Remapped rows", "gpu_remapped_rows_total", " {{cause}}", "Rows of memory replaced by spares in the time shown."),
)  # fmt: skip
_FLAGS: Final = {"gpu_row_remap_pending": "remapping waits for a reset", "gpu_row_remap_failure": "remapping failed: replace it"}
_MIG: Final[tuple[tuple[str, str, str, dict[str, Any], str], ...]] = (
    ("MIG memory in use", "bytes", "gpu_mig_memory_used_bytes", {}, "Memory allocated on each MIG device."),
    ("MIG engine active", "percentunit", "gpu_mig_graphics_active_ratio", {"maximum": 1},
     "Share of time in which the engine of the MIG device was busy (Hopper and newer)."),
    ("MIG tensor cores active", "percentunit", "gpu_mig_tensor_active_ratio", {"maximum": 1},
     "Share of the peak of the MIG device's tensor cores (Hopper and newer)."),
)  # fmt: skip


def _query(expr: str, more: str = "") -> Query:
    return Query(expr, GPU_LEGEND + more)


def _missing(metric: str) -> Query:
    return placeholder(gpus_without(metric))


def errors(canvas: Canvas) -> None:
    """Add Xids, ECC errors and remapped rows."""
    canvas.row("Errors")
    xid_sheet(canvas)
    for title, metric, legend, text in _GROWTH:
        canvas.graph(title, "none", text, _query(gpu_increases(metric), legend), _missing(metric))
    text = "1: rows wait for a reset of the GPU, or could not be remapped."
    queries = [_query(gpu_values(metric), f" {words}") for metric, words in _FLAGS.items()]
    canvas.graph("Row remapping", "bool", text, *queries, _missing("gpu_row_remap_failure"), maximum=1)


def off_by_default(canvas: Canvas) -> None:
    """Add MIG devices, and the metrics that the exporter measures on request."""
    scope = f"{{{SCOPE}}}"
    of_parent = f"{scope} * on (job, instance, uuid) group_left (parent_uuid, profile, gpu_instance) gpu_mig_info{scope}"
    canvas.row("MIG devices", collapsed=True)
    for title, unit, metric, settings, text in _MIG:
        query = Query(f"{metric}{of_parent}", "{{parent_uuid}} {{profile}} {{gpu_instance}}")
        nothing = "no MIG devices, or collection dead"
        canvas.graph(title, unit, text, query, _missing("gpu_mig_instances"), no_value=nothing, **settings)
    canvas.row("Measured on request", collapsed=True)
    canvas.graphs(
        _missing("gpu_process_memory_used_bytes"),
        ("Memory by process", "bytes", [_query(gpu_values("gpu_process_memory_used_bytes"), " {{process}} {{pid}}")],
         {"no_value": "no process, or not measured (--collector.process)"},
         "Memory of the GPU that each process holds (--collector.process)."),
    )  # fmt: skip


def video(canvas: Canvas) -> None:
    """Add the use of the video engines."""
    for kind in ("encoder", "decoder"):
        metric = f"gpu_{kind}_utilization_ratio"
        text = f"Utilisation of the video {kind}; of the exporter's own metrics with --collector.encoder."
        query = _query(gpu_values(metric))
        canvas.graph(f"Video {kind}", "percentunit", text, query, placeholder(gpus_without(metric)), maximum=1)


def collection(canvas: Canvas) -> None:
    """Add the health of the collection and the age of its values."""
    canvas.row("Collection")
    canvas.sheet(
        "Not measured here",
        "What a GPU, a driver or a permission does not give: the panels above name it as not available.",
        labels(host="Host", index="GPU", metric="Metric", series="Series", reason="Why"),
        f"max by (host, index, uuid, metric, series, reason) ({gpu_values('gpu_metric_absent_info')})",
        width=16,
    )

    def of_collectors(name: str) -> str:
        return f"max by (instance, collector) (rankscope_exporter_{name}{{{SCOPE}}})"

    canvas.sheet(
        "Collectors",
        "Whether each part of the measurements works, how long its last pass took, and how old its values are.",
        [
            *labels(instance="Instance", collector="Collector"),
            BoardColumn(of_collectors("collector_success"), "Works", words=YES_NO),
            BoardColumn(of_collectors("collector_duration_seconds"), "Took", "s"),
            BoardColumn(of_collectors("sample_age_seconds"), "Age", "s"),
        ],
        width=8,
    )
    exporter_availability(canvas)
    restarts = gpu_increases("rankscope_exporter_gpu_process_restarts_total")
    canvas.graphs(
        None,
        ("Age of each GPU's values", "s",
         [_query(gpu_values("gpu_sample_age_seconds")), _missing("gpu_sample_age_seconds")], {},
         "Older than five intervals and they are left out of the page."),
        ("Restarts of GPUs' processes", "none", [_query(restarts), _missing("gpu_up")], {},
         "How often the process that asks a GPU had to be started again, in the time shown."),
    )  # fmt: skip
    stuck = f"sum(max by (instance) (rankscope_exporter_stuck_processes{{{SCOPE}}}))"
    text = "Processes that hang in the driver and that the kernel does not let die."
    canvas.figures(("Processes stuck in the driver", "none", stuck, {"thresholds": ANY_IS_BAD, "width": 8}, text))
