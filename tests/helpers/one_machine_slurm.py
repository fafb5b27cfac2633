"""A Slurm cluster on this one machine: Debian's own packages, several virtual nodes, no service.

Partitions pose as zones, each slurmd lives in namespaces of its own with its own host name and
address on the loopback, GPUs are pretended by slurm.conf. SkyPilot reaches it as it reaches any
Slurm cluster, through ssh to a login node, here an sshd on 127.0.0.1. What SkyPilot's node set-up
downloads with curl (the uv installer) is handed out from the uv of this Python environment: nothing
but the package index is ever dialled.

Needs root, Linux, and what tests/slurm/install.sh installs.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

USER = "slurmer"
CLUSTER = "vslurm"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sshd", "ssh-keygen", "rsync", "unshare")
READY_S = 60.0


def missing() -> str:
    """Why such a cluster cannot be had here, or nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux, to start Slurm's services"
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    lacking = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if lacking:
        return f"{', '.join(lacking)} not installed: tests/slurm/install.sh"
    if _uv() is None:
        return "uv is not installed in this environment: tests/slurm/install.sh"
    return ""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One virtual node: ``gpu`` is its pretended accelerator, by Slurm's name."""

    name: str
    partition: str
    gpu: str
    address: str
    port: int


@dataclass(kw_only=True)
class Slurm:
    """A running cluster. ``home`` is the HOME under which SkyPilot finds it."""

    root: Path
    nodes: tuple[Node, ...]
    ports: Mapping[str, int]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def environment(self) -> dict[str, str]:
        """For whoever uses the cluster: Slurm's commands and SkyPilot's client alike."""
        return {
            "SLURM_CONF": str(self.root / "etc" / "slurm.conf"),
            "HOME": str(self.home),
            "SKYPILOT_API_SERVER_LOCAL_PORT": str(self.ports["sky"]),
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "SKYPILOT_USER_ID": "5a110123",
            "SKYPILOT_USER": "sailor",
            # The API server is a process that starts others by name.
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin",
        }

    def run(self, *command: str) -> str:
        """Output of one of Slurm's commands."""
        return subprocess.run(
            command, env={**os.environ, **self.environment}, check=True, timeout=30,
            capture_output=True, text=True,
        ).stdout  # fmt: skip

    def jobs(self) -> dict[str, str]:
        """Slurm job id -> its name, of all that run."""
        lines = self.run("squeue", "-h", "-o", "%i %j").splitlines()
        return dict(line.split(maxsplit=1) for line in lines)

    def cancel(self, job: str) -> None:
        """Take a whole allocation away, as a preemption does."""
        self.run("scancel", job)


@contextmanager
def a_slurm(partitions: Mapping[str, tuple[int, str]]) -> Iterator[Slurm]:
    """A cluster of partition -> (number of nodes, pretended GPU). Everything is gone afterwards."""
    root = Path("/tmp") / f"sailor-slurm-{secrets.token_hex(4)}"
    root.mkdir(mode=0o755)
    names = [(zone, i, gpu) for zone, (n, gpu) in partitions.items() for i in range(1, n + 1)]
    ports = _free_ports(["ctl", "ssh", "sky", *(f"{zone}-{i}" for zone, i, _ in names)])
    nodes = tuple(
        Node(
            name=f"{zone}-n{i}", partition=zone, gpu=gpu,
            address=f"127.0.{10 + list(partitions).index(zone)}.{i}", port=ports[f"{zone}-{i}"],
        )
        for zone, i, gpu in names
    )  # fmt: skip
    slurm = Slurm(root=root, nodes=nodes, ports=ports)
    _add_user(root)
    try:
        _write_files(slurm)
        _start(slurm)
        yield slurm
    finally:
        _stop(slurm)
        subprocess.run(["userdel", USER], capture_output=True, check=False)
        shutil.rmtree(root, ignore_errors=True)


def _uv() -> str | None:
    beside = Path(sys.executable).parent / "uv"
    return str(beside) if beside.exists() else shutil.which("uv")


