"""Reload of the settings on SIGHUP."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import click

from rankscope.base import logs
from rankscope.base.errors import RankscopeError
from rankscope.exporter.settings import RELOADED, ExporterSettings
from rankscope.exporter.web.access import WebAccess

logger = logging.getLogger(__name__)


class ReloadHandler:
    """SIGHUP handler: read the settings again, apply those that can change, and log those that need a restart."""

    def __init__(
        self,
        settings: ExporterSettings,
        read_again: Callable[[], ExporterSettings],
        option_names: Mapping[str, str],
        access: WebAccess,
    ) -> None:
        self._settings = settings
        self._read_again = read_again
        self._option_names = option_names
        self._access = access

    def __call__(self) -> None:
        """Apply what has changed."""
        try:
            settings = self._read_again()
        except (RankscopeError, click.ClickException) as error:
            logger.warning(
                "the settings stay as they were: %s", error if isinstance(error, RankscopeError) else error.format_message()
            )
            return
        changes = self._settings.changes(settings)
        logs.set_up(settings.log_level, settings.log_format)
        self._access.follow(settings.web_config)
        for name in sorted({self._option_names[setting] for setting in changes - RELOADED}):
            logger.warning("%s has changed, which needs a restart", name)
        changed_options = ",".join(sorted(self._option_names[name] for name in changes & RELOADED))
        logger.info("settings were read again", extra={"changed": changed_options or "nothing"})
        # Settings that need a restart keep their values here, so that the next SIGHUP logs them again.
        self._settings = replace(self._settings, **{name: getattr(settings, name) for name in RELOADED})
