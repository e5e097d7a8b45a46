"""What `catchment doctor` looks at: functions from a `Patient` to findings, listed in `CHECKS`.

Each finding says what was found and, unless all is well, what to do next. Nothing is changed: probes are made in a
folder of their own and taken away.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib
import importlib.util
import mmap
import os
import platform
import re
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

import lmdb
import msgspec

from catchment import config, lake
from catchment.cli import neighbour
from catchment.errors import CatchmentError, UserError
from catchment.store import environment

Level = Literal["ok", "warning", "problem"]

OLDEST_PYTHON: Final = (3, 11)
GIB: Final = 2**30
FREE_LEAST: Final = GIB // 4
FREE_WISHED: Final = 2 * GIB
FILES_LEAST: Final = 256
FILES_WISHED: Final = 4096
"""Each connection is one open file."""

YEARS: Final = range(2025, 2100)
FAR_FILESYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs"})
"""Where a memory map is not coherent between machines; LMDB's authors advise against them."""

STA_UNSYNC: Final = 0x40
"""adjtimex(2): nobody keeps this clock."""


class Finding(msgspec.Struct, frozen=True):
    """One line of the report."""

    check: str
    level: Level
    found: str
    next: str = ""


class Patient(msgspec.Struct, frozen=True):
    """What is examined."""

    settings: config.Settings
    start_spark: bool = False

    @property
    def folder(self) -> Path:
        """The node's data folder."""
        return Path(self.settings.data)

    @property
    def lake(self) -> str:
        """The lake's address."""
        return str(self.folder / "lake")


def python(patient: Patient) -> Iterator[Finding]:
    """The interpreter."""
    found = f"{platform.python_implementation()} {platform.python_version()}, {sys.maxsize.bit_length() + 1} bits"
    if sys.version_info[:2] < OLDEST_PYTHON:
        yield Finding("python", "problem", found, "Install Python 3.11 or later and Catchment into it.")
    elif sys.maxsize <= 2**32:
        yield Finding("python", "warning", found, "Use a 64-bit Python: the store's map is limited to 1 GiB here.")
    else:
        yield Finding("python", "ok", found)


def packages(patient: Patient) -> Iterator[Finding]:
    """Everything the base install needs can be imported."""
    broken = []
    names = requirements()
    known = modules()
    for name in names:
        try:
            importlib.import_module(known.get(_plain(name), name))
        except Exception as error:  # noqa: BLE001 - a broken package may raise anything
            broken.append(f"{name} ({error})")
    if broken:
        found = f"cannot be imported: {', '.join(broken)}"
        yield Finding("packages", "problem", found, "Install anew: pip install --force-reinstall catchment")
    elif not names:
        yield Finding("packages", "warning", "catchment itself is not installed", "pip install catchment")
    else:
        yield Finding("packages", "ok", f"all {len(names)} packages of the base install can be imported")


def _plain(name: str) -> str:
    """A distribution's name as it is compared: pyOpenSSL and pyopenssl are one."""
    return re.sub(r"[-_.]+", "_", name).lower()


def modules() -> dict[str, str]:
    """What is imported of each installed distribution: the module of the same name, or its first public one."""
    found: dict[str, str] = {}
    for module, distributions in sorted(metadata.packages_distributions().items()):
        for distribution in map(_plain, distributions):
            if _plain(module) == distribution or (not module.startswith("_") and distribution not in found):
                found[distribution] = module
    return found


def requirements() -> list[str]:
    """The distributions the base install names for this platform."""
    try:
        named = metadata.requires("catchment") or []
    except metadata.PackageNotFoundError:
        return []
    here = [line for line in named if "extra ==" not in line and not ("win32" in line and sys.platform == "win32")]
    return sorted(re.split(r"[^\w.-]", line)[0] for line in here)


