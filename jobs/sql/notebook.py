"""The settings of a notebook: from its widgets on Databricks, from profile and environment everywhere else.

| widget      | setting         | without a widget                   |
|-------------|-----------------|------------------------------------|
| `profile`   | the profile     | DELTAMQ_PROFILE, else `local`      |
| `warehouse` | `warehouse.uri` | DELTAMQ_WAREHOUSE_URI, the profile |
| `service`   | `client.url`    | DELTAMQ_CLIENT_URL, the profile    |

An empty widget is ignored. A job sets the widgets by parameters of the same names.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from deltamq.tables.config import Config, load

_WIDGETS: Final = {
    "profile": "Profile",
    "warehouse": "Warehouse (s3://, abfss://, gs://)",
    "service": "URL of the service",
}


def notebook_conf(dbutils: Any = None) -> Config:
    """Return the settings of this notebook; on Databricks, create its widgets first.

    Parameters
    ----------
    dbutils
        Databricks' `dbutils`; by default the notebook's own.
    """
    databricks = dbutils if dbutils is not None else _dbutils()
    given = dict.fromkeys(_WIDGETS, "")
    if databricks is not None:
        for name, label in _WIDGETS.items():
            databricks.widgets.text(name, "", label)  # an existing widget keeps its value
            given[name] = str(databricks.widgets.get(name)).strip()
    return load(
        given["profile"] or None,
        {"warehouse.uri": given["warehouse"] or None, "client.url": given["service"] or None},
    )


def _dbutils() -> Any:
    """None outside Databricks."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    return shell.user_ns.get("dbutils") if shell is not None else None
