"""The price lists of object stores, from `conf/prices.toml`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from deltamq.mq.errors import Refused
from deltamq.mq.prices import Prices
from deltamq.tables.config import conf_folder

_FILE = "prices.toml"


def price_lists(folder: Path | None = None) -> dict[str, Prices]:
    """Return the price lists by name; none if there is no file in `folder` (by default `conf_folder()`).

    Raises
    ------
    Refused
        `invalid_prices`: the file is no list of prices.
    """
    folder = folder or conf_folder()
    if folder is None or not (file := folder / _FILE).is_file():
        return {}
    try:
        return msgspec.toml.decode(file.read_bytes(), type=dict[str, Prices])
    except (msgspec.MsgspecError, OSError) as error:
        raise Refused(f"{file}: {error}", code="invalid_prices") from error
