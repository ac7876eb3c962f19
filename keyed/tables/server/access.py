"""Access control: tokens for tables, and allowed hosts and origins of requests."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Iterable, Mapping

import attrs

from keyed.errors import DefinitionError

ALL_TABLES = "*"
_TOKEN = re.compile(r"[\x21-\x7e]{16,512}")
#: A state, or operator.state.
_TABLE = re.compile(r"\*|[A-Za-z0-9_.-]{1,257}")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
#: Seconds that a browser stays logged in.
SESSION_SECONDS = 30 * 24 * 3_600


def checked_token(token: str) -> str:
    """Return a token.

    Raises:
        DefinitionError: It is too short or has invalid characters.
    """
    if not _TOKEN.fullmatch(token):
        raise DefinitionError(
            "a token must be 16 to 512 visible ASCII characters; create one with `openssl rand -hex 32`"
        )
    return token


def _tokens(tokens: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    for token in map(checked_token, tokens):
        for table in tokens[token]:
            if not _TABLE.fullmatch(table):
                raise DefinitionError(
                    f"a token is for tables by their names, or for all by '*'; {table!r} is not a name"
                )
    return {token: frozenset(tables) for token, tables in tokens.items()}


@attrs.frozen
class Access:
    """Access rights of clients.

    Args:
        tokens: Names of tables by token; ``"*"`` is all tables, SQL and timers. Without tokens, on loopback only,
            every client has all rights.
        hosts: Allowed names in ``Host`` of requests, without port, against DNS rebinding.

    Raises:
        DefinitionError: A token is too short or has invalid characters.
    """

    tokens: dict[str, frozenset[str]] = attrs.field(factory=dict, converter=_tokens, repr=False)
    hosts: tuple[str, ...] = _LOOPBACK

    def number_of(self, token: str | None) -> int | None:
        """Return the number of a token, which names it within the server; ``None`` if it is unknown."""
        if not self.tokens:
            return 0
        return None if token is None else _number_of(token, self.tokens)

    def tables_of(self, number: int) -> frozenset[str]:
        """Return the tables of a token by its number."""
        return list(self.tokens.values())[number] if self.tokens else frozenset((ALL_TABLES,))

    def session_of(self, token: str) -> str | None:
        """Return a browser's session for a token, valid for `SESSION_SECONDS`; ``None`` if the token is unknown.

        It is signed with the token and does not contain it; it stays valid when the server is restarted.
        """
        number = self.number_of(token)
        if number is None or not self.tables_of(number):
            return None
        end = str(int(time.time()) + SESSION_SECONDS)
        return f"{end}.{_signature(token, end)}"

    def number_of_session(self, session: str) -> int | None:
        """Return the number of the token of a browser's session; ``None`` if the session is invalid."""
        end, _, signature = session.partition(".")
        if not end.isascii() or not end.isdigit() or int(end[:12]) < time.time():
            return None
        return _number_of(signature, (_signature(token, end) for token in self.tokens))

    def is_host(self, header: str | None) -> bool:
        """Return true if this ``Host`` is allowed."""
        return header is not None and _name_of(header).lower() in self.hosts

    def is_origin(self, header: str | None, host: str) -> bool:
        """Return true if a request has no ``Origin``, or one that is the origin of its ``Host``.

        A page at another port of this machine is another origin, although browsers send it the same cookies.
        """
        if header is None:
            return True
        scheme, _, origin = header.partition("://")
        port = _DEFAULT_PORTS.get(scheme)
        return port is not None and origin.removesuffix(port).lower() == host.removesuffix(port).lower()


def is_loopback(host: str) -> bool:
    """Return true if an address is a loopback address."""
    return host in _LOOPBACK


def _number_of(secret: str, known: Iterable[str]) -> int | None:
    """Return the number of a secret among the known ones; ``None`` if it is unknown.

    All are compared, each in constant time, so the duration reveals nothing about them.
    """
    latest = None
    for number, each in enumerate(known):
        if hmac.compare_digest(each.encode(), secret.encode()):
            latest = number
    return latest


def _signature(token: str, end: str) -> str:
    return hmac.digest(token.encode(), f"keyed session until {end}".encode(), "sha256").hex()


def _name_of(host: str) -> str:
    """Return the name or address in a ``Host``, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host
