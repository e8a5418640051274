"""`towline console`: the web console, with the REST door."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from towline.cli.options import Connection, Usage

__all__ = ["console"]


def console(
    *,
    broker: Annotated[str, Parameter(help="Where the broker is; the same as --url.", show_default=False)] = "",
    listen: Annotated[str, Parameter(help="HOST:PORT to listen on; port 0 takes a free one.")] = "127.0.0.1:7480",
    tls_cert: Annotated[str, Parameter(help="Certificate file (PEM), to serve HTTPS.")] = "",
    tls_key: Annotated[str, Parameter(help="Key file (PEM) of the certificate.")] = "",
    allow_remote: Annotated[
        bool,
        Parameter(
            help="Listen on other addresses than loopback without TLS: passwords can be overheard.",
            negative=(),
            show_default=False,
        ),
    ] = False,
    host_name: Annotated[
        list[str] | None,
        Parameter(
            negative=(),
            help="A name by which browsers reach it, besides its address and localhost; may be given several times.",
        ),
    ] = None,
    max_connections: Annotated[
        int, Parameter(help="Connections at a time.", validator=Number(gte=1, lte=100_000))
    ] = 1_000,
    max_connections_per_address: Annotated[
        int,
        Parameter(
            help="Of these, from one address (of IPv6 a network of 64 bits); a proxy in front counts as one. 0 is no "
            "other limit.",
            validator=Number(gte=0),
        ),
    ] = 200,
    beside_broker: Annotated[bool, Parameter(show=False, negative=())] = False,
    pin: Annotated[bool, Parameter(show=False, negative=())] = False,
    connection: Connection = Connection(),  # noqa: B008
) -> int:
    """Serve the web console until SIGTERM or Ctrl-C; with the REST door at /api.

    People log in with the users and tokens of the broker, and may there what the broker lets them; --token and
    --secret-file count for nothing here. A broker without security asks nobody to log in, so keep it on loopback. When
    it is ready it prints one line, `console at http://HOST:PORT/`. `towline serve` starts one by itself.
    """
    # The toolkit keeps nothing on disk for us, but it would make a folder for it.
    os.environ.setdefault("NICEGUI_STORAGE_PATH", os.path.join(os.path.expanduser("~"), ".cache", "towline-console"))  # noqa: PTH111, PTH118
    try:
        from towline.console.process import serve
    except ImportError as error:
        raise Usage(f"the console needs {error.name}, which is not installed: pip install 'towline[console]'") from None
    return serve(
        broker or connection.url,
        listen,
        tls_cert=tls_cert,
        tls_key=tls_key,
        allow_remote=allow_remote,
        host_names=tuple(host_name or ()),
        beside=beside_broker,
        pin=pin,
        max_connections=max_connections,
        max_connections_per_address=max_connections_per_address,
        timeout=connection.patience,
        **connection.certificates(),
    )
