"""URIs as ``java.net.URI`` parses them: RFC 2396 with its deviations, such as unescaped characters beyond ASCII."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
import urllib.parse
from functools import lru_cache

import attrs

_ALPHA = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DIGIT = frozenset("0123456789")
_ALNUM = _ALPHA | _DIGIT
_UNRESERVED = _ALNUM | frozenset("_-!.~'()*")
_URIC = _UNRESERVED | frozenset(";/?:@&=+$,[]%")
_PATH = _UNRESERVED | frozenset(":@&=+$,;/%")
_REGISTRY = _UNRESERVED | frozenset("$,;:@&=+%")
_USER = _UNRESERVED | frozenset(";:&=+$,%")
_SERVER = _USER | frozenset("@[]")
_HEX_PAIR = re.compile("%[0-9a-fA-F]{2}")
_BYTE = "([0-9]{1,3})"
_IPV4 = re.compile(rf"{_BYTE}\.{_BYTE}\.{_BYTE}\.{_BYTE}(?=:|$)")
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
#: The last of several labels begins with a letter.
_HOST = re.compile(rf"{_LABEL}\.?(?=:|$)|(?:{_LABEL}\.)+[a-zA-Z](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?\.?(?=:|$)")


@attrs.frozen
class JavaUri:
    """A URI.

    Attributes:
        scheme: Its scheme.
        host: Its host; ``None`` without one, or if the authority does not have the form of a server.
        port: Its port.
        path: Its path with its escapes decoded, empty without one; ``None`` for a URI like ``mailto:a@b``.
        query: Its query with its escapes decoded.
        fragment: Its fragment with its escapes decoded.
    """

    scheme: str | None
    host: str | None
    port: int | None
    path: str | None
    query: str | None
    fragment: str | None


@lru_cache(maxsize=256)
def parse_uri(text: str) -> JavaUri:
    """Return a URI.

    Raises:
        ValueError: The text is none.
    """
    rest, has_fragment, fragment = text.partition("#")
    head = re.match(r"[^:/?#]*", rest)
    place = head.end() if head else 0
    scheme: str | None = None
    if rest[place : place + 1] == ":":
        scheme, rest = rest[:place], rest[place + 1 :]
        if re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.-]*", scheme) is None:
            raise ValueError(f"{text!r}: {scheme!r} is no scheme")
    _check(text, fragment, _URIC)
    decoded = _decoded(fragment) if has_fragment else None
    if scheme is not None and not rest.startswith("/"):
        if not rest:
            raise ValueError(f"{text!r} ends after its scheme")
        _check(text, rest, _URIC)
        return JavaUri(scheme, None, None, None, None, decoded)
    rest, has_query, query = rest.partition("?")
    _check(text, query, _URIC)
    host, port = None, None
    if rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path
        if authority:
            host, port = _authority(text, authority)
        elif not rest and not has_query and not has_fragment:
            raise ValueError(f"{text!r} has no authority")
    _check(text, rest, _PATH)
    return JavaUri(scheme, host, port, _decoded(rest), _decoded(query) if has_query else None, decoded)


def _is_other(sign: str) -> bool:
    """Return whether a character beyond ASCII needs no escape."""
    return ord(sign) > 128 and not unicodedata.category(sign).startswith("Z") and not "\x80" <= sign <= "\x9f"


def _is_legal(part: str, allowed: frozenset[str]) -> bool:
    return all(sign in allowed or _is_other(sign) for sign in part) and part.count("%") == len(_HEX_PAIR.findall(part))


def _check(text: str, part: str, allowed: frozenset[str]) -> None:
    if not _is_legal(part, allowed):
        raise ValueError(f"{text!r}: {part!r} has a character or an escape that is not allowed there")


def _authority(text: str, authority: str) -> tuple[str | None, int | None]:
    is_registry = _is_legal(authority, _REGISTRY)
    if all(sign in _SERVER or _is_other(sign) for sign in authority):
        try:
            return _server(authority)
        except ValueError:
            if not is_registry:
                raise
    if not is_registry:
        raise ValueError(f"{text!r}: {authority!r} is no authority")
    return None, None


def _server(authority: str) -> tuple[str, int | None]:
    user, has_user, rest = authority.partition("@")
    if has_user:
        _check(authority, user, _USER)
    else:
        rest = authority
    if rest.startswith("["):
        inside, end, after = rest[1:].partition("]")
        if not end:
            raise ValueError(f"{authority!r} has no closing bracket")
        ipaddress.IPv6Address(inside)
        host = f"[{inside}]"
    else:
        found = _IPV4.match(rest)
        if found is None or any(int(byte) > 255 for byte in found.groups()):
            found = _HOST.match(rest)
        if found is None:
            raise ValueError(f"{authority!r} has no host")
        host, after = found[0], rest[found.end() :]
    if not after:
        return host, None
    if re.fullmatch(r":[0-9]*", after) is None or int(after[1:] or 0) >= 2**31:
        raise ValueError(f"{authority!r} has no port after its host")
    return host, int(after[1:]) if after[1:] else None


def _decoded(text: str) -> str:
    return urllib.parse.unquote(text, errors="replace")
