"""Runs a test on Spark once more if a Python worker did not start within Spark's limit of ten seconds.

The limit is a constant of Spark (``PythonWorkerFactory.createSimpleWorker``), which a loaded machine exceeds. Any other
failure counts at once.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol

_MESSAGES = ("a Python worker did not start within Spark's limit", "Python worker failed to connect back")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test, and once more if it failed for this reason."""
    if "spark" not in getattr(item, "fixturenames", ()):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if any(report.failed and message in report.longreprtext for report in reports for message in _MESSAGES):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