def _free_ports(names: list[str]) -> dict[str, int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    ports = {name: s.getsockname()[1] for name, s in zip(names, sockets, strict=True)}
    for opened in sockets:
        opened.close()
    return ports


def _add_user(root: Path) -> None:
    home = root / "user"
    subprocess.run(["userdel", USER], capture_output=True, check=False)
    subprocess.run(
        ["useradd", "--create-home", "--home-dir", str(home), "--shell", "/bin/bash", USER],
        check=True, capture_output=True,
    )  # fmt: skip
    subprocess.run(["usermod", "-p", "*", USER], check=True)  # sshd refuses a locked account


def _write_files(slurm: Slurm) -> None:
    root = slurm.root
    for folder in ("etc", "run", "log", "state", "spool", "bin", "uvcache", "munge", "home"):
        (root / folder).mkdir()
    (root / "uvcache").chmod(0o777)
    texts = {
        "etc/slurm.conf": _slurm_conf(slurm),
        "etc/gres.conf": "".join(
            f"NodeName={n.name} Name=gpu Type={n.gpu} File=/dev/null\n" for n in slurm.nodes
        ),
        "etc/hosts": "127.0.0.1 localhost\n"
        + "".join(f"{n.address} {n.name}\n" for n in slurm.nodes),
        "etc/sshd_config": _sshd_config(slurm),
        "home/.slurm/config": _client_config(slurm),
        "home/.sky/config.yaml": _SKY_CONFIG,
        "bin/start-node": _START_NODE.format(root=root, reveal=_reveal(root)),
        "bin/curl": _CURL.format(root=root),
        "bin/uv": _UV.format(root=root, uv=_uv(), python=sys.executable),
        "user/.bash_profile": f"export SLURM_CONF={root}/etc/slurm.conf\n"
        # SkyPilot copies itself into a folder for temporary files that is named by its digest: on a
        # node, which is a machine of its own, it must not be the one of whoever rents the node.
        f"export TMPDIR={root}/user/tmp\n"
        f"export PATH={root}/bin:$PATH\n[ -f ~/.bashrc ] && . ~/.bashrc\n",
    }
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.parent.name == "bin":
            path.chmod(0o755)
    for key in ("host", "client"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(root / "etc" / key)],
            check=True,
        )
    # The user has been on the login node before.
    port, host_key = slurm.ports["ssh"], (root / "etc" / "host.pub").read_text()
    (root / "etc" / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
    authorized = root / "user" / ".ssh" / "authorized_keys"
    authorized.parent.mkdir()
    (root / "user" / "tmp").mkdir()
    authorized.write_text((root / "etc" / "client.pub").read_text())
    (root / "munge" / "key").write_bytes(secrets.token_bytes(1024))
    (root / "munge" / "key").chmod(0o400)
    give(root / "munge", "munge")
    give(root / "user", USER)
    seed_catalogue(root / "home" / ".sky" / "catalogs" / "v8")


def _reveal(root: Path) -> str:
    """Shell lines that show this Python to the cluster's user where a closed folder hides it: in
    the node's own mounts, that folder becomes an empty one with nothing but Python in it."""
    keep, hide, show = ["true"], set(), []
    for path in dict.fromkeys(Path(p).resolve() for p in (sys.base_prefix, sys.prefix)):
        closed = [parent for parent in path.parents if not parent.stat().st_mode & 0o001]
        if closed:
            kept = root / "revealed" / path.name
            keep += [f"mkdir -p {kept}", f"mount --bind {path} {kept}"]
            hide.add(f"mount -t tmpfs -o mode=755 none {closed[-1]}")
            show += [f"mkdir -p {path}", f"mount --bind {kept} {path}"]
    return "; ".join([*keep, *hide, *show]) + ";"


def seed_catalogue(folder: Path) -> None:
    """The two small files without which SkyPilot would download its catalogue."""
    (folder / "common").mkdir(parents=True)
    clouds = "\"['AWS', 'GCP']\""
    (folder / "common" / "accelerators.csv").write_text(
        "AcceleratorName,Clouds\n" + "".join(f"{name},{clouds}\n" for name in ("L4", "A100"))
    )
    (folder / "common" / "metadata.csv").write_text(
        "GPU,MemoryGB,Manufacturer\nL4,24,NVIDIA\nA100,40,NVIDIA\n"
    )
    (folder / "slurm").mkdir()
    (folder / "slurm" / "pricing.csv").write_text(
        "Region,Zone,PricePerVCPU,PricePerMemoryGB,AcceleratorName,PricePerAccelerator\n"
    )


def _slurm_conf(slurm: Slurm) -> str:
    root = slurm.root
    nodes = "".join(
        f"NodeName={n.name} NodeHostname={n.name} NodeAddr={n.address} Port={n.port} CPUs=8 "
        f"RealMemory=16000 Gres=gpu:{n.gpu}:1 State=UNKNOWN\n"
        for n in slurm.nodes
    )
    zones: dict[str, list[str]] = {}
    for node in slurm.nodes:
        zones.setdefault(node.partition, []).append(node.name)
    partitions = "".join(
        f"PartitionName={zone} Nodes={','.join(names)} Default={'NO' if i else 'YES'} "
        "DefaultTime=1-00:00:00 MaxTime=7-00:00:00 State=UP\n"
        for i, (zone, names) in enumerate(zones.items())
    )
    return f"""ClusterName={CLUSTER}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={slurm.ports["ctl"]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=20
KillWait=5
MinJobAge=300
InactiveLimit=0
TreeWidth=65533
GresTypes=gpu
{nodes}{partitions}"""


def _sshd_config(slurm: Slurm) -> str:
    return f"""Port {slurm.ports["ssh"]}
ListenAddress 127.0.0.1
HostKey {slurm.root}/etc/host
PidFile {slurm.root}/run/sshd.pid
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
AllowUsers {USER}
SetEnv SLURM_CONF={slurm.root}/etc/slurm.conf
Subsystem sftp internal-sftp
MaxSessions 100
MaxStartups 100:30:200
PrintMotd no
"""


def _client_config(slurm: Slurm) -> str:
    return f"""Host {CLUSTER}
    HostName 127.0.0.1
    Port {slurm.ports["ssh"]}
    User {USER}
    IdentityFile {slurm.root}/etc/client
    IdentitiesOnly yes
    UserKnownHostsFile {slurm.root}/etc/known_hosts
"""


_SKY_CONFIG = f"""allowed_clouds: [slurm]
slurm:
  provision_timeout: 60
  cluster_configs:
    {CLUSTER}:
      tmpdir: /sktmp
"""

# One slurmd in namespaces of its own: host name, /etc/hosts and /sktmp are that node's, so that
# its name resolves to its own address, on which SkyPilot insists.
_START_NODE = """#!/bin/bash
set -e
n=$1
mkdir -p /sktmp {root}/spool/$n {root}/tmp/$n
chmod 1777 /sktmp {root}/tmp/$n
exec unshare -u -m bash -c "mount --make-rprivate /; hostname $n;
  mount --bind {root}/etc/hosts /etc/hosts; mount --bind {root}/tmp/$n /sktmp;
  {reveal}
  exec /usr/sbin/slurmd -D -N $n -f {root}/etc/slurm.conf"
"""

# SkyPilot's node set-up runs: curl -LsSf https://astral.sh/uv/install.sh | UV_INSTALL_DIR=... sh
_CURL = """#!/bin/bash
for a in "$@"; do
  if [[ "$a" == https://astral.sh/uv/install.sh ]]; then
    echo 'mkdir -p "$UV_INSTALL_DIR" && cp {root}/bin/uv "$UV_INSTALL_DIR/uv"'
    exit 0
  fi
done
echo "curl $*: not on this cluster" >&2
exit 6
"""

_UV = """#!/bin/bash
export UV_PYTHON_DOWNLOADS=never UV_CACHE_DIR={root}/uvcache UV_LINK_MODE=copy
[ -f /etc/ssl/certs/ca-certificates.crt ] && export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
args=(); prev=
for a in "$@"; do
  if [[ "$prev" == --python && "$a" == 3.10 ]]; then a={python}; fi
  args+=("$a"); prev="$a"
done
exec {uv} "${{args[@]}}"
"""


def _start(slurm: Slurm) -> None:
    root = slurm.root
    munge = pwd.getpwnam("munge")
    os.chown(root / "log", munge.pw_uid, -1)
    # munged insists on folders of its own that nobody else may write to.
    _spawn(
        slurm, "munged", "--foreground", "--force", f"--key-file={root}/munge/key",
        f"--socket={root}/munge/socket", f"--pid-file={root}/munge/pid",
        f"--log-file={root}/munge/log", f"--seed-file={root}/munge/seed", user=munge.pw_uid,
    )  # fmt: skip
    os.chown(root / "log", 0, -1)
    _until(lambda: (root / "munge" / "socket").exists(), "munged")
    _spawn(slurm, "slurmctld", "-D", "-f", str(root / "etc" / "slurm.conf"))
    for node in slurm.nodes:
        _spawn(slurm, str(root / "bin" / "start-node"), node.name)
    Path("/run/sshd").mkdir(exist_ok=True)
    _spawn(slurm, "/usr/sbin/sshd", "-D", "-f", str(root / "etc" / "sshd_config"))

    def all_idle() -> bool:
        try:
            states = slurm.run("sinfo", "-h", "-N", "-o", "%N %T").split("\n")
        except subprocess.SubprocessError:
            return False
        idle = {line.split()[0] for line in states if line.endswith(" idle")}
        return idle == {node.name for node in slurm.nodes}

    _until(all_idle, "slurmd")


def _spawn(slurm: Slurm, *command: str, user: int | None = None) -> None:
    name = Path(command[0]).name
    with (slurm.root / f"{name}-{len(slurm.processes)}.out").open("wb") as output:
        slurm.processes.append(
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"},
                user=user, start_new_session=True,
            )
        )  # fmt: skip


