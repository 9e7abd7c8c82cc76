"""Rows of the board of one host: errors, metrics that are off by default, and the collection itself."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.grafana.boards.answers import answers_over_time
from rankscope.dashboards.grafana.boards.canvas import Canvas
from rankscope.dashboards.grafana.boards.dialect import SCOPE, Dialect
from rankscope.dashboards.grafana.boards.kinds import Column, Graph, Query, told
from rankscope.dashboards.grafana.boards.marks import ANY_IS_BAD, YES_NO
from rankscope.dashboards.grafana.boards.xids import xid_sheet, xid_words

NO_MIG: Final = "no MIG devices, or collection dead"
_GROWTH: Final = (
    (
        "ECC errors",
        "gpu_ecc_errors_total",
        ("error", "memory"),
        "Memory errors in the time shown: corrected ones are worn memory, uncorrected ones cost the job.",
    ),
    ("Remapped rows", "gpu_remapped_rows_total", ("cause",), "Rows of memory replaced by spares in the time shown."),
)


def errors(canvas: Canvas, dialect: Dialect) -> None:
    """Add Xids, ECC errors and remapped rows."""
    canvas.row("Errors")
    if dialect.name == "native":
        xid_sheet(canvas, width=24)
        for title, metric, labels, text in _GROWTH:
            legend = dialect.legend + "".join(f" {{{{{label}}}}}" for label in labels)
            canvas.graph(title, text, "none", Query(dialect.increase(metric) or "", legend), _state(dialect, metric))
        flags = {"gpu_row_remap_pending": "remapping waits for a reset", "gpu_row_remap_failure": "remapping failed: replace it"}
        queries = [Query(dialect.value(metric) or "", f"{dialect.legend} {words}") for metric, words in flags.items()]
        canvas.graph(
            "Row remapping",
            "1: rows wait for a reset of the GPU, or could not be remapped.",
            "bool",
            *queries,
            _state(dialect, "gpu_row_remap_failure"),
            look=Graph(maximum=1),
        )
        return
    by = ", ".join(label for label in dialect.by.split(", ") if not label.startswith("GPU_I"))
    canvas.sheet(
        "Last Xid",
        "The last Xid of each GPU. DCGM never takes it back, and tells neither when it was nor how often.",
        [
            Column(source="Hostname", title="Host"),
            Column(source="gpu", title="GPU"),
            Column(source="UUID", title="UUID"),
            Column(source="Value", title="Xid", words=xid_words()),
        ],
        f"max by ({by}) ({dialect.selector('gpu_xid_last_code')}) > 0",
    )
    canvas.left_out += ["Xids", "ECC errors"]
    for cause in ("corrected", "uncorrected"):
        rows = dialect.increase("gpu_remapped_rows_total", cause=cause)
        assert rows is not None
        canvas.graph(
            f"Remapped rows, {cause}",
            "Rows of memory replaced by spares in the time shown.",
            "none",
            Query(rows, dialect.legend),
            _state(dialect, ""),
        )
    failed = dialect.value("gpu_row_remap_failure")
    assert failed is not None
    canvas.graph(
        "Row remapping failed",
        "1: rows could not be remapped; replace the GPU.",
        "bool",
        Query(failed, dialect.legend),
        _state(dialect, ""),
        look=Graph(maximum=1),
    )


def _state(dialect: Dialect, metric: str) -> Query:
    return told(dialect.missing(metric))


def off_by_default(canvas: Canvas, dialect: Dialect) -> None:
    """Add MIG devices, and the metrics that the exporter measures on request."""
    if dialect.name == "native":
        canvas.row("MIG devices", collapsed=True)
        of_parent = "* on (job, instance, uuid) group_left (parent_uuid, profile, gpu_instance) gpu_mig_info"
        legend = "{{parent_uuid}} {{profile}} {{gpu_instance}}"
        scope = f"{{{SCOPE}}}"
        state = told(dialect.missing("gpu_mig_instances"))
        canvas.graph(
            "MIG memory in use",
            "Memory allocated on each MIG device.",
            "bytes",
            Query(f"gpu_mig_memory_used_bytes{scope} {of_parent}{scope}", legend),
            state,
            look=Graph(no_value=NO_MIG),
        )
        canvas.graph(
            "MIG engine active",
            "Share of time in which the engine of the MIG device was busy (Hopper and newer).",
            "percentunit",
            Query(f"gpu_mig_graphics_active_ratio{scope} {of_parent}{scope}", legend),
            state,
            look=Graph(maximum=1, no_value=NO_MIG),
        )
        canvas.graph(
            "MIG tensor cores active",
            "Share of the peak of the MIG device's tensor cores (Hopper and newer).",
            "percentunit",
            Query(f"gpu_mig_tensor_active_ratio{scope} {of_parent}{scope}", legend),
            state,
            look=Graph(maximum=1, no_value=NO_MIG),
        )
        canvas.row("Measured on request", collapsed=True)
        processes = dialect.value("gpu_process_memory_used_bytes")
        assert processes is not None
        canvas.graph(
            "Memory by process",
            "Memory of the GPU that each process holds (--collector.process).",
            "bytes",
            Query(processes, dialect.legend + " {{process}} {{pid}}"),
            _state(dialect, "gpu_process_memory_used_bytes"),
            look=Graph(no_value="no process, or not measured (--collector.process)"),
        )
    else:
        canvas.row("Video")
        canvas.left_out += ["MIG devices", "Memory by process"]
    for kind in ("encoder", "decoder"):
        metric = f"gpu_{kind}_utilization_ratio"
        expr = dialect.value(metric)
        assert expr is not None
        canvas.graph(
            f"Video {kind}",
            f"Utilisation of the video {kind}; of the exporter's own metrics with --collector.encoder.",
            "percentunit",
            Query(expr, dialect.legend),
            _state(dialect, metric),
            look=Graph(maximum=1),
        )


def collection(canvas: Canvas, dialect: Dialect) -> None:
    """Add the health of the collection and the age of its values."""
    canvas.row("Collection")
    if dialect.name == "dcgm":
        answers_over_time(canvas)
        canvas.left_out += ["Collectors", "Not measured here"]
        return
    canvas.sheet(
        "Not measured here",
        "What a GPU, a driver or a permission does not give: the panels above name it as not available.",
        [
            Column(source="host", title="Host"),
            Column(source="index", title="GPU"),
            Column(source="metric", title="Metric"),
            Column(source="series", title="Series"),
            Column(source="reason", title="Why"),
        ],
        f"max by (host, index, uuid, metric, series, reason) ({dialect.value('gpu_metric_absent_info')})",
        width=16,
    )
    canvas.sheet(
        "Collectors",
        "Whether each part of the measurements works, how long its last pass took, and how old its values are.",
        [
            Column(source="instance", title="Instance"),
            Column(source="collector", title="Collector"),
            Column(source="Value #A", title="Works", words=YES_NO),
            Column(source="Value #B", title="Took", unit="s"),
            Column(source="Value #C", title="Age", unit="s"),
        ],
        *(
            f"max by (instance, collector) (rankscope_exporter_collector_{what}{{{SCOPE}}})"
            for what in ("success", "duration_seconds")
        ),
        f"max by (instance, collector) (rankscope_exporter_sample_age_seconds{{{SCOPE}}})",
        width=8,
    )
    answers_over_time(canvas)
    canvas.graph(
        "Age of each GPU's values",
        "Older than five intervals and they are left out of the page.",
        "s",
        Query(dialect.value("gpu_sample_age_seconds") or "", dialect.legend),
        _state(dialect, "gpu_sample_age_seconds"),
    )
    canvas.graph(
        "Restarts of GPUs' processes",
        "How often the process that asks a GPU had to be started again, in the time shown.",
        "none",
        Query(dialect.increase("rankscope_exporter_gpu_process_restarts_total") or "", dialect.legend),
        _state(dialect, "gpu_up"),
    )
    canvas.figure(
        "Processes stuck in the driver",
        "Processes that hang in the driver and that the kernel does not let die.",
        "none",
        f"sum(max by (instance) (rankscope_exporter_stuck_processes{{{SCOPE}}}))",
        thresholds=ANY_IS_BAD,
        width=8,
    )
