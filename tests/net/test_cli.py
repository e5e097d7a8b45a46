"""The command line against a real node: what the README promises."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from .processes import CATCHMENT, node_process, run


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def test_pub_sub_and_resend(own_home: Path) -> None:
    with node_process(own_home / "node") as node:
        subscriber = subprocess.Popen(
            [*CATCHMENT, "sub", "greetings", "--count", "3", "--json", "--url", node.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert subscriber.stderr is not None
        assert "Subscribed" in subscriber.stderr.readline()
        first = run("pub", "greetings", '{"hello":"world"}', "--url", node.url)
        assert (first.returncode, first.stdout) == (0, "stored\n")
        assert "Made a key" in first.stderr
        rest = run("pub", "greetings", "--json", "--url", node.url, stdin="[1,2]\nplain words\n")
        assert rest.returncode == 0, rest.stderr
        assert [msgspec.json.decode(line)["outcome"] for line in rest.stdout.splitlines()] == ["stored", "stored"]
        with subscriber:
            shown, _ = subscriber.communicate(timeout=60)
        seen = [msgspec.json.decode(line) for line in shown.splitlines()]
        assert [row["content"] for row in seen] == ['{"hello":"world"}', "[1,2]", '"plain words"']
        assert {row["verdict"] for row in seen} == {"ok"}
        address = msgspec.json.decode(run("keys", "--json").stdout)["address"]
        assert {row["publisher"] for row in seen} == {address}
        last = run("resend", "greetings", "--last", "2", "--url", node.url)
        assert [line.split("  ", 2)[2] for line in last.stdout.splitlines()] == ["[1,2]", '"plain words"']
        start = str(seen[1]["timestamp"])
        later = run("resend", "greetings", "--from", start, "--json", "--url", node.url)
        assert [msgspec.json.decode(line)["content"] for line in later.stdout.splitlines()][-1] == '"plain words"'
        assert node.stop() == 0


def test_mistakes_are_one_sentence_and_exit_code_2(own_home: Path) -> None:
    for arguments in (
        ("serve", "--port", "70x"),
        ("serve", "--config", "nowhere.toml"),
        ("keys", "show", "nowhere.key"),
        ("resend", "s", "--last", "1", "--to", "5"),
    ):
        ended = run(*arguments)
        assert ended.returncode == 2, arguments
        assert ended.stderr.startswith("catchment: ")
        assert ended.stderr.count("\n") == 1


@pytest.mark.slow
def test_no_node_is_exit_code_1(own_home: Path) -> None:
    ended = run("resend", "s", "--last", "1", "--url", "ws://127.0.0.1:9")
    assert ended.returncode == 1
    assert ended.stderr.startswith("catchment: No node answers at ws://127.0.0.1:9")


def test_a_port_in_use_is_named(own_home: Path) -> None:
    with node_process(own_home / "node") as node:
        port = node.url.rsplit(":", 1)[1]
        ended = run("serve", "--port", port, "--data", str(own_home / "other"))
        assert ended.returncode == 2
        assert f"port {port}" in ended.stderr


def test_a_second_node_on_the_same_folder_is_refused(own_home: Path) -> None:
    with node_process(own_home / "node") as node:
        ended = run("serve", "--port", "0", "--data", str(node.folder / "data"))
        assert ended.returncode == 2
        assert "another node" in ended.stderr


def test_version_names_the_extras() -> None:
    shown = msgspec.json.decode(run("version", "--json").stdout)
    assert shown["extras"]["spark"] is not None
    assert shown["python"].startswith(f"{sys.version_info.major}.")


def test_encrypted_messages_by_one_address(own_home: Path) -> None:
    """A publisher that stays, a reader with another key, a stranger without one."""
    with node_process(own_home / "node") as node:
        address = node.url.replace("ws://", "streamr://") + "/secret/river"
        readers_key = str(own_home / "reader.key")
        assert run("keys", "new", readers_key).returncode == 0
        publisher = subprocess.Popen(
            [*CATCHMENT, "pub", address, "--encrypt", "--stay", "--keystore", str(own_home / "keys.json")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with publisher:
            assert publisher.stdin is not None
            assert publisher.stdout is not None
            assert publisher.stderr is not None
            publisher.stdin.write('{"level":1}\nplain words\n')
            publisher.stdin.close()
            assert [publisher.stdout.readline() for _ in range(2)] == ["stored\n", "stored\n"]
            assert "Made a key" in publisher.stderr.readline()
            assert "Answering" in publisher.stderr.readline()
            read = run("resend", address, "--last", "5", "--json", "--key", readers_key)
            assert read.returncode == 0, read.stderr
            rows = [msgspec.json.decode(line) for line in read.stdout.splitlines()]
            assert [(row["encrypted"], row["content"]) for row in rows] == [
                (False, '{"level":1}'),
                (False, '"plain words"'),
            ]
            followed = run("sub", address, "--last", "2", "--count", "2", "--key", readers_key)
            assert [line.split("  ", 2)[2] for line in followed.stdout.splitlines()] == ['{"level":1}', '"plain words"']
            publisher.send_signal(signal.SIGINT)
            assert publisher.wait(30) == 130
            assert publisher.stderr.read() == ""
        assert (own_home / "keys.json").stat().st_mode & 0o777 == 0o600
        assert node.stop() == 0


def test_ctrl_c_ends_a_publisher_that_waits_for_a_line(own_home: Path) -> None:
    with (
        node_process(own_home / "node") as node,
        subprocess.Popen(
            [*CATCHMENT, "pub", "s", "--url", node.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as publisher,
    ):
        assert publisher.stdin is not None
        assert publisher.stdout is not None
        publisher.stdin.write("1\n")
        publisher.stdin.flush()
        assert publisher.stdout.readline() == "stored\n"
        publisher.send_signal(signal.SIGINT)
        assert publisher.wait(30) == 130


def test_a_refused_line_ends_a_publish_with_one_sentence(own_home: Path) -> None:
    with node_process(own_home / "node") as node:
        lines = "1\n" + '"' + "x" * 2_000_000 + '"\n' + "3\n"
        ended = run("pub", "s", "--url", node.url, stdin=lines)
        assert ended.returncode == 1
        assert ended.stdout == "stored\n"
        assert "over the limit" in ended.stderr
        many = run("pub", "s", "--url", node.url, stdin="".join(f"{number}\n" for number in range(3000)))
        assert (many.returncode, many.stdout) == (0, "stored\n" * 3000)
        refused = run("pub", "s", "--partition", "5", "--url", node.url, stdin="1\n2\n")
        assert refused.returncode == 1
        assert refused.stderr.count("\n") == 1
        assert node.stop() == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("pub", "streamr://", "1"),
        ("pub", "http://127.0.0.1/s", "1"),
        ("pub", "streamr://127.0.0.1:1", "1"),
        ("pub", "s", "1", "--rotate"),
        ("pub", "s", "1", "--stay"),
        ("pub", "s", "1", "--allow", "0x00"),
        ("pub", "s", "1", "--encrypt", "--unsigned"),
        ("pub", "s", "1", "--partition", "1", "--partition-key", "k"),
        ("sub", "s", "--partition", "-1"),
        ("sub", "s", "--last", "1", "--from", "2"),
        ("sub", "s", "--key", "nowhere.key"),
    ],
    ids=" ".join,
)
def test_what_does_not_go_together_is_said(own_home: Path, arguments: tuple[str, ...]) -> None:
    ended = run(*arguments)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
