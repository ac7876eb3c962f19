"""Requests to an object store, and the translation of its errors.

The client is `obstore`. Its errors may contain signed addresses, key ids and answers of the server, so they are not
passed on: messages have the code of the error, and no cause.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import Any

import attrs

from keyed.errors import ChangelogError, DefinitionError
from keyed.extras import extra

#: The options of the HTTP client. The others belong to the store.
_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)
_SCHEMES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
_CODE = re.compile(r"<Code>\s*([A-Za-z0-9_.]{1,64})\s*</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_RETRIES = 20
_SLOW = "the store throttles; use longer triggers or fewer key groups, or spread the changelogs over several prefixes"
_DENIED = (
    "check the credentials, in the environment or in storage_options, and that they may get, put, list and delete "
    "objects under this prefix"
)
_REMEDIES = {
    "SlowDown": _SLOW,
    "ServiceUnavailable": _SLOW,
    "503": _SLOW,
    "429": _SLOW,
    "ExpiredToken": "the credentials have expired; renew them",
    "InvalidToken": "the session token is not valid; renew the credentials",
    "RequestTimeTooSkewed": "the clock of this machine is wrong; set it",
    "NoSuchBucket": "the bucket does not exist; create it, or correct the URL",
    "NotImplemented": "the server has no conditional puts, which fence writers; use a store that has them",
    "PermanentRedirect": "the bucket is in another region; give the region",
    "AuthorizationHeaderMalformed": "the bucket is in another region; give the region",
}
#: The process that owns the client's threads.
_owner = 0


class StoreError(ChangelogError):
    """A request failed."""


@attrs.frozen
class Bucket:
    """A bucket or container, with the options of its client. Data only.

    Attributes:
        scheme: The protocol: ``s3``, ``gs`` or ``az``.
        name: Its name.
        options: Options of the client, by name. They may be secrets.
        timeout: Seconds after which a request is no longer retried.
    """

    scheme: str
    name: str
    options: tuple[tuple[str, str], ...] = attrs.field(repr=False)
    timeout: float

    def get(self, key: str) -> bytes | None:
        """Return an object, or ``None`` if there is none."""
        obstore = _obstore()
        try:
            with self._translated_errors("read", key):
                return bytes(obstore.get(self._store(), key).bytes())
        except FileNotFoundError:
            return None

    def get_range(self, key: str, start: int, size: int) -> tuple[bytes, int]:
        """Return the bytes of an object from ``start`` on, at most ``size``, and the size of the object.

        Raises:
            FileNotFoundError: It does not exist.
            ChangelogError: It cannot be read.
        """
        obstore = _obstore()
        try:
            with self._translated_errors("read", key):
                found = obstore.get(self._store(), key, options={"range": (start, start + size)})
                return bytes(found.bytes()), found.meta["size"]
        except StoreError:
            # An empty object has no range.
            if start == 0 and self.size(key) == 0:
                return b"", 0
            raise

    def size(self, key: str) -> int | None:
        """Return the bytes of an object, or ``None`` if there is none."""
        obstore = _obstore()
        try:
            with self._translated_errors("looked up", key):
                size: int = obstore.head(self._store(), key)["size"]
                return size
        except FileNotFoundError:
            return None

    def put(self, key: str, data: bytes) -> bool:
        """Write an object, unless one of this name exists.

        A request whose answer is lost may have succeeded; the object then has the bytes to be written. A request that
        the client itself repeated is refused, and the caller finds its own object.

        Returns:
            True if it was written. If not, an object of this name exists.

        Raises:
            ChangelogError: It cannot be written, or it is unknown whether it was.
        """
        obstore = _obstore()
        refusals = (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError)
        try:
            with self._translated_errors("written", key, *refusals):
                obstore.put(self._store(), key, data, mode="create", use_multipart=False)
        except refusals:
            return False
        except FileNotFoundError:
            raise self._error("written", key, "NoSuchBucket") from None
        except StoreError:
            if self._holds(key, data):
                return True
            raise
        return True

    def check_conditions(self, key: str, data: bytes) -> None:
        """Check that the store refuses to replace an object, by putting it again; delete it if the store does not.

        Raises:
            ChangelogError: The store replaces it, or cannot be reached.
        """
        obstore = _obstore()
        refusals = (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError)
        try:
            with self._translated_errors("written", key, *refusals):
                obstore.put(self._store(), key, data, mode="create", use_multipart=False)
        except refusals:
            return
        # Otherwise the next start would find it, and not check again.
        self.delete([key])
        raise ChangelogError(
            f"{self.scheme}://{self.name}/{key}: the store replaces an object although the put was conditional "
            "(If-None-Match: *), so writers cannot be fenced; use a store that has conditional puts"
        )

    def sizes(self, prefix: str, after: str | None = None) -> dict[str, int]:
        """Return the objects under a prefix by name, with their sizes.

        Args:
            prefix: The prefix, without a slash at its end.
            after: Only names after this one.
        """
        obstore = _obstore()
        sizes: dict[str, int] = {}
        try:
            with self._translated_errors("listed", prefix):
                for page in obstore.list(self._store(), prefix, offset=after):
                    sizes.update((each["path"][len(prefix) + 1 :], each["size"]) for each in page)
        except FileNotFoundError:
            raise self._error("listed", prefix, "NoSuchBucket") from None
        return sizes

    def children(self, prefix: str) -> list[str]:
        """Return the names of objects and prefixes directly under a prefix."""
        obstore = _obstore()
        try:
            with self._translated_errors("listed", prefix):
                found = obstore.list_with_delimiter(self._store(), prefix or None)
        except FileNotFoundError:
            raise self._error("listed", prefix, "NoSuchBucket") from None
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; missing ones are ignored."""
        obstore = _obstore()
        names = list(keys)
        if not names:
            return
        try:
            with self._translated_errors("deleted", names[0]):
                obstore.delete(self._store(), names)
        except FileNotFoundError:
            for name in names:
                self._delete(name)

    def _delete(self, key: str) -> None:
        obstore = _obstore()
        try:
            with self._translated_errors("deleted", key):
                obstore.delete(self._store(), key)
        except FileNotFoundError:
            return

    def _holds(self, key: str, data: bytes) -> bool:
        """Return true if an object is known to hold these bytes."""
        try:
            return self.get(key) == data
        except StoreError:
            return False

    def _store(self) -> Any:
        global _owner  # noqa: PLW0603 - there is one
        if _owner not in (0, os.getpid()):
            raise ChangelogError(
                "this process was forked from one that uses an object store, and the client's threads belong to the "
                "parent; start processes by spawn"
            )
        store = _store_of(self)
        _owner = os.getpid()
        return store

    @contextmanager
    def _translated_errors(self, action: str, key: str, *passing: type[Exception]) -> Iterator[None]:
        """Translate the client's errors. A missing object raises `FileNotFoundError` with its name."""
        known: tuple[type[Exception], ...] = (*passing, ChangelogError, DefinitionError)
        missing = False
        failed = ""
        try:
            yield
        except known:
            raise
        except FileNotFoundError as error:
            missing = "NoSuchBucket" not in str(error)
            failed = "NoSuchBucket"
        except Exception as error:  # noqa: BLE001 - the client has no base of all its errors
            failed = _code(error)
        if missing:
            raise FileNotFoundError(errno.ENOENT, "the object does not exist", f"{self.name}/{key}")
        if failed:
            raise self._error(action, key, failed)

    def _error(self, action: str, key: str, code: str) -> StoreError:
        remedy = _REMEDIES.get(code, _DENIED if code in ("401", "403", "AccessDenied") else "")
        if not remedy and code.startswith(("Invalid", "Signature", "Unauthenticated", "PermissionDenied")):
            remedy = _DENIED
        remedy = remedy or "check the endpoint, the region and the network; committed data is safe"
        return StoreError(f"{self.scheme}://{self.name}/{key} cannot be {action}: the store answered {code}; {remedy}")