def java_and_spark(patient: Patient) -> Iterator[Finding]:
    """What `catchment lake run` needs; a node needs neither."""
    from catchment.pipeline import java  # noqa: PLC0415 - only here

    only_for = "Only `catchment lake run` needs it."
    if importlib.util.find_spec("pyspark") is None:
        yield Finding("spark", "warning", "not installed", f"pip install 'catchment[spark]'. {only_for}")
        return
    try:
        home = java.find_java()
    except UserError as error:
        yield Finding("java", "warning", str(error), only_for)
        return
    yield Finding("java", "ok", f"Java {java.java_version(home)} in {home}")
    version = metadata.version("pyspark")
    if not patient.start_spark:
        yield Finding("spark", "ok", f"PySpark {version} is installed; --spark starts it")
        return
    yield _started(version)


def _started(version: str) -> Finding:
    from catchment.pipeline.session import spark_session  # noqa: PLC0415 - Spark is an extra and slow to import

    before = time.monotonic()
    try:
        session = spark_session()
        counted = session.range(1000).count()
        session.stop()
    except Exception as error:  # noqa: BLE001 - Java's exceptions come as many classes
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        return Finding("spark", "problem", f"PySpark {version} does not run: {reason}", "See the sentence before this.")
    return Finding("spark", "ok", f"PySpark {version} counted {counted} rows in {time.monotonic() - before:.1f} s")


def data_folder(patient: Patient) -> Iterator[Finding]:
    """It can be written, forced to disk and mapped, lies on a local filesystem, and has room."""
    folder = patient.folder
    there = _existing(folder)
    if not there.is_dir():
        yield Finding("data", "problem", f"{there} is not a folder", "Name another folder with --data.")
        return
    yield from _room(there)
    kind = filesystem_of(there)
    if kind in FAR_FILESYSTEMS:
        yield Finding(
            "filesystem", "problem", f"{there} is on {kind}", "Name a folder on a local disk with --data: LMDB maps it."
        )
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=there) as probe:
            _try_disk(Path(probe))
    except (OSError, ValueError, lmdb.Error) as error:
        told = getattr(error, "strerror", None) or str(error)
        yield Finding("data", "problem", f"{there} cannot be used: {told}", "Name another folder with --data.")
        return
    made = "" if folder.exists() else f" ({folder} itself is made at the first start)"
    yield Finding("data", "ok", f"{there} can be written, forced to disk and mapped{made}; filesystem {kind}")


def _existing(folder: Path) -> Path:
    """The folder, or the nearest thing above it that exists."""
    resolved = folder.resolve()
    return next(each for each in (resolved, *resolved.parents) if each.exists())


def _room(there: Path) -> Iterator[Finding]:
    usage = shutil.disk_usage(there)
    found = f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free in {there}"
    inodes = os.statvfs(there)
    if usage.free < FREE_LEAST:
        yield Finding("disk", "problem", found, "Make room: publishes are refused when the disk is full.")
    elif usage.free < FREE_WISHED:
        yield Finding("disk", "warning", found, "Make room, or set --store-bytes so that reads go on when it is full.")
    elif inodes.f_files and inodes.f_favail < 10_000:
        yield Finding(
            "disk", "warning", f"{found}, {inodes.f_favail} files left", "Remove files: each seal makes some."
        )
    else:
        yield Finding("disk", "ok", found)


