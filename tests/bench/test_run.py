"""Small real runs: every server here delivers each message once, and those that keep have all they acknowledged."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import fanout
import machine
import peers
import pytest
import run
import workloads
from machine import BenchError, Cores
from peers import PEERS
from workloads import Plan, Visit

needs_cc = pytest.mark.skipif(
    shutil.which(os.environ.get("CC", "cc")) is None,
    reason="the load generator is a C program, and there is no compiler",
)
HERE = [name for name, peer in PEERS.items() if name in ("copy", "copylog") or peer.find() is not None]
KEEP = [name for name in HERE if PEERS[name].keeps]
FEW = {"messages": 300, "warmup": 50}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers' folders are the test's own; the programs are compiled once."""
    monkeypatch.setattr(peers, "BUILD", tmp_path_factory.mktemp("build"))


@pytest.fixture
def cores() -> Cores:
    return Cores.of_this_machine()


# --- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workload", "fanout,dance"], "not dance"),
        (["--peers", "catchment,kafka"], "not kafka"),
        (["--rounds", "0"], "takes a number from 1"),
        (["--seconds", "-1"], "takes seconds above 0"),
        (["--seconds", "soon"], "takes seconds above 0"),
        (["--stored", "many"], "takes a number from 1"),
        (["--fast"], "unrecognized arguments"),
    ],
)
def test_wrong_arguments_end_with_code_2_and_say_what_is_known(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--size", "3"], ["--seconds", "0"], ["--peers", "kafka"]])
def test_wrong_arguments_of_the_short_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        fanout.main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err


def test_all_is_measured_unless_chosen() -> None:
    parsed = run.parse_arguments([])
    assert parsed.workload == list(workloads.WORKLOADS)
    assert parsed.peers == list(PEERS)
    assert parsed.plan == workloads.DEFAULT
    chosen = run.parse_arguments(["--quick", "--rounds", "2", "--stored", "70"]).plan
    assert (chosen.rounds, chosen.stored, chosen.last) == (2, 70, 70)


def test_a_missing_compiler_is_named_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "BUILD", tmp_path)
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(
        BenchError, match=r"no C compiler called no-such-compiler.*only benchmarks need.*apt install gcc"
    ):
        machine.compile_c("loadgen")


def test_a_missing_server_is_said_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "nats", dataclasses.replace(PEERS["nats"], find=lambda: None))
    said: list[str] = []
    present = peers.installed(["catchment", "nats"], said.append)
    assert [peer.name for peer in present] == ["catchment"]
    (text,) = said
    assert "apt install nats-server" in text


def test_without_this_node_there_is_nothing_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "catchment", dataclasses.replace(PEERS["catchment"], find=lambda: None))
    with pytest.raises(BenchError, match="make install"):
        peers.installed(["catchment"], print)


# --- servers -------------------------------------------------------------------------------------------------------


@needs_cc
@pytest.mark.parametrize("name", HERE)
def test_a_server_delivers_every_message_to_every_subscriber(name: str, cores: Cores) -> None:
    with Visit.to(PEERS[name], cores) as visit:
        wide = visit.measure("wide", "fanout", subscribers=7, window=64, **FEW)
        narrow = visit.measure("narrow", "fanout", subscribers=2, window=1, **FEW)
    assert (wide["deliveries"], narrow["deliveries"]) == (2100, 600)
    assert visit.published == 700
    assert all(sample.figure > sample.put_off >= 0 for sample in visit.samples.values())


@needs_cc
@pytest.mark.parametrize("name", KEEP)
def test_a_server_that_keeps_has_all_it_acknowledged(name: str, cores: Cores) -> None:
    with Visit.to(PEERS[name], cores) as visit:
        visit.measure("wide", "ingest", window=64, **FEW)
        visit.measure("narrow", "ingest", window=1, messages=20, warmup=5)
        visit.check()
        on_disk = sum(path.stat().st_size for path in visit.server.folder.rglob("*") if path.is_file())
        assert on_disk > 375 * 300, "it keeps them in memory only"
        last = visit.measure("last", "resend", total=375, count=30, times=3, warmup=1)
        assert visit.published == 375
        # One more than is there: noticed, and no figure. JetStream waits for the message that is to come.
        if name != "jetstream":
            visit.published = 376
            with pytest.raises(BenchError, match=r"ended after|is not number"):
                visit.check()
            visit.published = 375
    assert last["messages"] == 90


