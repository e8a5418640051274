"""`towline rest`: the REST door alone, without the console."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from towline.cli.options import Connection, Usage

__all__ = ["rest"]


def rest(
    *,
    listen: Annotated[str, Parameter(help="HOST:PORT to listen on; port 0 takes a free one.")] = "127.0.0.1:7480",
    tls_cert: Annotated[str, Parameter(help="Certificate file (PEM), to serve HTTPS.")] = "",
    tls_key: Annotated[str, Parameter(help="Key file (PEM) of the certificate.")] = "",
    allow_remote: Annotated[
        bool,
        Parameter(
            help="Listen on other addresses than loopback without TLS: secrets can be overheard.",
            negative=(),
            show_default=False,
        ),
    ] = False,
    host_name: Annotated[
        list[str] | None,
        Parameter(
            negative=(),
            help="A name by which it is reached on loopback, or without TLS for a broker without security, besides its "
            "address and localhost, for example through a proxy; may be given several times.",
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
    connection: Connection = Connection(),  # noqa: B008
) -> int:
    """Serve the REST door at /api until SIGTERM or Ctrl-C; it is a part of the console, too.

    Callers say themselves who they are (`Authorization: Bearer NAME.SECRET`, or HTTP Basic); --token and --secret-file
    count for nothing here. When it is ready it prints one line, `listening on http://HOST:PORT/api`. The description is
    at /api/openapi.json.
    """
    try:
        from towline.console.rest.process import serve
    except ImportError as error:
        raise Usage(
            f"the REST door needs {error.name}, which is not installed: pip install 'towline[console]'"
        ) from None

    return serve(
        connection.url,
        listen,
        tls_cert=tls_cert,
        tls_key=tls_key,
        allow_remote=allow_remote,
        host_names=tuple(host_name or ()),
        max_connections=max_connections,
        max_connections_per_address=max_connections_per_address,
        timeout=connection.patience,
        **connection.certificates(),
    )
