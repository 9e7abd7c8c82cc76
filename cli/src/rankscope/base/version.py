"""Version of the installed package, looked up once: parsing the metadata of the installation takes a third of a millisecond."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

VERSION: Final = version("rankscope")
