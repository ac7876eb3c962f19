"""Requests to an object store, their repetition, and the translation of its errors.

The client is `obstore`. Its errors may contain signed addresses, key ids and answers of the server, so they are not
passed on: messages have the code of the error, and errors have neither its cause nor its context. The client itself
repeats some requests and not others, such as conditional puts without an answer, so it is not used for that.
"""

from __future__ import annotations

import errno
import os
import random
import re
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

import attrs

from keyed.base.extras import extra
from keyed.errors import ChangelogError, DefinitionError

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
#: A code of an answer. Key ids have no lower-case letters.
_CODE = re.compile(r"<Code>\s*((?=[A-Z]*[a-z])[A-Za-z]{1,64})\s*</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_NO_CONNECTION, _NO_ANSWER, _BROKEN = "there is no connection", "there was no answer in time", "the connection broke"
#: Failures that may pass, apart from statuses.
_PASSING = frozenset(
    {
        _NO_CONNECTION,
        _NO_ANSWER,
        _BROKEN,
        "ConditionalRequestConflict",
        "IncompleteBody",
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
    }
)
_PASSING_STATUSES = frozenset({"408", "429", "500", "502", "503", "504"})
#: Seconds between two attempts: the first pause, and the longest. Half of each is chance.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_SLOW = "the store throttles; use longer triggers or fewer key groups, or spread the changelogs over several prefixes"
_DENIED = (
    "check the credentials, in the environment or in storage_options, and that they may get, put, list and delete "
    "objects under this prefix"
)
_NO_BUCKET = "the bucket does not exist; create it, or correct the URL"
_REMEDIES = {
    _NO_ANSWER: (
        "check the endpoint and the network; the client's option timeout, 30 s by default, is the limit of one "
        "request, and a large object on a slow connection needs more"
    ),
    **dict.fromkeys(("SlowDown", "ServiceUnavailable", "503", "429"), _SLOW),
    "ExpiredToken": "the credentials have expired; renew them",
    "InvalidToken": "the session token is not valid; renew the credentials",
    "RequestTimeTooSkewed": "the clock of this machine is wrong; set it",
    **dict.fromkeys(("NoSuchBucket", "ContainerNotFound"), _NO_BUCKET),
    "NotImplemented": "the server has no conditional puts, which fence writers; use a store that has them",
    **dict.fromkeys(
        ("PermanentRedirect", "AuthorizationHeaderMalformed"), "the bucket is in another region; give the region"
    ),
}
#: The process that owns the client's threads.
_owner = 0

T = TypeVar("T")


@attrs.frozen
class Bucket:
    """A bucket or container, with the options of its client. Data only.

    Attributes:
        scheme: The protocol: ``s3``, ``gs`` or ``az``.
        name: Its name.
        options: Options of the client, by name. They may be secrets.
        timeout: Seconds for which a request is repeated while the store throttles, fails or does not answer.
    """

    scheme: str
    name: str
    options: tuple[tuple[str, str], ...] = attrs.field(repr=False)
    timeout: float

    def get(self, key: str) -> bytes | None:
        """Return an object, or ``None`` if there is none."""
        try:
            return self._ask("read", key, lambda obstore, store: bytes(obstore.get(store, key).bytes()))
        except FileNotFoundError:
            return None

    def get_range(self, key: str, start: int, size: int) -> tuple[bytes, int]:
        """Return the bytes of an object from ``start`` on, at most ``size``, and the size of the object.

        Raises:
            FileNotFoundError: It does not exist.
            ChangelogError: It cannot be read.
        """

        def get(obstore: Any, store: Any) -> tuple[bytes, int]:
            try:
                response = obstore.get(store, key, options={"range": (start, start + size)})
                return bytes(response.bytes()), response.meta["size"]
            except Exception as error:
                # An empty object has no range.
                if start == 0 and "status code: 416" in str(error):
                    return b"", 0
                raise

        return self._ask("read", key, get)

    def size(self, key: str) -> int | None:
        """Return the bytes of an object, or ``None`` if there is none."""
        try:
            return self._ask("looked up", key, lambda obstore, store: int(obstore.head(store, key)["size"]))
        except FileNotFoundError:
            return None

    def put(self, key: str, data: bytes) -> bool:
        """Write an object, unless one of this name exists.

        A request without an answer may have succeeded. It is repeated, and then refused; the caller finds its own
        object.

        Returns:
            True if it was written. If not, an object of this name exists.

        Raises:
            ChangelogError: It cannot be written, or it is unknown whether it was.
        """
        try:
            return self._put(key, data)
        except ChangelogError:
            if self._holds(key, data):
                return True
            raise

    def check_conditions(self, key: str, data: bytes) -> None:
        """Check that the store refuses to replace an object, by putting it again; delete it if the store does not.

        Raises:
            ChangelogError: The store replaces it, or cannot be reached.
        """
        if not self._put(key, data):
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
        sizes: dict[str, int] = {}
        pages: Any = None

        def next_page(obstore: Any, store: Any) -> list[Any] | None:
            nonlocal pages
            # After a failure the listing resumes behind the last name.
            listing, pages = pages or obstore.list(store, prefix, offset=after), None
            page: list[Any] | None = next(listing, None)
            pages = listing
            return page

        while page := self._ask("listed", prefix, next_page, missing="NoSuchBucket"):
            sizes.update((each["path"][len(prefix) + 1 :], each["size"]) for each in page)
            after = page[-1]["path"]
        return sizes

    def children(self, prefix: str) -> list[str]:
        """Return the names of objects and prefixes directly under a prefix."""

        def list_children(obstore: Any, store: Any) -> Any:
            return obstore.list_with_delimiter(store, prefix or None)

        listing = self._ask("listed", prefix, list_children, missing="NoSuchBucket")
        paths = [*listing["common_prefixes"], *(each["path"] for each in listing["objects"])]
        return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; missing ones are ignored."""
        names = list(keys)
        if not names:
            return
        try:
            self._ask("deleted", names[0], lambda obstore, store: obstore.delete(store, names))
        except FileNotFoundError:
            # Of one of several. The client stops there.
            for name in names if len(names) > 1 else ():
                self.delete([name])

    def _put(self, key: str, data: bytes) -> bool:
        def create(obstore: Any, store: Any) -> bool:
            try:
                obstore.put(store, key, data, mode="create", use_multipart=False)
            except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError) as error:
                if _code_of(error) in _PASSING:
                    raise
                return False
            return True

        return self._ask("written", key, create, missing="NoSuchBucket")

    def _holds(self, key: str, data: bytes) -> bool:
        """Return true if an object is known to hold these bytes."""
        try:
            return self.get(key) == data
        except ChangelogError:
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

    def _ask(self, action: str, key: str, call: Callable[[Any, Any], T], missing: str = "") -> T:
        """Return the result of a call of the client. It is repeated, with pauses, while its failure may pass.

        Args:
            action: The participle of the action, for messages.
            key: The object or prefix.
            call: Called with the client's module and its store.
            missing: The code for a place that does not exist; without one that is the object.

        Raises:
            FileNotFoundError: The object does not exist.
            ChangelogError: The request failed for good, or for `timeout`.
        """
        obstore, store = _obstore(), self._store()
        began, attempt = time.monotonic(), 0
        while True:
            attempt += 1
            try:
                return call(obstore, store)
            except Exception as error:  # noqa: BLE001 - the client has no base of all its errors
                failed = _failure(error)
            # Errors are raised outside of the handler, so that the client's error is not their context.
            if failed is None and missing:
                raise self._error(action, key, missing)
            if failed is None:
                raise FileNotFoundError(errno.ENOENT, "the object does not exist", f"{self.name}/{key}")
            code, passes = failed
            pause = min(_FIRST_PAUSE * 2.0 ** min(attempt - 1, 16), _LONGEST_PAUSE) * (1 + random.random()) / 2  # noqa: S311 - no secret
            seconds = time.monotonic() - began
            if not passes or seconds + pause > self.timeout:
                raise self._error(action, key, code, f" ({attempt} attempts in {seconds:.1f} s)" if attempt > 1 else "")
            time.sleep(pause)

    def _error(self, action: str, key: str, code: str, attempts: str = "") -> ChangelogError:
        remedy = _REMEDIES.get(code, _DENIED if code in ("401", "403", "AccessDenied") else "")
        if not remedy and code.startswith(("Invalid", "Signature", "Unauthenticated", "PermissionDenied")):
            remedy = _DENIED
        remedy = remedy or "check the endpoint, the region and the network; committed data is safe"
        reason = code if " " in code else f"the store answered {code}"
        return ChangelogError(f"{self.scheme}://{self.name}/{key} cannot be {action}: {reason}; {remedy}{attempts}")


def _failure(error: Exception) -> tuple[str, bool] | None:
    """Return the meaning of an error of the client, without its text.

    Returns:
        The code of the server, the status of its answer or the client's name for the error, and whether the failure may
        pass; ``None`` for an object that does not exist.
    """
    text, code = str(error), _code_of(error)
    if isinstance(error, FileNotFoundError) and _REMEDIES.get(code) != _NO_BUCKET:
        return None
    match = _STATUS.search(text)
    status = match[1] if match else ""
    if not match and "HTTP error" in text and "kind: Unknown" not in text:
        kinds = {"kind: Connect": _NO_CONNECTION, "TimedOut": _NO_ANSWER, "kind: Timeout": _NO_ANSWER}
        code = next((kinds[sign] for sign in kinds if sign in text), _BROKEN)
    code = code or status or type(error).__name__.removesuffix("Error")
    return code, code in _PASSING or status in _PASSING_STATUSES


def _code_of(error: Exception) -> str:
    """Return the server's code for an error, or an empty text."""
    match = _CODE.search(str(error))
    return match[1] if match else ""


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
    retries = {"max_retries": 0, "retry_timeout": timedelta(seconds=bucket.timeout)}
    store_class: Any = getattr(_obstore().store, _SCHEMES[bucket.scheme])
    failed = ""
    try:
        return store_class(bucket.name, config=config, client_options=client or None, retry_config=retries)
    except Exception as error:  # noqa: BLE001 - the client has no base of all its errors
        failed = type(error).__name__
    raise DefinitionError(
        f"ObjectStoreChangelog: the client of {bucket.scheme}://{bucket.name} cannot be created ({failed}); give "
        f"options of obstore's {_SCHEMES[bucket.scheme]} in storage_options or in the environment, not "
        f"{sorted(options)}"
    )