def _stop(slurm: Slurm) -> None:
    """End what was started, by pid, then whatever still runs as the cluster's user."""
    environment = {**os.environ, **slurm.environment}
    if len(slurm.processes) > 1:
        subprocess.run(
            ["scancel", "-u", USER, "-f"], env=environment, capture_output=True, check=False,
            timeout=30,
        )  # fmt: skip
        with suppress(TimeoutError, subprocess.SubprocessError):
            _until(lambda: not slurm.jobs(), "scancel", seconds=15.0)
    for process in reversed(slurm.processes):
        process.terminate()
    for process in slurm.processes:
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    uid = pwd.getpwnam(USER).pw_uid
    deadline = time.monotonic() + 10
    # SkyPilot's API server starts itself and outlives its clients.
    while (left := _left(uid, slurm)) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.1)


def _left(uid: int, slurm: Slurm) -> list[psutil.Process]:
    """The cluster's user's processes, what slurmd left, SkyPilot's API server with its children."""
    found = []
    for process in psutil.process_iter(["uids", "cmdline", "name"]):
        command = process.info["cmdline"] or ()
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.info["uids"] and process.info["uids"].real == uid:
                found.append(process)
            elif "sky.server.server" in command and f"--port={slurm.ports['sky']}" in command:
                found += [*process.children(recursive=True), process]
            elif process.info["name"] == "slurmstepd" and str(slurm.root) in process.cwd():
                found.append(process)
    return found


def give(path: Path, user: str) -> None:
    """A folder with all in it becomes that user's."""
    owner = pwd.getpwnam(user)
    for entry in (path, *path.rglob("*")):
        os.chown(entry, owner.pw_uid, owner.pw_gid)


def _until(condition, what: str, *, seconds: float = READY_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} is not ready after {seconds:.0f} s")
        time.sleep(0.2)