def _try_disk(probe: Path) -> None:
    """Write, force to disk and map a file, force the folder, and commit to an LMDB."""
    path = probe / "file"
    with path.open("w+b") as file:
        file.write(bytes(mmap.PAGESIZE))
        file.flush()
        os.fsync(file.fileno())
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as mapped:
            mapped[0] = 1
            mapped.flush()
    handle = os.open(probe, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    with lmdb.open(str(probe / "lmdb"), map_size=1 << 20) as env, env.begin(write=True) as txn:
        txn.put(b"key", b"value")


def filesystem_of(path: Path, mounts: str | None = None) -> str:
    """The kind of filesystem a path lies on, "unknown" where the system does not say."""
    try:
        text = Path("/proc/self/mounts").read_text() if mounts is None else mounts
    except OSError:
        return "unknown"
    best, kind = "", "unknown"
    for line in text.splitlines():
        _, mount, this, *_ = line.split(" ")
        mount = mount.replace("\\040", " ")
        if path.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, this
    return kind


def store(patient: Patient) -> Iterator[Finding]:
    """The hot store opens, and who has it."""
    path = patient.folder / "store"
    if not path.is_dir():
        yield Finding("store", "ok", f"{path} is not there yet; the first start makes it")
        return
    holder = lock_holder(patient.folder / "node.lock")
    held = "" if holder is None else f"; a node has it ({holder})"
    try:
        node = environment.peek(path)
    except UserError as error:
        yield Finding("store", "problem", str(error), "Restore the folder from a copy, or name another with --data.")
        return
    yield Finding("store", "ok", f"store of node {node.hex()}{held}")


def lock_holder(path: Path) -> str | None:
    """Who holds a lock file, None for nobody."""
    try:
        with path.open("r") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = lock.read(20).strip()
                return f"process {pid}" if pid.isdigit() else "an unknown process"
    except OSError:
        return None
    return None


def ports(patient: Patient) -> Iterator[Finding]:
    """The ports are free, or held by a node."""
    yield from _main_port(patient)
    settings = patient.settings
    if try_port(settings.host, settings.mosaic_port) is None:
        return
    if lock_holder(patient.folder / "node.lock") is None:
        found = f"{settings.host} port {settings.mosaic_port} (Mosaic) cannot be listened on"
        yield Finding("port", "warning", found, "Choose with --mosaic-port.")


def _main_port(patient: Patient) -> Iterator[Finding]:
    settings = patient.settings
    problem = try_port(settings.host, settings.port)
    where = f"{settings.host} port {settings.port}"
    if problem is None:
        yield Finding("port", "ok", f"{where} is free")
        return
    if problem == errno.EADDRINUSE:
        info = neighbour.ask(settings, "/api/info")
        if info is not None and info.get("name") == "catchment":
            yield Finding("port", "ok", f"{where} is held by a running node, {info.get('node')}")
            yield from _ready(settings)
            return
        yield Finding("port", "problem", f"{where} is held by another program", "Stop it, or choose with --port.")
        return
    told = os.strerror(problem)
    hint = {
        errno.EACCES: "Choose a port from 1024 on with --port, or allow this user to bind lower ones.",
        errno.EADDRNOTAVAIL: "Choose an address of this machine with --host.",
    }
    yield Finding("port", "problem", f"{where}: {told}", hint.get(problem, "Choose with --host and --port."))


def try_port(host: str, port: int) -> int | None:
    """The error number of listening there, None when it works."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        return errno.EADDRNOTAVAIL
    with socket.socket(family, kind, proto) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen()
        except OSError as error:
            return error.errno
    return None


def _ready(settings: config.Settings) -> Iterator[Finding]:
    """What the running node says of itself."""
    answer = neighbour.ask(settings, "/readyz") or {}
    checks = answer.get("checks")
    for name, result in checks.items() if isinstance(checks, dict) else ():
        if result != "ok":
            yield Finding("node", "problem", f"the running node's check {name}: {result}", "See its log.")


def files(patient: Patient) -> Iterator[Finding]:
    """Open files this user may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft} open files allowed"
    more = f"Raise it before the start: ulimit -n {FILES_WISHED * 16 if hard < 0 else min(hard, FILES_WISHED * 16)}"
    if 0 <= soft < FILES_LEAST:
        yield Finding("files", "problem", found, more)
    elif 0 <= soft < FILES_WISHED:
        yield Finding("files", "warning", f"{found}, one for each connection", more)
    else:
        yield Finding("files", "ok", found)


