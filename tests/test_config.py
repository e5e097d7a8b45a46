"""Settings: declared once, reachable everywhere, and refused in words that say where they stand."""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path

import msgspec
import pytest

from catchment import config
from catchment.cli import serve
from catchment.cli.main import main
from catchment.config import SETTINGS, Setting, load
from catchment.errors import UserError


def a_value(setting: Setting) -> object:
    """A valid value that is not the default."""
    if setting.choices:
        return next(choice for choice in setting.choices if choice != setting.default)
    return {int: 4321, float: 3.5, str: "elsewhere", bool: not setting.default}[setting.type]


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    serve.add_parsers(parser.add_subparsers())
    return parser


every_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=list(SETTINGS))
OPEN = {name: setting for name, setting in SETTINGS.items() if not setting.secret}
"""A secret has no flag."""


class TestEverySetting:
    @pytest.mark.parametrize("setting", OPEN.values(), ids=list(OPEN))
    def test_by_flag(self, setting: Setting, parser: argparse.ArgumentParser) -> None:
        arguments = parser.parse_args(["serve", setting.flag, str(a_value(setting))])
        flags = {name: getattr(arguments, name) for name in OPEN}
        assert getattr(load(flags=flags, environment={}), setting.name) == a_value(setting)

    @every_setting
    def test_by_variable(self, setting: Setting) -> None:
        settings = load(flags={}, environment={setting.variable: str(a_value(setting)), "PATH": "/bin"})
        assert getattr(settings, setting.name) == a_value(setting)

    @every_setting
    def test_by_file(self, setting: Setting, tmp_path: Path) -> None:
        file = tmp_path / "node.toml"
        file.write_text(f"{setting.name} = {config.toml(a_value(setting))}\n")
        file.chmod(0o600)
        settings = load(flags={}, environment={}, file=str(file))
        assert getattr(settings, setting.name) == a_value(setting)
        assert type(getattr(settings, setting.name)) is setting.type

    @every_setting
    def test_has_help_and_a_valid_default(self, setting: Setting, parser: argparse.ArgumentParser) -> None:
        assert setting.help.endswith(".")
        assert config.convert(setting, setting.default, "the default") == setting.default

    def test_help_can_be_shown(
        self, parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            parser.parse_args(["serve", "--help"])
        assert ended.value.code == 0
        shown = capsys.readouterr().out
        for setting in OPEN.values():
            assert setting.flag in shown
            assert setting.help in shown

    def test_flags_that_stay(self) -> None:
        """Issue 2: these names are promised."""
        promised = {"--host", "--port", "--mosaic-port", "--data", "--ready-file", "--log-format", "--log-level"}
        assert promised <= {setting.flag for setting in SETTINGS.values()}

    def test_defaults(self) -> None:
        settings = load(flags={}, environment={})
        assert (settings.host, settings.port, settings.mosaic_port) == ("127.0.0.1", 7170, 1320)
        assert settings == config.Settings()


class TestPrecedence:
    @pytest.fixture
    def file(self, tmp_path: Path) -> str:
        path = tmp_path / "node.toml"
        path.write_text('port = 1\nhost = "file"\nlog_level = "error"\n')
        return str(path)

    def test_file_then_environment_then_flags(self, file: str) -> None:
        settings = load(
            flags={"port": "3", "host": None},
            environment={"CATCHMENT_PORT": "2", "CATCHMENT_HOST": "environment"},
            file=file,
        )
        assert (settings.port, settings.host, settings.log_level) == (3, "environment", "error")

    def test_environment_over_file(self, file: str) -> None:
        assert load(flags={}, environment={"CATCHMENT_PORT": "2"}, file=file).port == 2

    def test_a_flag_may_be_zero_or_empty(self, file: str) -> None:
        settings = load(flags={"port": "0", "ready_file": ""}, environment={"CATCHMENT_READY_FILE": "x"}, file=file)
        assert (settings.port, settings.ready_file) == (0, "")

    def test_the_file_by_variable(self, file: str, tmp_path: Path) -> None:
        assert load(flags={}, environment={"CATCHMENT_CONFIG": file}).port == 1
        other = tmp_path / "other.toml"
        other.write_text("port = 9")
        assert load(flags={}, environment={"CATCHMENT_CONFIG": file}, file=str(other)).port == 9

    def test_the_environment_of_the_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CATCHMENT_PORT", "17")
        assert load(flags={}).port == 17


class TestRefused:
    def refused(self, tmp_path: Path, toml: str) -> str:
        file = tmp_path / "node.toml"
        file.write_text(toml)
        with pytest.raises(UserError) as caught:
            load(flags={}, environment={}, file=str(file))
        assert str(file) in str(caught.value)
        return str(caught.value)

    @pytest.mark.parametrize(
        ("key", "nearest"),
        [("prot", "port"), ("seal_second", "seal_seconds"), ("mosaic-port", "mosaic_port")],
    )
    def test_unknown_keys_name_the_nearest(self, tmp_path: Path, key: str, nearest: str) -> None:
        text = self.refused(tmp_path, f"{key} = 1")
        assert f"Unknown setting {key!r}" in text
        assert f"Did you mean {nearest!r}?" in text

    def test_unknown_keys_that_are_near_nothing(self, tmp_path: Path) -> None:
        assert "'catchment config sample' lists them" in self.refused(tmp_path, "zzzzqqqq = 1")

    def test_unknown_tables(self, tmp_path: Path) -> None:
        assert "Unknown setting 'node'" in self.refused(tmp_path, "[node]\nport = 1")

    def test_unknown_variables(self) -> None:
        with pytest.raises(UserError, match=r"Unknown setting 'prot' in the environment \(CATCHMENT_PROT\).*'port'"):
            load(flags={}, environment={"CATCHMENT_PROT": "1"})

    @pytest.mark.parametrize(
        ("toml", "words"),
        [
            ('port = "x"', "must be a whole number, not 'x'"),
            ("port = true", "must be a whole number, not True"),
            ("port = 7170.9", "must be a whole number, not 7170.9"),
            ("port = 7170.0", "must be a whole number, not 7170.0"),
            ("port = inf", "must be a whole number, not inf"),
            ("port = nan", "must be a whole number, not nan"),
            ("port = -1", "must be at least 0, not -1"),
            ("port = 65536", "must be at most 65535, not 65536"),
            ("port = []", "must be a whole number, not []"),
            ("port = 1979-05-27", "must be a whole number"),
            ("[port]\na = 1", "must be a whole number"),
            ("host = 5", "must be text, not 5"),
            ("host = false", "must be text, not False"),
            ("seal_seconds = nan", "must be a number, not nan"),
            ("seal_seconds = inf", "must be a number, not inf"),
            ("seal_seconds = -0.1", "must be at least 0, not -0.1"),
            ('seal_seconds = "soon"', "must be a number, not 'soon'"),
            ("seal_rows = 0", "must be at least 1, not 0"),
            ('log_level = "loud"', "must be one of debug, info, warning, error, not 'loud'"),
            ("log_level = 1", "must be text, not 1"),
        ],
    )
    def test_values_in_a_file(self, tmp_path: Path, toml: str, words: str) -> None:
        text = self.refused(tmp_path, toml)
        assert words in text
        assert toml.strip("[").split("]")[0].split(" ")[0] in text

    @pytest.mark.parametrize("value", ["", "x", "1.5", "0x10", "nan", "inf", "-1", "65536", "9" * 5000])
    def test_values_in_the_environment_and_flags(self, value: str) -> None:
        with pytest.raises(UserError, match=r"^CATCHMENT_PORT must be"):
            load(flags={}, environment={"CATCHMENT_PORT": value})
        with pytest.raises(UserError, match=r"^--port must be"):
            load(flags={"port": value}, environment={})

    @pytest.mark.parametrize("value", ["", "x", "nan", "inf", "-inf", "-1", "1e999"])
    def test_numbers_in_the_environment(self, value: str) -> None:
        with pytest.raises(UserError, match=r"^CATCHMENT_SEAL_SECONDS must be"):
            load(flags={}, environment={"CATCHMENT_SEAL_SECONDS": value})

    def test_whole_numbers_are_numbers(self, tmp_path: Path) -> None:
        file = tmp_path / "node.toml"
        file.write_text("seal_seconds = 3")
        assert load(flags={}, environment={}, file=str(file)).seal_seconds == 3.0

    @pytest.mark.parametrize("content", [b"port = ", b"port 5", b"\xff", b"port = 1\nport = 2"])
    def test_files_that_are_no_toml(self, tmp_path: Path, content: bytes) -> None:
        file = tmp_path / "node.toml"
        file.write_bytes(content)
        with pytest.raises(UserError, match="is not valid TOML") as caught:
            load(flags={}, environment={}, file=str(file))
        assert str(file) in str(caught.value)

    def test_files_that_are_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="cannot be read"):
            load(flags={}, environment={}, file=str(tmp_path / "missing.toml"))
        with pytest.raises(UserError, match="cannot be read"):
            load(flags={}, environment={"CATCHMENT_CONFIG": str(tmp_path)})


