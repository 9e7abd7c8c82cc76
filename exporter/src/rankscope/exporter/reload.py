"""Reload of the settings on SIGHUP."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import click

from rankscope.base import logs
from rankscope.base.errors import RankscopeError
from rankscope.exporter.settings import RELOADED, ExporterSettings
from rankscope.exporter.web.access import WebAccess

logger = logging.getLogger(__name__)


@dataclass
class ReloadHandler:
    """SIGHUP handler: read the settings again, apply those that can change, and log those that need a restart."""

    settings: ExporterSettings
    read_again: Callable[[], ExporterSettings]
    option_names: Mapping[str, str]
    access: WebAccess

    def __call__(self) -> None:
        """Apply what has changed."""
        try:
            new = self.read_again()
        except (RankscopeError, click.ClickException) as error:
            logger.warning(
                "the settings stay as they were: %s", error if isinstance(error, RankscopeError) else error.format_message()
            )
            return
        changes = self.settings.changes(new)
        logs.set_up(new.log_level, new.log_format)
        self.access.follow(new.web_config)
        for name in sorted({self.option_names[setting] for setting in changes - RELOADED}):
            logger.warning("%s has changed, which needs a restart", name)
        changed_options = ",".join(sorted(self.option_names[name] for name in changes & RELOADED))
        logger.info("settings were read again", extra={"changed": changed_options or "nothing"})
        # Settings that need a restart keep their values here, so that the next SIGHUP logs them again.
        self.settings = replace(self.settings, **{name: getattr(new, name) for name in RELOADED})
