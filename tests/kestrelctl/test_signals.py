"""Signals that come where Python swallows, or replaces, what a handler raises."""

import signal
import subprocess
import sys

import pytest

from tests.support.waiting import PATIENCE_S

MEANWHILE = {
    "a finalizer": """
class Finalized:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
Finalized()""",
    "the making of a class": """
class Named:
    def __set_name__(self, owner, name):
        signal.raise_signal(signal.SIGTERM)
class Owner:
    named = Named()""",
}
PROGRAM = """
import signal, sys, time
from kestrelctl.shell.endings import exit_code_of
from kestrelctl.shell.signals import catch_signals
def run():
    {meanwhile}
    time.sleep(600)
catch_signals()
sys.exit(exit_code_of(run))
"""


@pytest.mark.parametrize("where", MEANWHILE)
def test_a_signal_ends_a_run_wherever_it_comes(where: str) -> None:
    program = PROGRAM.format(meanwhile=MEANWHILE[where].replace("\n", "\n    "))
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=PATIENCE_S, check=False)
    assert (run.returncode, run.stderr) == (128 + signal.SIGTERM, b"")
