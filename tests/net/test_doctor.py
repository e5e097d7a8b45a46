"""`catchment doctor`: each thing that can be wrong is found, with what to do; the bundle holds no secret."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from catchment import config, lake
from catchment.cli import bundle, checks, neighbour
from catchment.cli.checks import Finding, Patient, filesystem_of
from catchment.cli.main import main
from catchment.client.streamr import StreamrClient
from catchment.config import HIDDEN, Settings

from . import certificates
from .processes import CATCHMENT, NodeProcess, node_process, run


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(config.ENVIRONMENT_PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, list[Finding]]]:
    """The exit code and the findings by check, at a free port unless one is named."""
    flags = list(arguments) if "--port" in arguments else [*arguments, "--port", "0"]
    code = main(["doctor", "--json", "--mosaic-port", "0", *flags])
    found: dict[str, list[Finding]] = {}
    for each in json.loads(capsys.readouterr().out):
        found.setdefault(each["check"], []).append(Finding(**each))
    return code, found


Captured = pytest.CaptureFixture[str]


def problem(found: dict[str, list[Finding]], check: str) -> Finding:
    (finding,) = (each for each in found[check] if each.level == "problem")
    assert finding.next, "a problem says what to do"
    return finding


class TestAllIsWell:
    def test_a_new_folder(self, capsys: Captured, tmp_path: Path) -> None:
        code, found = doctor(capsys, "--data", str(tmp_path / "new"))
        assert code == 0
        assert set(found) >= {"settings", "python", "packages", "java", "spark", "disk", "data", "store", "lake"}
        assert set(found) >= {"port", "files", "clock"}
        assert not (tmp_path / "new").exists()
        assert list(tmp_path.iterdir()) == []

    def test_for_people(self, capsys: Captured, tmp_path: Path) -> None:
        assert main(["doctor", "--port", "0"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].startswith("ok       python    CPython 3.")
        assert lines[-1].startswith("no problems, ")

    @pytest.mark.spark
    def test_spark_starts_when_asked(self, tmp_path: Path) -> None:
        ended = run("doctor", "--spark", "--json", "--port", "0", timeout=300)
        (spark,) = (each for each in json.loads(ended.stdout) if each["check"] == "spark")
        assert "counted 1000 rows" in spark["found"]

    def test_a_certificate(self, capsys: Captured, tmp_path: Path) -> None:
        code, found = doctor(capsys, *certificates.make(tmp_path, "good").flags)
        assert (code, found["tls"][0].level) == (0, "ok")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with node_process(tmp_path / "node", "--seal-seconds", "0.05") as node:
        yield node


def flags_of(node: NodeProcess) -> list[str]:
    return ["--port", node.url.rsplit(":", 1)[1], "--data", str(node.folder / "data")]


def publish(node: NodeProcess) -> None:
    async def send() -> None:
        async with StreamrClient(node.url) as client:
            await client.publish("s", {"n": 1})

    asyncio.run(send())


class TestBesideANode:
    def test_port_and_store_are_held_by_it(self, node: NodeProcess, capsys: Captured) -> None:
        publish(node)
        code, found = doctor(capsys, *flags_of(node))
        assert code == 0
        assert "held by a running node" in found["port"][0].found
        assert f"a node has it (process {node.process.pid})" in found["store"][0].found
        publish(node)  # it goes on
        assert node.stop() == 0
        _, found = doctor(capsys, *flags_of(node))
        assert "a node has it" not in found["store"][0].found
        assert "raw at version" in found["lake"][0].found

    def test_a_second_node_is_told_whose_folder_it_is(self, node: NodeProcess) -> None:
        ended = run("serve", "--port", "0", "--data", str(node.folder / "data"))
        assert f"in use by another node (process {node.process.pid})" in ended.stderr
        ended = run("serve", "--port", "0", "--data", str(node.folder / "data"))
        assert f"(process {node.process.pid})" in ended.stderr

    def test_what_the_node_says_of_itself(self, tmp_path: Path, capsys: Captured) -> None:
        with node_process(tmp_path / "full", "--store-bytes", "1") as full:
            ended = run("pub", "s", "[1]", "--unsigned", "--url", full.url)
            assert ended.returncode == 1
            code, found = doctor(capsys, *flags_of(full))
            assert code == 1
            assert "check store" in problem(found, "node").found

    def test_a_node_with_tls(self, tmp_path: Path, capsys: Captured) -> None:
        pair = certificates.make(tmp_path, "node")
        with node_process(tmp_path / "tls", *pair.flags) as node:
            _, found = doctor(capsys, *flags_of(node), *pair.flags)
            assert "held by a running node" in found["port"][0].found


class TestWhatIsWrong:
    def test_settings(self, capsys: Captured, tmp_path: Path) -> None:
        file = tmp_path / "node.toml"
        file.write_text("prot = 5")
        code, found = doctor(capsys, "--config", str(file))
        assert code == 1
        assert "Did you mean 'port'?" in problem(found, "settings").found
        assert "python" in found

    def test_a_port_that_something_else_has(self, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(neighbour, "SECONDS", 0.2)  # the other one says nothing
        with socket.create_server(("127.0.0.1", 0)) as other:
            code, found = doctor(capsys, "--port", str(other.getsockname()[1]))
        assert code == 1
        assert "held by another program" in problem(found, "port").found

    def test_a_mosaic_port_that_something_else_has(self, capsys: Captured) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            code, found = doctor(capsys, "--mosaic-port", str(other.getsockname()[1]))
        assert code == 0
        assert [(each.level, each.next) for each in found["port"]][1:] == [("warning", "Choose with --mosaic-port.")]

    def test_an_address_of_another_machine(self, capsys: Captured) -> None:
        for host in ("192.0.2.1", "nowhere.invalid"):
            assert "--host" in problem(doctor(capsys, "--host", host)[1], "port").next

    def test_a_folder_that_cannot_be_written(self, capsys: Captured, tmp_path: Path) -> None:
        assert "cannot be used" in problem(doctor(capsys, "--data", "/proc/x")[1], "data").found
        file = tmp_path / "file"
        file.touch()
        assert "is not a folder" in problem(doctor(capsys, "--data", str(file / "below"))[1], "data").found

    def test_a_full_disk(self, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checks, "FREE_LEAST", 2**70)
        assert "GiB free" in problem(doctor(capsys)[1], "disk").found
        monkeypatch.setattr(checks, "FREE_LEAST", 0)
        monkeypatch.setattr(checks, "FREE_WISHED", 2**70)
        assert doctor(capsys)[1]["disk"][0].level == "warning"

    def test_few_files(self, tmp_path: Path) -> None:
        for limit, level in ((200, "problem"), (1000, "warning")):
            command = f"ulimit -n {limit}; exec {' '.join(CATCHMENT)} doctor --json --port 0"
            ended = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
            (files,) = (each for each in json.loads(ended.stdout) if each["check"] == "files")
            assert files["level"] == level
            assert "ulimit -n" in files["next"]

    def test_a_clock_that_is_years_off(self, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checks, "YEARS", range(1970, 1971))
        assert "NTP" in problem(doctor(capsys)[1], "clock").next

    def test_a_store_that_is_none(self, capsys: Captured, tmp_path: Path) -> None:
        store = tmp_path / "data" / "store"
        store.mkdir(parents=True)
        (store / "data.mdb").write_bytes(b"rubbish" * 10_000)
        assert str(store) in problem(doctor(capsys, "--data", str(tmp_path / "data"))[1], "store").found

    def test_a_lake_of_a_newer_format(self, capsys: Captured, tmp_path: Path) -> None:
        address = lake.raw_address(str(tmp_path / "data" / "lake"))
        Path(address).mkdir(parents=True)
        DeltaTable.create(
            address,
            lake.RAW_SCHEMA,
            configuration={lake.FORMAT_PROPERTY: "99"},
            raise_if_key_not_exists=False,
        )
        assert "newer" in problem(doctor(capsys, "--data", str(tmp_path / "data"))[1], "lake").found

    def test_a_lake_that_cannot_be_read(self, capsys: Captured, tmp_path: Path) -> None:
        log = Path(lake.raw_address(str(tmp_path / "data" / "lake"))) / "_delta_log"
        log.mkdir(parents=True)
        (log / "00000000000000000000.json").write_text("rubbish\n")
        assert "lake verify" in problem(doctor(capsys, "--data", str(tmp_path / "data"))[1], "lake").next

    def test_certificates(self, capsys: Captured, tmp_path: Path) -> None:
        soon = certificates.make(tmp_path, "soon", days=2)
        code, found = doctor(capsys, *soon.flags)
        assert (code, found["tls"][0].level) == (0, "warning")
        assert "SIGHUP" in found["tls"][0].next
        soon.key.unlink()
        assert "cannot be read" in problem(doctor(capsys, *soon.flags)[1], "tls").found

    def test_a_package_that_is_broken(self, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checks, "modules", lambda: {"blake3": "no_such_module"})
        assert "blake3 (No module named 'no_such_module')" in problem(doctor(capsys)[1], "packages").found

    def test_a_check_that_breaks_is_a_finding_too(self, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
        def break_down(patient: Patient) -> Iterator[Finding]:
            raise ZeroDivisionError("oh")

        monkeypatch.setattr(checks, "CHECKS", {})
        monkeypatch.setitem(checks.CHECKS, "arithmetic", break_down)
        monkeypatch.setattr("catchment.cli.doctor.CHECKS", checks.CHECKS)
        code, found = doctor(capsys)
        assert code == 1
        assert "ZeroDivisionError: oh" in problem(found, "arithmetic").found


MOUNTS = """\
/dev/root / ext4 rw 0 0
server:/x /mnt/far nfs4 rw 0 0
tmpfs /mnt/far/near tmpfs rw 0 0
/dev/sdb /mnt/a\\040b xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/x", "ext4"),
        ("/mnt/far/data", "nfs4"),
        ("/mnt/farther", "ext4"),
        ("/mnt/far/near/x", "tmpfs"),
        ("/mnt/a b/c", "xfs"),
    ],
)
def test_the_filesystem_of_a_path(path: str, kind: str) -> None:
    assert filesystem_of(Path(path), MOUNTS) == kind


