"""What the demonstration reads from the exporter's page."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from rankscope.cli.demo.story import says_simulated


def test_only_the_page_of_simulated_gpus_says_that_they_are(cli: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    page = cli("exporter", "--once", "--simulate", "1").stdout
    assert says_simulated(page)
    # Real GPUs: the help of the metric stays, and begins with "1 when".
    real = page.replace("\nrankscope_exporter_simulated 1", "\nrankscope_exporter_simulated 0")
    assert real != page
    assert not says_simulated(real)
