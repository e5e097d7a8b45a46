"""Every setting of the node, declared once.

A field of `Settings` is a setting: its name, type, default, help, and whether it can be reloaded or is a secret stand
there and nowhere else. They reach the command line (`--seal-seconds`), the environment (`CATCHMENT_SEAL_SECONDS`), the
file (`seal_seconds = 5`), `catchment config` and docs/settings.md. Precedence: file < environment < flags. Unknown keys
are errors that name the nearest valid one. A secret has no flag, because every user of a machine can read the
arguments of its processes, and is shown nowhere. See docs/decisions/0014-settings-and-reload.md.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import stat
import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, get_args, get_type_hints

import msgspec

from catchment.errors import UserError

ENVIRONMENT_PREFIX: Final = "CATCHMENT_"

CONFIG_VARIABLE: Final = f"{ENVIRONMENT_PREFIX}CONFIG"
"""Names the file; the only variable with our prefix that is no setting."""

HIDDEN: Final = "<hidden>"
"""What is shown in place of a secret."""

MIB: Final = 1024 * 1024
MAX_PORT: Final = 65_535


class Setting(msgspec.Struct, frozen=True):
    """What is known about one setting.

    Attributes:
        help: one or two sentences for `--help`, the sample file and the docs.
        reloadable: SIGHUP brings a new value into force; `Node.reload` does it and a test shows it.
        secret: never shown, and no flag.
    """

    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    reloadable: bool = False
    secret: bool = False
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

    def shown(self, value: object) -> object:
        """The value as it may be shown: a secret that is set is hidden."""
        return HIDDEN if self.secret and value != self.default else value


LOG_FORMATS: Final = ("auto", "text", "json")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
QUIC_MODES: Final = ("auto", "on", "off")
ACCESS_MODES: Final = ("open", "closed")


def items(text: str) -> list[str]:
    """The parts of a setting that is a list, apart by commas."""
    return [item.strip() for item in text.split(",") if item.strip()]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a node runs with."""

    host: Annotated[str, Setting("Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Setting("Port for HTTP and every WebSocket dialect; 0 takes a free one.", minimum=0, maximum=MAX_PORT)
    ] = 7170
    mosaic_port: Annotated[
        int,
        Setting(
            "Port for Mosaic over TCP with TLS and over QUIC; 0 takes a free one. If the default is taken, the node "
            "says so and speaks Mosaic over WebSockets only.",
            minimum=0,
            maximum=MAX_PORT,
        ),
    ] = 1320
    mosaic_quic: Annotated[
        str,
        Setting("Whether Mosaic is spoken over QUIC: auto is where the quic extra is installed.", choices=QUIC_MODES),
    ] = "auto"
    mosaic_bans: Annotated[
        str,
        Setting(
            "Whom Mosaic turns away: user keys (mopub0...), addresses or networks, apart by commas; behind an @ the "
            "time at which a ban ends.",
            reloadable=True,
        ),
    ] = ""
    mosaic_bootstraps: Annotated[
        str,
        Setting("File of bootstraps that Mosaic clients may look up, one signed item a line, as JSON."),
    ] = ""
    mosaic_requests_per_second: Annotated[
        float,
        Setting("Requests one Mosaic connection may make a second; 0: no limit.", minimum=0, reloadable=True),
    ] = 0.0
    mosaic_idle_seconds: Annotated[
        float,
        Setting(
            "Seconds of silence after which a Mosaic client without an open query is told to go, looked at once a "
            "minute; 0: never.",
            minimum=0,
            reloadable=True,
        ),
    ] = 900.0
    popstellar_address: Annotated[
        str,
        Setting(
            "Where PoPStellar clients reach this node (wss://host/client), for its greetings; empty for the address it "
            "listens on."
        ),
    ] = ""
    popstellar_peers: Annotated[
        str,
        Setting("Other PoPStellar servers to be connected with (wss://host/server), apart by commas."),
    ] = ""
    popstellar_servers: Annotated[
        str,
        Setting(
            "Public keys of the PoPStellar servers whose greetings other servers may bring, apart by commas; empty "
            "for any that connects."
        ),
    ] = ""
    data: Annotated[str, Setting("Folder for the store and the lake; made when missing.")] = "catchment-data"
    tls_cert: Annotated[
        str,
        Setting(
            "PEM file with the node's certificate, then its chain: the port then speaks HTTPS and WSS only. "
            "The file is read again at every SIGHUP.",
            reloadable=True,
        ),
    ] = ""
    tls_key: Annotated[
        str, Setting("PEM file with the certificate's private key; not readable by everyone.", reloadable=True)
    ] = ""
    tls_key_password: Annotated[str, Setting("Password of an encrypted tls_key.", reloadable=True, secret=True)] = ""
    ready_file: Annotated[
        str, Setting("File to write, as JSON, once everything listens: the addresses and the process id.")
    ] = ""
    log_format: Annotated[
        str, Setting("How to log: auto is text on a terminal and JSON elsewhere.", choices=LOG_FORMATS, reloadable=True)
    ] = "auto"
    log_level: Annotated[str, Setting("Least important messages to log.", choices=LOG_LEVELS, reloadable=True)] = "info"
    access: Annotated[
        str,
        Setting(
            "Who may use Streamr streams: open lets anyone read and write any stream, closed only whom a permission "
            "allows.",
            choices=ACCESS_MODES,
        ),
    ] = "open"
    roles: Annotated[
        str,
        Setting(
            "What the node does in the Streamr network, with commas between: broker, tracker, storage. "
            "A broker or storage node takes part when it has trackers."
        ),
    ] = "broker"
    trackers: Annotated[
        str, Setting("Addresses of the Streamr network's trackers, like ws://host:7170, with commas between.")
    ] = ""
    network_id: Annotated[str, Setting("Name of the node in the Streamr network; empty makes one from the store.")] = ""
    network_address: Annotated[
        str,
        Setting("Where other nodes reach this one, like ws://host:7170/node; empty makes it from host and port."),
    ] = ""
    network_allow: Annotated[
        str,
        Setting(
            "Which of the addresses a tracker names may be dialled: networks like 10.0.0.0/8, host names, or * for "
            "all, with commas between. Empty: none."
        ),
    ] = ""
    verify_threads: Annotated[
        int, Setting("Threads that check signatures; 0 is one per core this process may use.", minimum=0)
    ] = 0
    ingest_bytes: Annotated[
        int,
        Setting(
            "Bytes of messages that may wait for their commit before publishers are made to wait.",
            minimum=1,
            reloadable=True,
        ),
    ] = 32 * MIB
    outbox_bytes: Annotated[
        int,
        Setting("Bytes that may wait for one connection before it is cut for not reading.", minimum=1, reloadable=True),
    ] = 16 * MIB
    store_bytes: Annotated[
        int,
        Setting(
            "Greatest size of the hot store in bytes; publishes are refused above it. 0: no limit.",
            minimum=0,
            reloadable=True,
        ),
    ] = 0
    seal_seconds: Annotated[
        float,
        Setting(
            "Seconds between two seals of the log's tail into the lake; 0 never seals.", minimum=0, reloadable=True
        ),
    ] = 5.0
    seal_rows: Annotated[
        int, Setting("Greatest number of rows in one sealed transaction.", minimum=1, reloadable=True)
    ] = 50_000
    hot_hours: Annotated[
        float, Setting("Hours a sealed Streamr row stays in the hot store, too.", minimum=0, reloadable=True)
    ] = 24.0
    notes_per_second: Annotated[
        float,
        Setting("Refused and repeated messages noted in the log per sender and second.", minimum=0, reloadable=True),
    ] = 100.0
    notes_burst: Annotated[float, Setting("How many of those may come at once.", minimum=0, reloadable=True)] = 10_000.0

    def secrets(self) -> list[str]:
        """The values nobody may see."""
        return [str(value) for name in SETTINGS if SETTINGS[name].secret and (value := getattr(self, name))]

    def __repr__(self) -> str:
        """Without secrets: settings end up in tracebacks and logs."""
        shown = (f"{name}={setting.shown(getattr(self, name))!r}" for name, setting in SETTINGS.items())
        return f"Settings({', '.join(shown)})"


def _declared() -> dict[str, Setting]:
    hints = get_type_hints(Settings, include_extras=True)
    found = {}
    for field in msgspec.structs.fields(Settings):
        kind, setting = get_args(hints[field.name])
        found[field.name] = msgspec.structs.replace(setting, name=field.name, type=kind, default=field.default)
    return found


SETTINGS: Final[Mapping[str, Setting]] = _declared()


class Resolved(msgspec.Struct, frozen=True):
    """Settings and where each one came from.

    Attributes:
        origins: by name: "default", the file's path, the variable or the flag.
    """

    settings: Settings
    origins: Mapping[str, str]


def load(
    *,
    flags: Mapping[str, object],
    environment: Mapping[str, str] | None = None,
    file: str | None = None,
) -> Settings:
    """Put the settings together; see `resolve`."""
    return resolve(flags=flags, environment=environment, file=file).settings


def resolve(
    *,
    flags: Mapping[str, object],
    environment: Mapping[str, str] | None = None,
    file: str | None = None,
) -> Resolved:
    """Put the settings together and note where each came from.

    Args:
        flags: what the command line gave, by setting name; None means not given.
        environment: the process's environment by default.
        file: a TOML file; its path may also be given as CATCHMENT_CONFIG.

    Raises:
        UserError: a key is unknown or a value does not fit; the text says where it came from.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, object] = {}
    origins = dict.fromkeys(SETTINGS, "default")
    file = file or environment.get(CONFIG_VARIABLE)
    if file:
        for name, value in _from_file(Path(file)).items():
            values[name], origins[name] = value, file
    for name, value in _from_environment(environment).items():
        values[name], origins[name] = value, SETTINGS[name].variable
    for name, value in flags.items():
        if value is not None:
            setting = SETTINGS[name]
            if setting.secret:
                raise UserError(_no_flag(setting))
            values[name], origins[name] = convert(setting, value, setting.flag), setting.flag
    return Resolved(Settings(**values), origins)  # type: ignore[arg-type]


def _no_flag(setting: Setting) -> str:
    return (
        f"{setting.name} is a secret and has no flag, because other users can read a command line: "
        f"set {setting.variable} or write it into the configuration file."
    )


def _from_file(path: Path) -> dict[str, object]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"The configuration file {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"The configuration file {path} is not valid TOML: {error}.") from None
    found = {name: convert(_known(name, f"{path}"), value, f"{name} in {path}") for name, value in table.items()}
    if any(SETTINGS[name].secret and value != SETTINGS[name].default for name, value in found.items()):
        _refuse_open_file(path)
    return found


def _refuse_open_file(path: Path) -> None:
    if stat.S_IMODE(path.stat().st_mode) & 0o007:
        raise UserError(
            f"The configuration file {path} holds a secret and can be read by everyone; run: chmod 640 {path}"
        )


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    found = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        setting = _known(variable.removeprefix(ENVIRONMENT_PREFIX).lower(), f"the environment ({variable})")
        found[setting.name] = convert(setting, text, variable)
    return found


def _known(name: str, where: str) -> Setting:
    if name in SETTINGS:
        return SETTINGS[name]
    near = difflib.get_close_matches(name, SETTINGS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else " 'catchment config sample' lists them."
    raise UserError(f"Unknown setting {name!r} in {where}.{hint}")


def convert(setting: Setting, value: object, where: str) -> object:
    """A value of the setting's type from what a file, variable or flag holds.

    Raises:
        UserError: it does not fit; `where` says where it stands.
    """
    converted = _of_type(setting.type, value)
    given = HIDDEN if setting.secret else repr(value)
    if converted is None:
        raise UserError(f"{where} must be {_WORDS[setting.type]}, not {given}.")
    if setting.choices and converted not in setting.choices:
        raise UserError(f"{where} must be one of {', '.join(setting.choices)}, not {given}.")
    if isinstance(converted, str):
        return converted
    if setting.minimum is not None and converted < setting.minimum:
        raise UserError(f"{where} must be at least {setting.minimum:g}, not {given}.")
    if setting.maximum is not None and converted > setting.maximum:
        raise UserError(f"{where} must be at most {setting.maximum:g}, not {given}.")
    return converted


_WORDS: Final[Mapping[type, str]] = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_TRUTH: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _of_type(kind: type, value: object) -> str | int | float | None:
    """The value as this type, None where that would change it: a file's own types count, text is read."""
    if kind is str:
        return value if isinstance(value, str) else None
    if kind is bool:
        return value if isinstance(value, bool) else _TRUTH.get(value.lower()) if isinstance(value, str) else None
    if isinstance(value, bool) or not isinstance(value, str | int if kind is int else str | int | float):
        return None
    try:
        number = int(value) if kind is int else float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def changed(old: Settings, new: Settings) -> tuple[Settings, list[str], list[str]]:
    """What a reload brings: the settings to run with, the names now in force, and the names that need a restart."""
    different = [name for name in SETTINGS if getattr(old, name) != getattr(new, name)]
    applied = [name for name in different if SETTINGS[name].reloadable]
    merged = msgspec.structs.replace(old, **{name: getattr(new, name) for name in applied})
    return merged, applied, [name for name in different if name not in applied]


def sample() -> str:
    """A TOML file with every setting at its default and its help above it."""
    parts = ["# Settings of a Catchment node. Every line shows the default; leave out what you do not change."]
    for setting in SETTINGS.values():
        about = [*textwrap.wrap(setting.help, 100), *limits(setting)]
        if setting.reloadable:
            about.append("SIGHUP brings a new value into force.")
        parts.append("\n".join([*(f"# {line}" for line in about), f"{setting.name} = {toml(setting.default)}"]))
    return "\n\n".join(parts) + "\n"


def limits(setting: Setting) -> list[str]:
    """What a value must be, in words."""
    found = []
    if setting.choices:
        found.append(f"One of {', '.join(setting.choices)}.")
    if setting.minimum is not None and setting.maximum is not None:
        found.append(f"From {setting.minimum:g} to {setting.maximum:g}.")
    elif setting.minimum is not None:
        found.append(f"At least {setting.minimum:g}.")
    return found


def toml(value: object) -> str:
    """A setting's value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    # TOML's basic strings have JSON's escapes.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)
