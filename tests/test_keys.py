"""Key files: made once, readable by their owner only, refused in one sentence otherwise."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from catchment.cli import keys
from catchment.cli.main import main
from catchment.errors import UserError

KEY = bytes(range(1, 33))


def key_file(tmp_path: Path, content: str | bytes = KEY.hex() + "\n", mode: int = 0o600) -> Path:
    path = tmp_path / "streamr.key"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


def refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        keys.load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


class TestMake:
    def test_then_load(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "folder" / "streamr.key"
        made = keys.make(path)
        assert keys.load(path).address == made.address
        assert keys.load_bytes(path).hex() == path.read_text().strip()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_each_is_another(self, tmp_path: Path) -> None:
        assert keys.make(tmp_path / "a").address != keys.make(tmp_path / "b").address

    def test_never_overwrites(self, tmp_path: Path) -> None:
        path = key_file(tmp_path)
        with pytest.raises(UserError, match="exists already"):
            keys.make(path)
        assert keys.load_bytes(path) == KEY

    def test_does_not_follow_a_link_to_nowhere(self, tmp_path: Path) -> None:
        path = tmp_path / "link"
        path.symlink_to(tmp_path / "target")
        with pytest.raises(UserError, match="exists already"):
            keys.make(path)
        assert not (tmp_path / "target").exists()

    @pytest.mark.parametrize("below", ["file/streamr.key", "file/folder/streamr.key"])
    def test_where_no_folder_can_be(self, tmp_path: Path, below: str) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(UserError, match="cannot be made: Not a directory"):
            keys.make(tmp_path / below)


class TestLoad:
    @pytest.mark.parametrize("content", [KEY.hex(), KEY.hex() + "\n", "0x" + KEY.hex(), f"  {KEY.hex().upper()} \r\n"])
    def test_spellings(self, tmp_path: Path, content: str) -> None:
        assert keys.load_bytes(key_file(tmp_path, content)) == KEY

    @pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o660, 0o601, 0o610])
    def test_open_to_others(self, tmp_path: Path, mode: int) -> None:
        path = key_file(tmp_path, mode=mode)
        assert f"chmod 600 {path}" in refused(path)

    @pytest.mark.parametrize("mode", [0o600, 0o400])
    def test_closed_to_others(self, tmp_path: Path, mode: int) -> None:
        assert keys.load_bytes(key_file(tmp_path, mode=mode)) == KEY

    @pytest.mark.parametrize(
        "content",
        ["", "hello", KEY.hex()[:-2], KEY.hex() + "00", KEY.hex()[:-1], "00" * 32, "ff" * 32, b"\xff" * 64, KEY],
    )
    def test_no_key_in_it(self, tmp_path: Path, content: str | bytes) -> None:
        text = refused(key_file(tmp_path, content))
        assert "64 hex digits" in text
        if isinstance(content, str) and len(content) > 10:
            assert content not in text  # a mistyped key is still a secret

    def test_missing(self, tmp_path: Path) -> None:
        assert "catchment keys new" in refused(tmp_path / "missing.key")

    def test_a_folder(self, tmp_path: Path) -> None:
        refused(tmp_path)


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert keys.default_path() == tmp_path / "catchment" / "streamr.key"
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert keys.default_path() == tmp_path / "home" / ".config" / "catchment" / "streamr.key"


def test_a_mosaic_servers_key_is_shown_as_clients_know_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mosaic.key"
    assert main(["keys", "--mosaic", "new", str(path)]) == 0
    shown = capsys.readouterr().out.split()
    assert shown[0] == "mosaic"
    assert shown[1].startswith("mosrv0")
    assert main(["keys", "--mosaic", "--json", "show", str(path)]) == 0
    assert shown[1] in capsys.readouterr().out
    assert keys.mosaic_server(path, new=False) == shown[1]
    with pytest.raises(UserError, match="never overwritten"):
        keys.mosaic_server(path, new=True)
    with pytest.raises(UserError, match="first starts"):
        keys.mosaic_server(tmp_path / "none", new=False)
