"""The page over the tables of a job: static files, and their security headers."""

from __future__ import annotations

from pathlib import Path

from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from keyed.errors import DefinitionError

#: The folders of the page that shows all tables, and of the parts for other pages.
_STATIC = Path(__file__).with_name("static")

#: No content of other origins, no inline content, no frames.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    # Revalidated each time, so that a new version of the page is visible at once.
    (b"cache-control", b"no-cache"),
]


def page_routes(page: bool | Path) -> list[BaseRoute]:
    """Return the routes of a page, including the parts that all pages share; none without a page.

    Raises:
        DefinitionError: The folder holds no ``index.html``.
    """
    if page is False:
        return []
    folder = _STATIC if page is True else page
    if not (folder / "index.html").is_file():
        raise DefinitionError(f"page={str(folder)!r} holds no index.html; give the folder of a page, or True")
    return [Mount("/page", _Files(directory=_STATIC, html=True)), Mount("/", _Files(directory=folder, html=True))]


class _Files(StaticFiles):
    """The files of a folder, with the headers of a page."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        await super().__call__(scope, receive, send_with_headers)
