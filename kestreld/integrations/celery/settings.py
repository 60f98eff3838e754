"""Settings of a transport, from Kombu's connection and its `transport_options`."""

from dataclasses import dataclass, field
from typing import Any, Final

from kestreld import checks
from kestreld.client.access import PORT_DEFAULT, Login, ServerAddress
from kestreld.client.lease_calls import SPAN_MS_MAX
from kestreld.errors import InvalidValue

OPTIONS: Final = (
    "lease_s",
    "missing_s",
    "outage_s",
    "publish_outage_s",
    "queue_order_strategy",
    "priority_steps",
    "priority_queues",
    "disable_prefetch",
)
ORDERS: Final = ("round_robin", "priority", "sorted")
STEPS: Final = (0, 3, 6, 9)


@dataclass(frozen=True)
class Settings:
    """Times in seconds or ms, as their names say."""

    address: str
    login: Login = field(repr=False)
    lease_ms: int
    missing_ms: int
    outage_s: float
    publish_outage_s: float
    timeout_s: float
    order: str
    priority_steps: tuple[int, ...]
    priority_queues: frozenset[str]
    disable_prefetch: bool


def settings_of(client: Any, *, tls: bool) -> Settings:
    """Return the settings of a Kombu connection. Raises InvalidArgument, or OSError for certificate files."""
    options = client.transport_options
    order = options.get("queue_order_strategy", "round_robin")
    if order not in ORDERS:
        raise InvalidValue("queue_order_strategy", " or ".join(ORDERS), order)
    steps = tuple(sorted(checks.whole(step, "each of priority_steps") for step in options.get("priority_steps", STEPS)))
    if not steps or steps[0] != 0:
        raise InvalidValue("priority_steps", "numbers from 0 on, 0 among them", list(steps))
    return Settings(
        address=_address(client, tls=tls),
        login=_login(client, tls=tls),
        lease_ms=checks.seconds_ms(options.get("lease_s", 30), "lease_s", SPAN_MS_MAX, 1),
        missing_ms=checks.seconds_ms(options.get("missing_s", 4), "missing_s", checks.ABSENCE_MS_MAX),
        outage_s=checks.span_s(options.get("outage_s", 60), "outage_s"),
        publish_outage_s=checks.span_s(options.get("publish_outage_s", 10), "publish_outage_s"),
        timeout_s=float(client.connect_timeout or 5),
        order=order,
        priority_steps=steps,
        priority_queues=frozenset(options.get("priority_queues", ())),
        disable_prefetch=bool(options.get("disable_prefetch", False)),
    )


def _address(client: Any, *, tls: bool) -> str:
    host, path = client.hostname or "", client.virtual_host or "/"
    if host.startswith("unix://"):  # the rest of kestrel+unix://, which Kombu has cut off
        return "unix:" + host.removeprefix("unix://")
    if client.transport_cls == "kestrel+unix":
        return "unix:/" + path.lstrip("/")
    # In a list of URLs Kombu leaves the path of another one here.
    if path.strip("/") and not client.alt:
        raise InvalidValue(f"broker URL of {host}", "without a path, since there are no virtual hosts", path)
    address = f"[{host}]" if ":" in host else host or "127.0.0.1"
    address = f"{'tls:' if tls else ''}{address}:{client.port or PORT_DEFAULT}"
    ServerAddress.parse(address)
    return address


def _login(client: Any, *, tls: bool) -> Login:
    files = client.ssl if isinstance(client.ssl, dict) else {}
    password = client.password
    return Login(
        user=client.userid or "",
        password=(lambda: str(password()).encode()) if callable(password) else password or "",
        tls=tls or bool(client.ssl),
        ca=files.get("ssl_ca_certs") or files.get("ca_certs") or "",
        cert=files.get("ssl_certfile") or files.get("certfile") or "",
        key=files.get("ssl_keyfile") or files.get("keyfile") or "",
    )
