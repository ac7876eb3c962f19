"""The other servers of the same tables, each with a share of the key groups (Kafka Streams' KIP-535).

A server learns the shares of its peers from ``/status?share=true``. It forwards a request for a key of another key
group to a server that has the group, and merges the answers of several servers to a request for all keys. A request
between servers has ``share=true``: the receiver answers from its own key groups or refuses, so no request is forwarded
twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from socket import SHUT_RDWR
from typing import Any, BinaryIO
from urllib.parse import urlsplit
from uuid import uuid4

import attrs
import msgspec
from starlette.concurrency import run_in_threadpool

from keyed.base.arguments import without_credentials
from keyed.errors import DefinitionError, GroupUnavailable
from keyed.tables.follower import shown_groups
from keyed.tables.server.access import ConcurrencyLimit, Limits, Refused, checked_token

#: Seconds for which a peer's status is used; seconds that it may take; and the factor by which a peer whose status took
#: that long and failed is left alone longer, so that it does not slow down requests for others.
_FRESH_SECONDS, _STATUS_SECONDS, _SPARED = 1.0, 1.0, 10.0
#: Requests to peers at a time.
_FORWARDED = 16
_PART = 64 << 10


def _addresses(addresses: Iterable[str]) -> tuple[str, ...]:
    distinct = tuple(dict.fromkeys(str(address).strip().rstrip("/") for address in addresses))
    for address in distinct:
        try:
            parts = urlsplit(address)
            is_address = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
            # What the client refuses when it connects.
            HTTPConnection(parts.netloc.encode("idna").decode())
        except (ValueError, HTTPException):
            is_address = False
        if not is_address or parts.path or parts.query or parts.fragment or "@" in parts.netloc:
            raise DefinitionError(
                f"peers: {without_credentials(address)!r:.140} is not the address of a server; give http://HOST:PORT"
            )
    return distinct


def _token(token: str | None) -> str | None:
    return None if token is None else checked_token(token)


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 3_600:
        raise DefinitionError(f"Peers(timeout={value!r}): give seconds, above 0 and up to 3600")
    return float(value)


@attrs.frozen
class Peers:
    """Servers of the same tables with other shares of the key groups.

    Args:
        addresses: Their addresses, such as ``http://10.0.0.2:8765``; the server's own may be among them.
        token: A token of the peers for all tables; a user's is never sent to them.
        timeout: Seconds that an answer of a peer may take.

    Raises:
        DefinitionError: An address, the token or ``timeout`` breaks its rule.
    """

    addresses: tuple[str, ...] = attrs.field(converter=_addresses)
    token: str | None = attrs.field(default=None, converter=_token, repr=False)
    timeout: float = attrs.field(default=5.0, converter=_seconds)


class PeerUnavailable(Exception):
    """A peer did not answer."""


@attrs.define
class _Peer:
    """The last known status of a peer.

    Attributes:
        positions: The positions of its operators, as in ``/status``.
        batch: Its newest batch.
        error: The reason why it cannot be asked; empty if it can.
        next_look: Time at which its status is requested again.
    """

    positions: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    batch: int = -1
    error: str = "it has not answered yet"
    next_look: float = -1.0

    def has(self, operator: str, group: int) -> bool:
        """Return true if it follows a key group."""
        position = self.positions.get(operator)
        return position is not None and (position.get("groups") is None or group in position["groups"])

    def shown_groups(self, operator: str) -> str:
        """Return the key groups of an operator as text."""
        groups = self.positions[operator].get("groups")
        return "all" if groups is None else shown_groups(groups)


class PeerShares:
    """The shares of the peers of a server, and requests to them.

    Attributes:
        id: Identifies this server, also under an address in its own list.
    """

    def __init__(self, peers: Peers, limits: Limits, tokens: int) -> None:
        self.id = uuid4().hex
        self._config = peers
        # An answer of a peer also has the addresses of its entries.
        self._limit, self._file_limit = 2 * limits.answer + (1 << 20), limits.sql_megabytes << 20
        self._peers = {address: _Peer() for address in peers.addresses}
        self._refreshing = asyncio.Lock()
        self._concurrency = ConcurrencyLimit(_FORWARDED, limits.wait_seconds, 503, "requests to peers", tokens)

    @property
    def are_configured(self) -> bool:
        """True if the server has peers."""
        return bool(self._config.addresses)

    async def refresh(self) -> None:
        """Ask all peers for their status, unless it is known already."""
        async with self._refreshing:
            now = time.monotonic()
            await asyncio.gather(
                *(self._refresh(address) for address, peer in list(self._peers.items()) if peer.next_look <= now)
            )

    async def _refresh(self, address: str) -> None:
        peer, began = self._peers[address], time.monotonic()
        seconds = min(self._config.timeout, _STATUS_SECONDS)
        try:
            status, body = await self._request(address, "/status?share=true", {}, seconds, None)
            if status != 200:
                kind = {401: "it refuses the token of its peers", 421: "it refuses this name of its host"}.get(status)
                raise PeerUnavailable(kind or f"its status is {status}")
            peer_status = msgspec.json.decode(body, type=_Status)
        except (PeerUnavailable, msgspec.DecodeError) as error:
            # The groups that it had are named in errors.
            peer.error, now = str(error), time.monotonic()
            peer.next_look = now + _FRESH_SECONDS + _SPARED * (now - began)
            return
        peer.next_look = began + _FRESH_SECONDS
        if peer_status.server == self.id:
            del self._peers[address]
            return
        peer.positions, peer.batch, peer.error = peer_status.positions, peer_status.batch, ""
        if any("hash" not in position for position in peer_status.positions.values()):
            peer.error = "the token of its peers is not for all tables"

    def described(self, operators: Iterable[str]) -> list[dict[str, Any]]:
        """Return the peers with their shares of operators, for ``/status``."""
        names = set(operators)
        return [
            {
                "address": address,
                "groups": {name: peer.shown_groups(name) for name in peer.positions if name in names},
                "batch": peer.batch,
                "error": peer.error or None,
            }
            for address, peer in self._peers.items()
        ]

    def cover(self, operator: str, log_id: str, groups: Iterable[int]) -> dict[str, list[int]]:
        """Return servers that have key groups together, each with those that it is to answer for.

        Args:
            operator: The operator.
            log_id: Its changelog; peers that follow another one are not asked.
            groups: The key groups.

        Raises:
            GroupUnavailable: No server that can be reached has one of them.
        """
        chosen: dict[str, list[int]] = {}
        missing: list[int] = []
        for group in groups:
            owners = [address for address in self._peers if self._can_answer(address, operator, log_id, group)]
            if not owners:
                missing.append(group)
            else:
                chosen.setdefault(next((each for each in owners if each in chosen), owners[0]), []).append(group)
        if missing:
            raise self._unavailable(operator, log_id, missing)
        return chosen

    def batch_of(self, addresses: Iterable[str]) -> int:
        """Return the newest batch that all of some servers have."""
        return min(self._peers[address].batch for address in addresses)

    def _can_answer(self, address: str, operator: str, log_id: str, group: int) -> bool:
        peer = self._peers[address]
        return not peer.error and peer.has(operator, group) and peer.positions[operator]["log_id"] == log_id

    def _unavailable(self, operator: str, log_id: str, missing: list[int]) -> GroupUnavailable:
        reasons = []
        for address, peer in self._peers.items():
            theirs = [group for group in missing if peer.has(operator, group)]
            if theirs and peer.error:
                reasons.append(f"{address} had {shown_groups(theirs)}, but {peer.error}")
            elif theirs:
                other = peer.positions[operator]["log_id"]
                reasons.append(
                    f"{address} has {shown_groups(theirs)} of another changelog, {other!r} instead of {log_id!r}"
                )
            elif peer.error and not peer.positions:
                reasons.append(f"{address}: {peer.error}")
        nobody = [group for group in missing if not any(peer.has(operator, group) for peer in self._peers.values())]
        if nobody:
            reasons.append(f"no known server has {shown_groups(nobody)}")
        return GroupUnavailable(
            f"operator {operator!r}: no server can answer for key groups {shown_groups(missing)}: {'; '.join(reasons)}",
            operator=operator,
            groups=missing,
        )

    async def ask(
        self,
        address: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        sink: BinaryIO | None = None,
        seconds: float | None = None,
    ) -> tuple[int, bytes]:
        """Return the status and body of a peer's answer.

        Args:
            address: Its address.
            target: Path and query.
            headers: Further headers.
            sink: A file that gets the body of an answer that is not an error.
            seconds: Seconds that the answer may take, `Peers.timeout` by default.

        Raises:
            PeerUnavailable: It did not answer, or no longer has the key groups. It is not asked again until its next
                status.
            Refused: As many requests to peers run already, or the answer is too large.
        """
        seconds = self._config.timeout if seconds is None else seconds
        async with self._concurrency.acquired():
            try:
                status, answer = await self._request(address, target, headers or {}, seconds, sink)
                if status in (401, 403, 421):
                    raise PeerUnavailable(f"it refuses requests of peers with status {status}")
                if status == 503 and GroupUnavailable.__name__.encode() in answer[:200]:
                    raise PeerUnavailable("it no longer has all of them")
            except PeerUnavailable as error:
                self._peers[address].error = str(error)
                raise
            return status, answer

    async def _request(
        self, address: str, target: str, headers: Mapping[str, str], seconds: float, sink: BinaryIO | None
    ) -> tuple[int, bytes]:
        own = {} if self._config.token is None else {"authorization": f"Bearer {self._config.token}"}
        parts = urlsplit(address)
        make = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = make(parts.netloc, timeout=seconds)
        # The limit of the connection is that of each read: a peer may send a byte of its header now and then.
        timer = asyncio.get_running_loop().call_later(seconds, _shut_down, connection)

        def exchange() -> tuple[int, bytes]:
            try:
                connection.request("GET", target, headers={**own, **headers})
                response = connection.getresponse()
                answer, size = bytearray(), 0
                # One read of the socket each, for the same reason.
                while (part := response.read1(_PART)) and time.monotonic() < timer.when():
                    is_file = sink is not None and response.status == 200
                    limit = self._file_limit if is_file else self._limit
                    size += len(part)
                    if size > limit:
                        raise Refused(413, "TooLarge", f"the answer of {address} has more than {limit} bytes")
                    if sink is not None and is_file:
                        sink.write(part)
                    else:
                        answer += part
                if time.monotonic() >= timer.when():
                    raise TimeoutError(f"its answer took longer than {seconds:g} s")
                return response.status, bytes(answer)
            except (OSError, HTTPException) as error:
                raise PeerUnavailable(f"it does not answer ({type(error).__name__}: {error})") from error
            finally:
                connection.close()

        try:
            return await run_in_threadpool(exchange)
        finally:
            timer.cancel()


def _shut_down(connection: HTTPConnection) -> None:
    """End the reads of a connection, which are in another thread."""
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(SHUT_RDWR)


class _Status(msgspec.Struct):
    server: str
    positions: dict[str, dict[str, Any]]
    batch: int