PLANTED = {
    "setting in the environment": "swordfish-of-the-setting",
    "setting in the file": "herring-of-the-file",
    "variable": "carp-of-the-variable",
    "query": "pike-of-the-query",
    "userinfo": "trout-of-the-userinfo",
    "header": "eel-of-the-header",
    "session": "perch-of-the-session",
    "private key": "c0ffee" * 10 + "beef",
    "pem": "MIIBVgIBADANBgkqhkiG9w0BAQEFAASCAUAwggE8",
}

LOG = f"""\
{{"level":"info","message":"wss://node/api/v1/ws?apiKey={PLANTED["query"]}&controlLayerVersion=2"}}
12:00:00 info net: asked https://ann:{PLANTED["userinfo"]}@example.org/x for more
12:00:01 info net: authorization: Bearer {PLANTED["header"]}
12:00:02 info net: body {{"sessionToken":"{PLANTED["session"]}"}}
12:00:03 info net: signing with 0x{PLANTED["private key"]} and the variable {PLANTED["variable"]}
-----BEGIN PRIVATE KEY-----
{PLANTED["pem"]}
-----END PRIVATE KEY-----
12:00:04 info net: the setting {PLANTED["setting in the environment"]}, the other {PLANTED["setting in the file"]}
12:00:05 info net: an innocent line
"""


