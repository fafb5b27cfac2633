"""A network of its own for machines that this computer poses as, so that its links can be broken.

Every machine gets a network namespace with one address, all joined by a bridge whose first address
is the controller's. A link is cut in one direction by teaching the sender a wrong neighbour: its
packets leave and reach nobody, without a word to either side, as on a broken wire. Rates are
limited by the kernel's token buckets. Linux, root and iproute2 only. Nothing of it outlives
``close``, whichever process of the run made it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Collection, Sequence
from typing import Any

CONTROLLER = "controller"  # the other end of a link to none of the machines

_NOBODY = "02:00:00:00:00:01"  # an address that no interface has
_COMMAND_S = 20.0
_DEVICE = "eth0"


class NoNamespaces(Exception):
    """This computer does not let us make networks; says why."""


def why_not() -> str:
    """Why namespaces cannot be made here; "" when they can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "iproute2 (ip and tc) is not installed"
    return ""


class Namespaces:
    """The network of one run. Calls take some milliseconds and raise NoNamespaces."""

    def __init__(self, run: str) -> None:
        digest = hashlib.sha256(run.encode()).digest()
        self._stem = f"sl{digest.hex()[:6]}"
        self._subnet = f"10.{200 + digest[3] % 50}.{digest[4]}"
        self.host = f"{self._subnet}.1"

    def open(self) -> None:
        """Make the bridge, or find the one that an earlier process of the run has left."""
        if reason := why_not():
            raise NoNamespaces(reason)
        if self._stem in _links():
            return
        try:
            _ip("link", "add", "name", self._stem, "type", "bridge")
            _ip("addr", "add", f"{self.host}/24", "dev", self._stem)
            _ip("link", "set", self._stem, "up")
        except NoNamespaces:
            self._remove_link(self._stem)
            raise

    def add(self, node: str) -> str:
        """A namespace for a machine; its address."""
        name, address = self._name(node), self._free_address()
        outer = f"{self._stem}-{address.rpartition('.')[2]}"
        _ip("netns", "add", name)
        _ip("link", "add", "name", outer, "type", "veth", "peer", "name", _DEVICE, "netns", name)
        _ip("link", "set", outer, "master", self._stem, "up")
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", _DEVICE)
        for device in ("lo", _DEVICE):
            _ip("-n", name, "link", "set", device, "up")
        return address

    def enter(self, node: str) -> tuple[str, ...]:
        """What a command begins with to run on that machine's network; its pid stays its own."""
        return ("ip", "netns", "exec", self._name(node))

    def address_of(self, node: str) -> str:
        """A machine's address, or the controller's."""
        if node == CONTROLLER:
            return self.host
        for entry in json.loads(_ip("-j", "-n", self._name(node), "addr", "show", "dev", _DEVICE)):
            for known in entry.get("addr_info", ()):
                if known["family"] == "inet":
                    return str(known["local"])
        raise NoNamespaces(f"{node} has no address")

    def cut(self, sender: str, receiver: str) -> None:
        """From now on nothing that ``sender`` sends arrives at ``receiver``."""
        self._neighbour(sender, "replace", receiver, "lladdr", _NOBODY, "nud", "permanent")

    def heal(self, sender: str, receiver: str) -> None:
        """It arrives again."""
        self._neighbour(sender, "del", receiver)

    def set_cut(self, node: str, *, cut: bool) -> None:
        """Take the plug of a machine's cable out of the bridge, or put it in again: nothing arrives
        at it or leaves it, and neither side is told."""
        outer = f"{self._stem}-{self.address_of(node).rpartition('.')[2]}"
        if cut:
            _ip("link", "set", outer, "nomaster")
        else:
            _ip("link", "set", outer, "master", self._stem)

    def limit(self, node: str, *, bytes_per_second: int) -> None:
        """What a machine sends from now on leaves at most this fast."""
        _run(
            "tc", "-n", self._name(node), "qdisc", "replace", "dev", _DEVICE, "root", "tbf",
            "rate", f"{8 * bytes_per_second}bit", "burst", "64kb", "latency", "200ms",
        )  # fmt: skip

    def nodes(self) -> tuple[str, ...]:
        """Machines that have a namespace."""
        prefix = f"{self._stem}-"
        names = [str(entry["name"]) for entry in json.loads(_ip("-j", "netns", "list") or "[]")]
        return tuple(n.removeprefix(prefix) for n in names if n.startswith(prefix))

    def remove(self, node: str) -> None:
        """A machine's namespace, if there is one. Its end of the link goes with it."""
        with contextlib.suppress(NoNamespaces):
            _ip("netns", "del", self._name(node))

    def sweep(self, *, besides: Collection[str] = ()) -> None:
        """Namespaces of machines that an earlier process of the run had."""
        for node in self.nodes():
            if node not in besides:
                self.remove(node)

    def close(self) -> None:
        """Leave nothing."""
        self.sweep()
        # The kernel takes the links of a namespace away when it gets around to it.
        for link in sorted(link for link in _links() if link.startswith(self._stem)):
            self._remove_link(link)

    def _neighbour(self, sender: str, act: str, receiver: str, *more: str) -> None:
        address = self.address_of(receiver)
        if sender == CONTROLLER:
            _ip("neigh", act, address, *more, "dev", self._stem)
        else:
            _ip("-n", self._name(sender), "neigh", act, address, *more, "dev", _DEVICE)

    def _name(self, node: str) -> str:
        return f"{self._stem}-{node}"

    def _free_address(self) -> str:
        used = {link.removeprefix(f"{self._stem}-") for link in _links()}
        number = next(n for n in range(2, 255) if str(n) not in used)
        return f"{self._subnet}.{number}"

    def _remove_link(self, link: str) -> None:
        with contextlib.suppress(NoNamespaces):
            _ip("link", "del", link)


def _links() -> set[str]:
    found: list[dict[str, Any]] = json.loads(_ip("-j", "link", "show"))
    return {str(link["ifname"]) for link in found}


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    words: Sequence[str] = command
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoNamespaces(f"{' '.join(words)}: {error}") from error
    if done.returncode != 0:
        raise NoNamespaces(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
