"""A page that shows a running job: an ASGI application to mount or to serve.

Theory of operation: the page only requests the job's snapshots, which arrive as
server-sent events. A stream of them ends after some seconds, and the page requests the
next one: servers wait for open responses before they end, by default for ever. All pages
of a job share one snapshot per second. Reading is for
programs of this machine, changing for those that have the token. A request must name
this machine by a name that always belongs to it: else a foreign web page, whose name was
resolved to this machine after it was loaded, could read it (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import resources
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from aiomailbox.api.job import JobClient, LatestSnapshot, latest_job
from aiomailbox.clock import SystemClock
from aiomailbox.errors import (
    AioMailboxError,
    InvalidArgumentError,
    MissingExtraError,
)

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


_LOOK_S: Final = 1.0
# So long an open page holds up the end of a server.
_STREAM_S: Final = 5.0
# So long an answer may take to be read when the program ends.
_END_S: Final = 1.0
_PAGES_MAX: Final = 64
_FILES: Final = {
    "": ("index.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
}
_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'self'; img-src 'self' data:; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

Answer = Callable[["Request"], Awaitable["Response"]]
Shown = JobClient | LatestSnapshot


def dashboard(
    job: JobClient | LatestSnapshot | None = None,
    *,
    token: str | None = None,
    allow_remote: bool = False,
) -> Starlette:
    """Return an ASGI application that shows a job, to be mounted or served.

    It answers only programs of this machine, which use the name ``localhost`` or a loopback
    address, unless ``allow_remote`` is set. ``POST`` to ``stop``, ``cancel`` or
    ``savepoint?path=...`` needs ``Authorization: Bearer <token>``, as the page sends it
    when a user enters it there; without a token, nothing can be changed.

    Args:
        job: The job, or the `LatestSnapshot` of a remote one; None for the job that this
            program has started last.
        token: The secret that is required to change the job.
        allow_remote: Whether other machines may read too: for an application that has
            its own authorization.

    Raises:
        InvalidArgumentError: If the token is empty.
        MissingExtraError: If starlette is not installed.
    """
    if token is not None and not token:
        raise InvalidArgumentError("token", "it is empty", "Use a long random text.")
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError as error:
        raise MissingExtraError("dashboard", "dashboard") from error
    page = _Dashboard(job, token, allow_remote=allow_remote)
    routes = [
        Route("/snapshot", page.guarded(page.snapshot)),
        Route("/events", page.guarded(page.events, needs_job=False)),
        Route("/await-tree", page.guarded(page.await_tree)),
        Route("/stop", page.guarded(page.stop), methods=["POST"]),
        Route("/cancel", page.guarded(page.cancel), methods=["POST"]),
        Route("/savepoint", page.guarded(page.savepoint), methods=["POST"]),
        # Last: it takes whatever the others do not.
        Route("/{file:path}", page.guarded(page.file, needs_job=False)),
    ]
    app = Starlette(routes=routes)
    app.state.end = page.end
    return app


class _Dashboard:
    """The request handlers of the application."""

    def __init__(
        self, job: Shown | None, token: str | None, *, allow_remote: bool
    ) -> None:
        self._job = job
        self._token = token
        self._allow_remote = allow_remote
        self._pages: WeakSet[object] = WeakSet()
        self._clock = SystemClock()
        self._seen: tuple[float, Shown, bytes] | None = None
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Let the streams of events end now, and those that begin later at once."""
        self._ended.set()

    def guarded(self, answer: Answer, *, needs_job: bool = True) -> Answer:
        """Return a handler that rejects requests that are not permitted or have no job."""

        async def guarded(request: Request) -> Response:
            from starlette.responses import PlainTextResponse

            refusal = self._refusal(request)
            if refusal is None and needs_job and self._found() is None:
                refusal = 404, "No job has been started yet."
            if refusal is not None:
                code, text = refusal
                return PlainTextResponse(text, code, headers=_HEADERS)
            response = await answer(request)
            response.headers.update(_HEADERS)
            return response

        return guarded

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        client = request.client
        if not self._allow_remote:
            if client is not None and not _is_here(client.host):
                return 403, "This page can be read only from its own machine."
            if not _is_here(_named_host(request.headers.get("host", ""))):
                return 403, (
                    "This page answers only to localhost or a loopback address; "
                    "dashboard(allow_remote=True) is for an application that "
                    "decides who may read it."
                )
        if request.method not in {"GET", "HEAD"}:
            if self._token is None:
                return (
                    403,
                    "This page is read-only: dashboard(token=...) allows changes.",
                )
            given = request.headers.get("authorization", "")
            wanted = f"Bearer {self._token}"
            # In constant time.
            if not hmac.compare_digest(given.encode(), wanted.encode()):
                return 401, "The token is missing or wrong."
            if isinstance(self._job, LatestSnapshot):
                return 409, (
                    "This job runs in another program: it can only be observed here."
                )
        return None

    def _found(self) -> Shown | None:
        if isinstance(self._job, LatestSnapshot) and self._job.snapshot() is None:
            return None
        return self._job or latest_job()

    def _shown(self) -> Shown:
        job = self._found()
        assert job is not None, "requests are refused without a job"
        return job

    def _changed(self) -> JobClient:
        job = self._shown()
        assert isinstance(job, JobClient), "changes of another one are refused"
        return job

    def _look(self, job: Shown) -> bytes:
        """Return the job as JSON; all pages share one snapshot."""
        now_s, seen = self._clock.monotonic(), self._seen
        if seen is None or seen[1] is not job or now_s - seen[0] > _LOOK_S / 2:
            snapshot = job.snapshot()
            assert snapshot is not None, "there is none before the first one only"
            seen = self._seen = (now_s, job, snapshot.to_json())
        return seen[2]

    async def file(self, request: Request) -> Response:
        """Return the page or one of its files."""
        from starlette.responses import PlainTextResponse, Response

        found = _FILES.get(request.path_params["file"])
        # Of a fixed table: no path of a request is ever opened.
        if found is None:
            return PlainTextResponse("There is no such page.", 404)
        name, media_type = found
        place = resources.files("aiomailbox.observe") / "page" / name
        return Response(place.read_text("utf-8"), media_type=media_type)

    async def snapshot(self, request: Request) -> Response:
        """Return the job's snapshot."""
        from starlette.responses import Response

        return Response(self._look(self._shown()), media_type="application/json")

    async def events(self, request: Request) -> Response:
        """Return the snapshots of some seconds from now on, as server-sent events.

        ``waiting`` is sent while there is no job, ``changeable`` where a token may change
        it.
        """
        from starlette.responses import PlainTextResponse, StreamingResponse

        if len(self._pages) >= _PAGES_MAX:
            return PlainTextResponse("Too many pages are open.", 503)

        async def snapshots() -> AsyncIterator[bytes]:
            yield b"retry: 1000\n\n"
            if self._token is not None:
                yield b"event: changeable\ndata: 1\n\n"
            end_s = self._clock.monotonic() + _STREAM_S
            while not self._ended.is_set() and self._clock.monotonic() < end_s:
                job = self._found()
                if job is None:
                    yield b"event: waiting\ndata: 1\n\n"
                else:
                    yield b"data: " + self._look(job) + b"\n\n"
                # Not held while nothing is sent: it may have ended.
                del job
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), _LOOK_S)

        body = snapshots()
        self._pages.add(body)
        return StreamingResponse(body, media_type="text/event-stream")

    async def await_tree(self, request: Request) -> Response:
        """Return what the job waits for, as text."""
        from starlette.responses import PlainTextResponse

        return PlainTextResponse(self._shown().await_tree())

    async def stop(self, request: Request) -> Response:
        """Stop the job gracefully; ``?drain=false`` fires no windows."""
        drain = request.query_params.get("drain", "true") != "false"
        job = self._changed()
        return await self._change(job, job.stop(drain=drain))

    async def cancel(self, request: Request) -> Response:
        """Cancel the job."""
        job = self._changed()
        return await self._change(job, job.cancel())

    async def savepoint(self, request: Request) -> Response:
        """Take a savepoint at ``?path=``."""
        job, path = self._changed(), request.query_params.get("path", "")
        return await self._change(job, job.trigger_savepoint(path))

    async def _change(self, job: JobClient, change: Awaitable[object]) -> Response:
        from starlette.responses import PlainTextResponse, Response

        try:
            await change
        except AioMailboxError as error:
            return PlainTextResponse(str(error), 409)
        # What it has changed is to be seen at once.
        self._seen = None
        return Response(self._look(job), media_type="application/json")