class TestOrigins:
    def test_every_value_says_where_it_came_from(self, tmp_path: Path) -> None:
        file = tmp_path / "node.toml"
        file.write_text('port = 1\nhost = "file"\nlog_level = "error"\n')
        resolved = config.resolve(
            flags={"port": "3"}, environment={"CATCHMENT_HOST": "here", "CATCHMENT_PORT": "2"}, file=str(file)
        )
        assert resolved.origins == dict.fromkeys(SETTINGS, "default") | {
            "port": "--port",
            "host": "CATCHMENT_HOST",
            "log_level": str(file),
        }


SECRET = Setting("A secret of this test.", secret=True, name="door_code", default="")
HUSH = "swordfish"


class TestSecrets:
    """Any setting can be a secret; this one is put into the declaration by the test."""

    @pytest.fixture(autouse=True)
    def _a_secret(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(config, "SETTINGS", {**SETTINGS, "host": SECRET_HOST})

    def test_is_hidden_in_the_representation(self) -> None:
        settings = load(flags={}, environment={"CATCHMENT_HOST": HUSH})
        assert settings.host == HUSH
        assert HUSH not in repr(settings)
        assert HUSH not in str(settings)
        assert f"host={config.HIDDEN!r}" in repr(settings)

    def test_is_hidden_in_what_config_show_prints(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("CATCHMENT_HOST", HUSH)
        for arguments in (["config", "show"], ["config", "show", "--json"], ["config", "check"]):
            assert main(arguments) == 0
            shown = capsys.readouterr()
            assert HUSH not in shown.out + shown.err
            assert (config.HIDDEN in shown.out) is (arguments[1] == "show")

    def test_is_hidden_in_refusals(self, tmp_path: Path) -> None:
        chosen = msgspec.structs.replace(SECRET, choices=("a", "b"))
        number = msgspec.structs.replace(SECRET, type=int, minimum=5)
        for setting, value in ((chosen, HUSH), (number, HUSH), (number, 3)):
            with pytest.raises(UserError) as caught:
                config.convert(setting, value, "CATCHMENT_DOOR_CODE")
            assert str(value) not in str(caught.value)
            assert config.HIDDEN in str(caught.value)

    def test_has_no_flag(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["config", "show", "--host", HUSH])
        with pytest.raises(UserError, match="set CATCHMENT_HOST"):
            load(flags={"host": HUSH}, environment={})

    def test_a_file_that_everyone_can_read_may_not_hold_one(self, tmp_path: Path) -> None:
        file = tmp_path / "node.toml"
        file.write_text(f'host = "{HUSH}"')
        file.chmod(0o644)
        with pytest.raises(UserError, match=f"chmod 640 {file}"):
            load(flags={}, environment={}, file=str(file))
        file.chmod(0o640)
        assert load(flags={}, environment={}, file=str(file)).host == HUSH


SECRET_HOST = msgspec.structs.replace(SETTINGS["host"], secret=True)


class TestSample:
    def test_parses_back_to_the_defaults(self, tmp_path: Path) -> None:
        file = tmp_path / "node.toml"
        file.write_text(config.sample())
        assert set(tomllib.loads(config.sample())) == set(SETTINGS)
        assert load(flags={}, environment={}, file=str(file)) == config.Settings()

    def test_explains_every_setting(self) -> None:
        text = " ".join(line.removeprefix("# ") for line in config.sample().splitlines())
        for setting in SETTINGS.values():
            assert setting.help in text

    def test_any_value_can_be_written_and_read_back(self) -> None:
        for value in ("", 'a "quoted" \\ one', "tab\tline\nnull\x00\x7f", "Grüße 😀", 0, -3, 1.5, 1e300, True, False):
            assert tomllib.loads(f"x = {config.toml(value)}") == {"x": value}


class TestTruth:
    SETTING = Setting("Whether.", name="whether", type=bool, default=False)

    @pytest.mark.parametrize("value", [True, "true", "Yes", "on", "1"])
    def test_true(self, value: object) -> None:
        assert config.convert(self.SETTING, value, "here") is True

    @pytest.mark.parametrize("value", [False, "false", "no", "OFF", "0"])
    def test_false(self, value: object) -> None:
        assert config.convert(self.SETTING, value, "here") is False

    @pytest.mark.parametrize("value", ["", "maybe", 1, 0, None, []])
    def test_neither(self, value: object) -> None:
        with pytest.raises(UserError, match="here must be true or false"):
            config.convert(self.SETTING, value, "here")


class TestCommand:
    @pytest.fixture(autouse=True)
    def _bare_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for variable in (*(setting.variable for setting in SETTINGS.values()), config.CONFIG_VARIABLE):
            monkeypatch.delenv(variable, raising=False)

    def test_show_takes_the_flags_of_serve(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["config", "show", "--json", "--port", "5"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["port"] == {"value": 5, "from": "--port", "reloadable": False}
        assert set(shown) == set(SETTINGS)
        assert {name for name, row in shown.items() if row["from"] != "default"} == {"port"}

    def test_check_refuses_what_serve_would(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["config", "check"]) == 0
        assert "are valid" in capsys.readouterr().out
        file = tmp_path / "node.toml"
        file.write_text("prot = 5")
        assert main(["config", "check", "--config", str(file)]) == 2
        assert "Did you mean 'port'?" in capsys.readouterr().err

    def test_sample_is_the_sample(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["config", "sample"]) == 0
        assert capsys.readouterr().out == config.sample()

    @pytest.mark.parametrize(
        ("arguments", "hint"),
        [
            (["serve", "--prot", "5"], "Did you mean --port?"),
            (["serve", "--seal-second=5"], "Did you mean --seal-seconds?"),
            (["config", "show", "--jsno"], "Did you mean --json?"),
            (["lake", "table", "raw", "--limits", "5"], "Did you mean --limit?"),
            (["serve", "--zzzzz"], "'catchment serve --help' lists what there is."),
        ],
    )
    def test_unknown_flags_name_the_nearest(
        self, arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert hint in capsys.readouterr().err

    def test_flags_are_not_shortened(self) -> None:
        with pytest.raises(SystemExit):
            main(["config", "show", "--por", "5"])


class TestChanged:
    def test_only_what_can_be_reloaded_is_taken_over(self) -> None:
        old = config.Settings(port=1, log_level="info", hot_hours=1.0)
        new = config.Settings(port=2, log_level="debug", hot_hours=1.0)
        merged, applied, restart = config.changed(old, new)
        assert (applied, restart) == (["log_level"], ["port"])
        assert merged == config.Settings(port=1, log_level="debug", hot_hours=1.0)
