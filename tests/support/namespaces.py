"""Hosts of a cluster on this machine: network namespaces on a bridge, cut off from each other by iptables."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

BRIDGE: Final = "kestrel0"
NETWORK: Final = "10.77.0"
OWN: Final = f"{NETWORK}.254"


def missing() -> str:
    """Why there can be none; "" where there can."""
    absent = [program for program in ("ip", "iptables") if shutil.which(program) is None]
    if absent:
        return f"{', '.join(absent)} is not installed (apt-get install iproute2 iptables)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    made = subprocess.run(["ip", "netns", "add", "kestrel-try"], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", "kestrel-try"], capture_output=True)
    return f"no network namespaces here: {made.stderr.strip()}" if made.returncode else ""


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


class Host:
    """One of them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"kestrel{number}"
        self.address = f"{NETWORK}.{number + 1}"
        self.outside = f"kst{number}"  # the end of its cable on the bridge

    def make(self) -> None:
        outside, inside = self.outside, "eth0"
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", self.name)
        _run("ip", "link", "set", outside, "master", BRIDGE, "up")
        self.do("ip", "address", "add", f"{self.address}/24", "dev", inside)
        self.do("ip", "link", "set", inside, "up")
        self.do("ip", "link", "set", "lo", "up")

    def do(self, *words: str) -> None:
        """Run a command there."""
        _run(*self.prefix, *words)

    @property
    def prefix(self) -> tuple[str, ...]:
        """What a command begins with that is to run there."""
        return ("ip", "netns", "exec", self.name)

    def hear_nothing_from(self, other: "Host") -> None:
        """Drop all that comes from that host, silently."""
        self.do("iptables", "-A", "INPUT", "-s", other.address, "-j", "DROP")

    def hear_all(self) -> None:
        self.do("iptables", "-F", "INPUT")


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """So many, which this process can reach, too."""
    found = [Host(number) for number in range(count)]
    _clear(found)  # what a run that was killed has left
    try:
        _run("ip", "link", "add", BRIDGE, "type", "bridge")
        _run("ip", "address", "add", f"{OWN}/24", "dev", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        for host in found:
            host.make()
        yield found
    finally:
        _clear(found)


def _clear(found: list[Host]) -> None:
    """Be it there or not. A namespace takes its cable along some time after it was deleted."""
    for host in found:
        subprocess.run(["ip", "link", "del", host.outside], capture_output=True)
        subprocess.run(["ip", "netns", "del", host.name], capture_output=True)
    subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)