@needs_cc
@pytest.mark.parametrize("name", [name for name in HERE if not PEERS[name].keeps and not PEERS[name].floor])
def test_a_server_that_keeps_nothing_is_not_asked_to(name: str, cores: Cores) -> None:
    with pytest.raises(BenchError, match="keeps nothing"), Visit.to(PEERS[name], cores) as visit:
        visit.measure("wide", "ingest", window=64, **FEW)


@needs_cc
def test_three_versions_get_the_same_contents(cores: Cores) -> None:
    with Visit.to(PEERS["catchment"], cores) as visit:
        told = visit.measure("versions", "fanout", subscribers=6, window=8, versions=3, **FEW)
    assert told["deliveries"] == 1800


@needs_cc
def test_latencies_are_ordered(cores: Cores) -> None:
    with PEERS["copy"].running(cores) as server:
        told, _ = workloads.phase(
            PEERS["copy"], server, cores, "latency", {"subscribers": 2, "window": 4, "seconds": 0.05, "warmup": 10}
        )
    assert 0 < told["p50_us"] <= told["p99_us"] <= told["max_us"]
    assert told["rate"] == pytest.approx(told["capacity"] / 2, abs=0.1)


# --- whole runs ----------------------------------------------------------------------------------------------------


@needs_cc
def test_a_run_of_everything_measures_every_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = Plan(
        seconds=0.02,
        wide=((2, 8),),
        narrow=((1, 1),),
        ingest=(8,),
        signed=200,
        clients=5,
        stored=600,
        last=50,
        resends=2,
    )
    monkeypatch.setattr(run, "DEFAULT", tiny)
    words = ["--rounds", "1", "--peers", "catchment,copylog", "--json", str(tmp_path / "result.json")]
    assert run.main(words) == 0, capsys.readouterr().err
    assert (tmp_path / "result.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads((tmp_path / "result.json").read_text())
    measured = {case["case"]["name"]: case["samples"] for case in document["cases"]}
    wanted = [case.name for workload in workloads.WORKLOADS.values() for case in workload.cases(tiny)]
    assert list(measured) == wanted
    for samples in measured.values():
        assert "catchment" in samples
        assert {len(rounds) for rounds in samples.values()} == {1}
    assert set(measured["signed"]) == {"catchment", "coincurve", "coincurve recover"}
    assert set(measured["versions"]) == {"catchment", "3 versions"}
    assert measured["resend-all"]["catchment"][0]["extra"]["before_mb"] > 1
    shown = capsys.readouterr().out
    assert "fan-out to 2, 8 in flight" in shown
    assert "least of those that keep" in shown


@needs_cc
def test_the_short_command_answers_with_one_ratio(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "THEIRS", "copy")
    words = ["--rounds", "2", "--seconds", "0.02", "--subscribers", "3", "--window", "4", "--peers", "catchment,copy"]
    assert fanout.main(words) == 0
    assert "CPU us/delivery, catchment / copy: " in capsys.readouterr().out


@needs_cc
def test_a_server_that_fails_is_left_out_and_the_others_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = dataclasses.replace(PEERS["copylog"], command=lambda *_: ["false"])
    monkeypatch.setitem(PEERS, "copylog", broken)
    words = ["--rounds", "2", "--seconds", "0.02", "--workload", "memory", "--peers", "copylog,copy"]
    assert run.main([*words, "--json", str(tmp_path / "result.json")]) == 1
    document = json.loads((tmp_path / "result.json").read_text())
    (case,) = document["cases"]
    assert list(case["samples"]) == ["copy"]
    assert len(case["samples"]["copy"]) == 2
    (failure,) = document["failed"]
    assert failure.startswith("memory, copylog: copylog: ended with code 1 before it listened")
    assert "failed: memory, copylog" in capsys.readouterr().err


@needs_cc
def test_a_workload_that_cannot_be_prepared_does_not_end_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PEERS, "copylog", dataclasses.replace(PEERS["copylog"], command=lambda *_: ["false"]))
    words = ["--rounds", "1", "--stored", "10", "--workload", "resend,memory", "--peers", "copylog,copy"]
    assert run.main([*words, "--json", str(tmp_path / "result.json")]) == 1
    document = json.loads((tmp_path / "result.json").read_text())
    assert [case["case"]["name"] for case in document["cases"]] == ["memory"]
    assert document["failed"][0].startswith("resend: copylog: ended with code 1")
    assert "failed: resend" in capsys.readouterr().err