def _named_host(header: str) -> str:
    """Return the name in a Host header, without its port.

    Example:
        >>> _named_host("localhost:8081"), _named_host("[::1]:8081"), _named_host("::1")
        ('localhost', '::1', '::1')
    """
    if header.startswith("["):
        return header[1:].partition("]")[0]
    name, colon, port = header.rpartition(":")
    return name if colon and port.isdecimal() and ":" not in name else header


def _is_here(host: str) -> bool:
    """Say whether an address is of this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # A client of tests, or a socket without addresses. Browsers resolve names below
        # localhost themselves.
        return host in {"", "localhost", "testclient"} or host.endswith(".localhost")


@asynccontextmanager
async def serving_dashboard(
    port: int, *, token: str | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[str]:
    """Serve the dashboard of this program's jobs while the block runs.

    Args:
        port: The port to listen on; 0 for any free port.
        token: The secret that is required to change a job.
        host: A loopback address of this machine.

    Yields:
        The address of the page.

    Raises:
        InvalidArgumentError: If the port is taken, or others could reach the address.
        MissingExtraError: If starlette or uvicorn is not installed.
    """
    if not _is_here(host):
        raise InvalidArgumentError(
            "host",
            f"{host!r} can be reached from other machines",
            "Serve it on 127.0.0.1, or mount dashboard(...) in an application that "
            "decides who may see it.",
        )
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("dashboard", "dashboard") from error
    app = dashboard(token=token)
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    with contextlib.closing(listener):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            # A request before the server is ready waits for it.
            listener.listen(128)
        except (OSError, OverflowError) as error:
            raise InvalidArgumentError(
                "dashboard",
                f"it cannot listen on port {port} of {host}: {error}",
                "Choose another port.",
            ) from error
        config = uvicorn.Config(app, log_level="warning", lifespan="off")
        server = _Server(config)
        loop = asyncio.get_running_loop()
        serving = loop.create_task(server.serve([listener]), name="dashboard")
        try:
            yield f"http://{host}:{listener.getsockname()[1]}/"
        finally:
            # Streams of events end by themselves, and answers are sent.
            app.state.end()
            server.should_exit = True
            await asyncio.wait([serving], timeout=_END_S)
            # Whoever does not read an answer is not waited for. The response learns that
            # nobody is there: cancelled with the loop, it would be logged as a failure.
            for connection in list(server.server_state.connections):
                connection.transport.abort()
            await asyncio.wait([serving])


def _Server(config: Any) -> Any:  # noqa: N802 -- a class that needs an extra
    """Return a server that leaves the signals to the program."""
    import uvicorn

    class Server(uvicorn.Server):  # type: ignore[misc]
        @contextlib.contextmanager
        def capture_signals(self) -> Any:
            yield

    return Server(config)
