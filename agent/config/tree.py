"""The tree of settings with its defaults and bounds: what the YAML may hold, and nothing else.

In: nothing. Out: frozen structs; :mod:`agent.config.load` fills them, every stage reads them, and the
published JSON Schema is generated from them, so a bound written here is a bound everywhere. Durations are
seconds.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from agent.config.actions import default_modes
from agent.config.secret import Secret, Secrets
from agent.model import Mode

EnvName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Environment variable (or NAME_FILE) that holds the API key.",
    ),
]
ChannelId = Annotated[
    str,
    Meta(
        pattern=r"^[CGD][A-Z0-9]{1,31}$",
        description="Channel id (C…), not its name: needed by the bot token, which edits its messages.",
    ),
]


class LogLevel(str, enum.Enum):
    """How much the agent says about itself on standard error."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Unknown keys are errors."""


class Server(_Strict, frozen=True, kw_only=True):
    """One vLLM server to watch; ``url`` or ``run_dir`` (a launcher's folder) says where it is."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
            description="Label `server` of every metric and incident.",
        ),
    ]
    url: Annotated[str | None, Meta(description="Base URL: http://, https:// or unix:///path.")] = None
    run_dir: Annotated[str | None, Meta(description="Run-dir of the launcher that owns the server.")] = None
    log: Annotated[tuple[str, ...], Meta(description="Log files to follow where no launcher gives the log.")] = ()
    api_key_env: EnvName | None = None
    tls_ca: Annotated[str | None, Meta(description="PEM file of the CA that signed the server's certificate.")] = None
    root_path: Annotated[str | None, Meta(description="vLLM's --root-path.")] = None
    profile: Annotated[str | None, Meta(description="Thresholds of this server instead of `rules.profile`.")] = None


class Budget(_Strict, frozen=True, kw_only=True):
    """How often one fault of one server may be acted on; the steps of one incident count as one entry."""

    actions: Annotated[int, Meta(ge=0, description="Entries per (fault, server) in the window.")] = 3
    window_seconds: Annotated[float, Meta(gt=0, description="Length of the window.")] = 3600
    steps: Annotated[int, Meta(ge=1, le=16, description="Steps of one stepping remedy.")] = 4


class Breaker(_Strict, frozen=True, kw_only=True):
    """When the agent stops acting on a server until a person says `agent breaker reset`."""

    failures: Annotated[int, Meta(ge=1, description="Failed repairs in the window that open it.")] = 3
    window_seconds: Annotated[float, Meta(gt=0, description="Length of the window.")] = 900


class Verify(_Strict, frozen=True, kw_only=True):
    """How long a repair may take to prove itself."""

    serving_seconds: Annotated[
        float, Meta(gt=0, description="Until it serves: loading a large model takes minutes.")
    ] = 900
    request_seconds: Annotated[float, Meta(gt=0, description="Until a request is answered.")] = 60
    hold_seconds: Annotated[float, Meta(ge=0, description="How long the fault must stay away.")] = 60


class Slack(_Strict, frozen=True, kw_only=True):
    """Slack by webhook or bot token; the secrets come from the environment."""

    api_url: Annotated[str | None, Meta(description="Base URL of the Web API; for proxies and tests.")] = None
    channel_id: ChannelId | None = None
    enabled: Annotated[bool, Meta(description="False: nothing is sent to Slack.")] = True


class Alertmanager(_Strict, frozen=True, kw_only=True):
    """Alertmanagers to push alerts and incidents to; a token comes from ALERTMANAGER_TOKEN."""

    urls: Annotated[
        tuple[str, ...], Meta(description="Base URLs; every member of a cluster, as Alertmanager's documentation asks.")
    ] = ()
    resend_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="How often what goes on is sent again; four of them end it.")
    ] = 60


class Rules(_Strict, frozen=True, kw_only=True):
    """The alert rules that are judged in process."""

    enabled: Annotated[bool, Meta(description="False: no rule is judged.")] = True
    profile: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
            description="Thresholds: guide-moe, guide-high-throughput, interactive or batch, or one of your own.",
        ),
    ] = "guide-moe"
    paths: Annotated[
        tuple[str, ...], Meta(description="Further rule files or folders (Prometheus' format), beside the pack.")
    ] = ()


class Canary(_Strict, frozen=True, kw_only=True):
    """The small request that asks an idle or suspect server whether it still answers."""

    enabled: Annotated[bool, Meta(description="False: an idle server that hangs stays unknown.")] = True
    every_seconds: Annotated[float, Meta(ge=10, le=3600, description="At most one in this time.")] = 10
    timeout_seconds: Annotated[float, Meta(gt=0, le=300, description="How long an answer may take.")] = 10


class Settings(_Strict, frozen=True, kw_only=True):
    """The whole file."""

    listen: Annotated[str, Meta(description="HOST:PORT of the watcher's API and metrics.")] = "127.0.0.1:9911"
    state_dir: Annotated[str, Meta(min_length=1, description="Folder of the journal; one watcher each.")] = (
        "/var/lib/vllm-agent"
    )
    servers: Annotated[tuple[Server, ...], Meta(description="Empty: the server comes from the command line.")] = ()
    poll_seconds: Annotated[float, Meta(ge=0.05, le=300, description="Between two scrapes.")] = 1.0
    log_level: LogLevel = LogLevel.INFO
    actions: Annotated[
        dict[str, Mode], Meta(description="Mode of each action; what is not named keeps its default.")
    ] = msgspec.field(default_factory=default_modes)
    dry_run: Annotated[bool, Meta(description="True: propose everything, do nothing.")] = False
    budget: Budget = Budget()
    backoff_seconds: Annotated[
        tuple[Annotated[float, Meta(ge=0, le=3600)], ...],
        Meta(min_length=1, description="Wait before the n-th action on one fault; the last value repeats."),
    ] = (0, 1, 2, 4, 8, 16, 32, 60)
    breaker: Breaker = Breaker()
    approval_expires_seconds: Annotated[float, Meta(gt=0, description="How long an action waits for a person.")] = 3600
    verify: Verify = Verify()
    runbook_base_url: Annotated[str | None, Meta(description="Prefix of runbook links, http:// or https://.")] = None
    slack: Slack = Slack()
    alertmanager: Alertmanager = Alertmanager()
    rules: Rules = Rules()
    canary: Canary = Canary()


class Config(Settings, frozen=True, kw_only=True):
    """The settings with the secrets beside them; secrets never come from the file."""

    secrets: Secrets = Secrets()

    def mode(self, action: str) -> Mode:
        """The mode of an action; an action without an entry is off. ``dry_run`` lowers every mode but off."""
        mode = self.actions.get(action, Mode.OFF)
        return Mode.DRY_RUN if self.dry_run and mode is not Mode.OFF else mode

    def api_key(self, server: str) -> Secret | None:
        """The API key for the server of that name, if any was given."""
        return self.secrets.api_key(server)

    @property
    def listen_address(self) -> tuple[str, int]:
        """``listen`` split into host and port."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)