def _code(error: Exception) -> str:
    """Return the code of an error: the server's code, the status of its answer, or the client's name for the error."""
    text = str(error)
    for pattern in (_CODE, _STATUS):
        if match := pattern.search(text):
            return match[1]
    if "Connect" in text:
        return "no connection"
    if "imeout" in text or "timed out" in text:
        return "no answer in time"
    return type(error).__name__.removesuffix("Error")


def _obstore() -> Any:
    with extra("s3", "a changelog in an object store"):
        import obstore.exceptions
        import obstore.store
    return obstore


@lru_cache(maxsize=64)
def _store_of(bucket: Bucket) -> Any:
    options = dict(bucket.options)
    client = {name: value for name, value in options.items() if name in _CLIENT_OPTIONS}
    config = {name: value for name, value in options.items() if name not in _CLIENT_OPTIONS}
    retries = {
        "max_retries": _RETRIES,
        "retry_timeout": timedelta(seconds=bucket.timeout),
        "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2},
    }
    made: Any = getattr(_obstore().store, _SCHEMES[bucket.scheme])
    failed = ""
    try:
        return made(bucket.name, config=config, client_options=client or None, retry_config=retries)
    except Exception as error:  # noqa: BLE001 - the client has no base of all its errors
        failed = type(error).__name__
    raise DefinitionError(
        f"ObjectStoreChangelog: the client of {bucket.scheme}://{bucket.name} cannot be created ({failed}); give "
        f"options of obstore's {_SCHEMES[bucket.scheme]} in storage_options or in the environment, not "
        f"{sorted(options)}"
    )
