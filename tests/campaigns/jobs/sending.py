"""Send the messages of an outbox to a webhook until all are delivered: OUTBOX URL. The tests kill this process."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.secret import Secret
from rankscope.alerts.deliver.sender import Sender
from rankscope.alerts.deliver.targets import Target
from rankscope.alerts.store.database import AlertStore


def main(path: Path, url: str) -> None:
    """Send until no message waits; print a line when the sender has begun."""
    outbox = Outbox(AlertStore(path))
    target = Target(name="hook", label="hook", url=Secret(value=url))
    sender = Sender(outbox, [target], report=lambda _: None)
    sender.start()
    print("begun", flush=True)
    while sender.waiting():
        time.sleep(0.01)
    sender.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