def members(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for each in archive.getmembers():
            file = archive.extractfile(each)
            assert file is not None
            found[each.name.removeprefix("catchment-doctor/")] = file.read().decode()
    return found


class TestBundle:
    @pytest.mark.parametrize("where", ["environment", "file"])
    def test_holds_no_secret(self, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        secret = PLANTED[f"setting in the {where}"]
        monkeypatch.setenv("NEIGHBOURS_API_TOKEN", PLANTED["variable"])
        flags = []
        if where == "environment":
            monkeypatch.setenv("CATCHMENT_TLS_KEY_PASSWORD", secret)
        else:
            file = tmp_path / "node.toml"
            file.write_text(f'tls_key_password = "{secret}"\n')
            file.chmod(0o600)
            flags = ["--config", str(file)]
        log = tmp_path / "node.log"
        log.write_text(LOG)
        out = tmp_path / "report.tar.gz"
        ended = run("doctor", "--port", "0", "--bundle", str(out), "--log", str(log), *flags)
        assert ended.returncode == 0, ended.stdout
        found = members(out)
        assert set(found) == {"doctor.json", "versions.json", "settings.json", "lake.json", "log.txt"}
        other = PLANTED[f"setting in the {'file' if where == 'environment' else 'environment'}"]
        for name, text in {**found, "printed": ended.stdout + ended.stderr}.items():
            for planted in set(PLANTED.values()) - {other}:  # a word that is no secret of this run may stand
                assert planted not in text, f"{planted} is in {name}"
        assert "an innocent line" in found["log.txt"]
        assert json.loads(found["settings.json"])["tls_key_password"]["value"] == HIDDEN

    def test_holds_what_a_report_needs(self, node: NodeProcess, tmp_path: Path) -> None:
        publish(node)
        out = tmp_path / "report.tar.gz"
        ended = run("doctor", *flags_of(node), "--bundle", str(out))
        assert str(out) in ended.stderr
        found = members(out)
        assert set(found) == {
            *("doctor.json", "versions.json", "settings.json", "lake.json", "info.json", "ready.json", "metrics.txt"),
        }
        assert "catchment_broker_messages_accepted_total" in found["metrics.txt"]
        assert json.loads(found["versions.json"])["packages"]["msgspec"][0].isdigit()
        assert json.loads(found["info.json"])["name"] == "catchment"
        assert json.loads(found["settings.json"])["data"]["from"] == "--data"
        assert stat.S_IMODE(out.stat().st_mode) == 0o600

    def test_overwrites_nothing(self, tmp_path: Path) -> None:
        out = tmp_path / "report.tar.gz"
        out.write_text("mine")
        ended = run("doctor", "--port", "0", "--bundle", str(out))
        assert ended.returncode == 2
        assert "exists already" in ended.stderr
        assert out.read_text() == "mine"

    def test_a_log_that_is_not_there(self, tmp_path: Path) -> None:
        ended = run("doctor", "--port", "0", "--bundle", str(tmp_path / "a.tar.gz"), "--log", str(tmp_path / "gone"))
        assert ended.returncode == 2
        assert "cannot be read" in ended.stderr
        assert not (tmp_path / "a.tar.gz").exists()

    def test_takes_the_end_of_a_long_log(self, tmp_path: Path) -> None:
        log = tmp_path / "node.log"
        log.write_text("".join(f"line {number}\n" for number in range(200_000)))
        lines = bundle.last_lines(log).splitlines()
        assert len(lines) == bundle.LOG_LINES
        assert lines[-1] == "line 199999"

    def test_short_values_of_variables_do_not_hide_everything(self) -> None:
        assert bundle.secrets(Settings(), {"X_TOKEN": "a", "KEYBOARD": "us", "AUTH_PATH": "/etc/x"}) == []
        assert bundle.secrets(Settings(tls_key_password="ab"), {"X_TOKEN": "abcd"}) == ["abcd", "ab"]