def clock(patient: Patient) -> Iterator[Finding]:
    """The time is plausible, passes as it should, and somebody keeps it."""
    now = datetime.now(UTC)
    found = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    advice = "Set the clock and let NTP keep it: messages from ahead of the node's clock are refused."
    if now.year not in YEARS:
        yield Finding("clock", "problem", f"it is {found}?", advice)
        return
    wall, steady = time.time(), time.monotonic()
    time.sleep(0.05)
    drift = abs((time.time() - wall) - (time.monotonic() - steady))
    if drift > 0.5:
        yield Finding("clock", "warning", f"it jumped {drift:.1f} s while being looked at", advice)
        return
    kept = clock_is_kept()
    if kept is False:
        yield Finding("clock", "warning", f"{found}; nobody keeps it", advice)
    else:
        yield Finding("clock", "ok", found + ("; kept by NTP" if kept else "; whether NTP keeps it is not known"))


def clock_is_kept() -> bool | None:
    """Whether the kernel says that the clock is synchronised; None where it does not say."""
    if not sys.platform.startswith("linux") or sys.maxsize <= 2**32:
        return None
    # struct timex: modes (4, padded to 8), offset, freq, maxerror, esterror (8 each), status (4). Modes 0 only reads.
    buffer = ctypes.create_string_buffer(512)
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    return not int.from_bytes(buffer.raw[40:44], sys.byteorder) & STA_UNSYNC


def tables(patient: Patient) -> Iterator[Finding]:
    """The lake's tables can be read and are of a format we know."""
    try:
        status = lake_status(patient.lake)
    except CatchmentError as error:
        yield Finding("lake", "problem", str(error), "`catchment lake verify` tells what is damaged.")
        return
    if not status:
        yield Finding("lake", "ok", f"nothing was sealed into {patient.lake} yet")
        return
    told = ", ".join(f"{name} at version {table['version']}" for name, table in status.items())
    yield Finding("lake", "ok", f"format {lake.RAW_FORMAT}; {told}")


def lake_status(address: str) -> dict[str, dict[str, object]]:
    """Version, files, rows and bytes of each table there is.

    Raises:
        CatchmentError: one cannot be read.
    """
    import pyarrow as pa  # noqa: PLC0415 - slow to import

    from catchment.pipeline.columns import TABLES  # noqa: PLC0415
    from catchment.pipeline.raw import open_raw  # noqa: PLC0415
    from catchment.pipeline.tables import LakeTable  # noqa: PLC0415

    opened = {"raw": open_raw(address)}
    for name, spec in TABLES.items():
        table = LakeTable.open(address, spec)
        opened[name] = None if table is None else table.delta
    found = {}
    for name, delta in opened.items():
        if delta is not None:
            actions = pa.table(delta.get_add_actions()).to_pylist()
            found[name] = {
                "version": delta.version(),
                "files": len(actions),
                "rows": sum(action["num_records"] or 0 for action in actions),
                "bytes": sum(action["size_bytes"] for action in actions),
            }
    return found


def certificate(patient: Patient) -> Iterator[Finding]:
    """The TLS files fit together and are good for some time."""
    settings = patient.settings
    if not (settings.tls_cert or settings.tls_key):
        return
    from catchment.net import tls  # noqa: PLC0415 - only with TLS

    try:
        tls.load(settings)
        end = tls.read_certificate(Path(settings.tls_cert)).not_valid_after_utc
    except UserError as error:
        yield Finding("tls", "problem", str(error), "Mend the files, then `catchment config check`.")
        return
    found = f"the certificate {settings.tls_cert} is good until {end:%Y-%m-%d}"
    soon = end < datetime.now(UTC) + tls.SOON
    yield Finding("tls", "warning" if soon else "ok", found, "Renew it and send the node SIGHUP." if soon else "")


CHECKS: Final[Mapping[str, Callable[[Patient], Iterator[Finding]]]] = {
    check.__name__: check
    for check in (python, packages, java_and_spark, data_folder, store, tables, ports, certificate, files, clock)
}
"""In the order of the report."""
