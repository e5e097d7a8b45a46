"""Every setting of the node, declared once.

A field of `Settings` is a setting: its name, type, default and help stand there and nowhere else, and reach the
command line (`--seal-seconds`), the environment (`CATCHMENT_SEAL_SECONDS`) and the file (`seal_seconds = 5`).
Precedence: file < environment < flags. Unknown keys are errors that name the nearest valid one.
"""

from __future__ import annotations

import difflib
import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, get_args, get_type_hints

import msgspec

from catchment.errors import UserError

ENVIRONMENT_PREFIX: Final = "CATCHMENT_"

MIB: Final = 1024 * 1024
MAX_PORT: Final = 65_535


class Setting(msgspec.Struct, frozen=True):
    """What is known about one setting."""

    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    name: str = ""
    type: type = str
    default: object = None

    @property
    def flag(self) -> str:
        """Its form on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its form in the environment."""
        return ENVIRONMENT_PREFIX + self.name.upper()


LOG_FORMATS: Final = ("auto", "text", "json")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
ACCESS_MODES: Final = ("open", "closed")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a node runs with."""

    host: Annotated[str, Setting("Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Setting("Port for HTTP and every WebSocket dialect; 0 takes a free one.", minimum=0, maximum=MAX_PORT)
    ] = 7170
    mosaic_port: Annotated[
        int,
        Setting("Port for Mosaic over TCP with TLS and over QUIC; 0 takes a free one.", minimum=0, maximum=MAX_PORT),
    ] = 1320
    data: Annotated[str, Setting("Folder for the store and the lake; made when missing.")] = "catchment-data"
    ready_file: Annotated[
        str, Setting("File to write, as JSON, once everything listens: the addresses and the process id.")
    ] = ""
    log_format: Annotated[
        str, Setting("How to log: auto is text on a terminal and JSON elsewhere.", choices=LOG_FORMATS)
    ] = "auto"
    log_level: Annotated[str, Setting("Least important messages to log.", choices=LOG_LEVELS)] = "info"
    access: Annotated[
        str,
        Setting(
            "Who may use Streamr streams: open lets anyone read and write any stream, closed only whom a permission "
            "allows.",
            choices=ACCESS_MODES,
        ),
    ] = "open"
    verify_threads: Annotated[
        int, Setting("Threads that check signatures; 0 is one per core this process may use.", minimum=0)
    ] = 0
    ingest_bytes: Annotated[
        int, Setting("Bytes of messages that may wait for their commit before publishers are made to wait.", minimum=1)
    ] = 32 * MIB
    outbox_bytes: Annotated[
        int, Setting("Bytes that may wait for one connection before it is cut for not reading.", minimum=1)
    ] = 16 * MIB
    store_bytes: Annotated[
        int, Setting("Greatest size of the hot store in bytes; publishes are refused above it. 0: no limit.", minimum=0)
    ] = 0
    seal_seconds: Annotated[
        float, Setting("Seconds between two seals of the log's tail into the lake; 0 never seals.", minimum=0)
    ] = 5.0
    seal_rows: Annotated[int, Setting("Greatest number of rows in one sealed transaction.", minimum=1)] = 50_000
    hot_hours: Annotated[float, Setting("Hours a sealed Streamr row stays in the hot store, too.", minimum=0)] = 24.0
    notes_per_second: Annotated[
        float, Setting("Refused and repeated messages noted in the log per sender and second.", minimum=0)
    ] = 100.0
    notes_burst: Annotated[float, Setting("How many of those may come at once.", minimum=0)] = 10_000.0


def _declared() -> dict[str, Setting]:
    hints = get_type_hints(Settings, include_extras=True)
    found = {}
    for field in msgspec.structs.fields(Settings):
        kind, setting = get_args(hints[field.name])
        found[field.name] = msgspec.structs.replace(setting, name=field.name, type=kind, default=field.default)
    return found


SETTINGS: Final[Mapping[str, Setting]] = _declared()


def load(
    *,
    flags: Mapping[str, object],
    environment: Mapping[str, str] | None = None,
    file: str | None = None,
) -> Settings:
    """Put the settings together.

    Args:
        flags: what the command line gave, by setting name; None means not given.
        environment: the process's environment by default.
        file: a TOML file; its path may also be given as CATCHMENT_CONFIG.

    Raises:
        UserError: a key is unknown or a value does not fit; the text says where it came from.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, object] = {}
    file = file or environment.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    if file:
        values.update(_from_file(Path(file)))
    values.update(_from_environment(environment))
    for name, value in flags.items():
        if value is not None:
            values[name] = convert(SETTINGS[name], value, SETTINGS[name].flag)
    return Settings(**values)  # type: ignore[arg-type]


def _from_file(path: Path) -> dict[str, object]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"The configuration file {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"The configuration file {path} is not valid TOML: {error}.") from None
    return {name: convert(_known(name, f"{path}"), value, f"{name} in {path}") for name, value in table.items()}


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    found = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == f"{ENVIRONMENT_PREFIX}CONFIG":
            continue
        setting = _known(variable.removeprefix(ENVIRONMENT_PREFIX).lower(), f"the environment ({variable})")
        found[setting.name] = convert(setting, text, variable)
    return found


def _known(name: str, where: str) -> Setting:
    if name in SETTINGS:
        return SETTINGS[name]
    near = difflib.get_close_matches(name, SETTINGS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else " 'catchment serve --help' lists them."
    raise UserError(f"Unknown setting {name!r} in {where}.{hint}")


def convert(setting: Setting, value: object, where: str) -> object:
    """A value of the setting's type from what a file, variable or flag holds.

    Raises:
        UserError: it does not fit; `where` says where it stands.
    """
    converted = _of_type(setting.type, value)
    if converted is None:
        raise UserError(f"{where} must be {_article(setting.type)}, not {value!r}.")
    if setting.choices and converted not in setting.choices:
        raise UserError(f"{where} must be one of {', '.join(setting.choices)}, not {value!r}.")
    if isinstance(converted, str):
        return converted
    if setting.minimum is not None and converted < setting.minimum:
        raise UserError(f"{where} must be at least {setting.minimum:g}, not {value!r}.")
    if setting.maximum is not None and converted > setting.maximum:
        raise UserError(f"{where} must be at most {setting.maximum:g}, not {value!r}.")
    return converted


def _of_type(kind: type, value: object) -> str | int | float | None:
    """The value as this type, None where that would change it: a file's own types count, text is read."""
    if kind is str:
        return value if isinstance(value, str) else None
    if isinstance(value, bool) or not isinstance(value, str | int if kind is int else str | int | float):
        return None
    try:
        number = int(value) if kind is int else float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _article(kind: type) -> str:
    return {int: "a whole number", float: "a number", str: "text"}[kind]
