"""A page that shows a running job: an ASGI application to mount or to serve.

Theory of operation: the page only requests the job's snapshots, which arrive as
server-sent events. A stream of them ends after some seconds, and the page requests the
next one: servers wait for open responses before they end, by default for ever. All pages
of a job share one snapshot per second, and ask for what was kept of the last minutes. Reading is for
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
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import msgspec

from aiomailbox.api.job import JobClient, LatestSnapshot
from aiomailbox.clock import SystemClock
from aiomailbox.errors import (
    AioMailboxError,
    InvalidArgumentError,
    MissingExtraError,
    WrongTypeError,
)
from aiomailbox.observe.history import JobHistory, ProgramHistory, Shown
from aiomailbox.operators.core.user_code import is_own_line

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
_NONE: Final = "No job has been started yet."
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
        job: The job, or the `LatestSnapshot` of a remote one; None for all jobs of this
            program, the one that was started last first.
        token: The secret that is required to change the job.
        allow_remote: Whether other machines may read too: for an application that has
            its own authorization.

    Raises:
        InvalidArgumentError: If the token is empty.
        WrongTypeError: If ``job`` is no job that runs.
        MissingExtraError: If starlette is not installed.
    """
    given: object = job
    if not isinstance(given, JobClient | LatestSnapshot | None):
        raise WrongTypeError(
            "job",
            f"{given!r} is not a running job",
            "Write `async with env.start() as job:` and give the job, or leave it out "
            "for all jobs of this program.",
        )
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
        Route("/history", page.guarded(page.history)),
        Route("/await-tree", page.guarded(page.await_tree)),
        Route("/stop", page.guarded(page.stop), methods=["POST"]),
        Route("/cancel", page.guarded(page.cancel), methods=["POST"]),
        Route("/savepoint", page.guarded(page.savepoint), methods=["POST"]),
        # Last: it takes whatever the others do not.
        Route("/{file:path}", page.guarded(page.file, needs_job=False)),
    ]
    app = Starlette(routes=routes)
    app.state.end = page.end
    with contextlib.suppress(RuntimeError):
        # Without a loop it begins with the first request.
        page.begin()
    return app


class _Dashboard:
    """The request handlers of the application."""

    def __init__(
        self, job: Shown | None, token: str | None, *, allow_remote: bool
    ) -> None:
        self._is_remote = isinstance(job, LatestSnapshot)
        self._jobs = ProgramHistory(job)
        self._token = token
        self._allow_remote = allow_remote
        self._pages: WeakSet[object] = WeakSet()
        self._clock = SystemClock()
        self._ended = asyncio.Event()

    def begin(self) -> None:
        """Keep what the jobs of the running loop do from now on."""
        self._jobs.begin()

    def end(self) -> None:
        """Let the streams of events end now, and those that begin later at once."""
        self._ended.set()

    def guarded(self, answer: Answer, *, needs_job: bool = True) -> Answer:
        """Return a handler that rejects requests that are not permitted or have no job."""

        async def guarded(request: Request) -> Response:
            from starlette.responses import PlainTextResponse

            refusal = self._refusal(request)
            self._jobs.begin()
            if refusal is None and needs_job and self._found(request) is None:
                refusal = 404, _NONE
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
            if self._is_remote:
                return 409, (
                    "This job runs in another program: it can only be observed here."
                )
        return None

    def _found(self, request: Request) -> JobHistory | None:
        """Return the job that a request is about: ``?job=`` a number, or the last one."""
        text = request.query_params.get("job", "")
        if text and not text.isdecimal():
            return None
        return self._jobs.find(int(text[:9]) if text else None)

    def _shown(self, request: Request) -> JobHistory:
        found = self._found(request)
        assert found is not None, "requests are refused without a job"
        return found

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
        return _json(self._shown(request).json())

    async def history(self, request: Request) -> Response:
        """Return the numbers of the last five minutes, ``?since=`` a time of the answer."""
        since = request.query_params.get("since", "")
        since_ms = int(since[:18]) if since.isdecimal() else 0
        return _json(msgspec.json.encode(self._shown(request).series(since_ms)))

    async def events(self, request: Request) -> Response:
        """Return the snapshots of some seconds from now on, as server-sent events.

        ``waiting`` is sent while there is no such job, ``changeable`` where a token may
        change it, and ``jobs`` with all jobs and the number of the one that is shown.
        """
        from starlette.responses import PlainTextResponse, StreamingResponse

        if len(self._pages) >= _PAGES_MAX:
            return PlainTextResponse("Too many pages are open.", 503)

        async def snapshots() -> AsyncIterator[bytes]:
            told = b""
            yield b"retry: 1000\n\n"
            if self._token is not None:
                yield b"event: changeable\ndata: 1\n\n"
            end_s = self._clock.monotonic() + _STREAM_S
            while not self._ended.is_set() and self._clock.monotonic() < end_s:
                shown = self._found(request)
                number = None if shown is None else shown.number
                jobs = msgspec.json.encode(
                    {"shown": number, "jobs": self._jobs.listed()}
                )
                if jobs != told:
                    yield b"event: jobs\ndata: " + jobs + b"\n\n"
                    told = jobs
                if shown is None:
                    yield b"event: waiting\ndata: 1\n\n"
                else:
                    yield b"data: " + shown.json() + b"\n\n"
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), _LOOK_S)

        body = snapshots()
        self._pages.add(body)
        return StreamingResponse(body, media_type="text/event-stream")

    async def await_tree(self, request: Request) -> Response:
        """Return what the job waits for, as text.

        With ``?format=json`` its lines, each with whether it is a frame of the engine's.
        """
        from starlette.responses import PlainTextResponse

        tree = self._shown(request).await_tree()
        if request.query_params.get("format") != "json":
            return PlainTextResponse(tree)
        lines = [(line, _is_engine(line)) for line in tree.split("\n")]
        return _json(msgspec.json.encode(lines))

    async def stop(self, request: Request) -> Response:
        """Stop the job gracefully; ``?drain=false`` fires no windows."""
        drain = request.query_params.get("drain", "true") != "false"
        return await self._change(request, lambda job: job.stop(drain=drain))

    async def cancel(self, request: Request) -> Response:
        """Cancel the job."""
        return await self._change(request, lambda job: job.cancel())

    async def savepoint(self, request: Request) -> Response:
        """Take a savepoint at ``?path=``."""
        from starlette.responses import PlainTextResponse

        if self._shown(request).job is None:
            return PlainTextResponse(
                "The job has ended: it has no state any more.", 409
            )
        path = request.query_params.get("path", "")
        return await self._change(request, lambda job: job.trigger_savepoint(path))

    async def _change(
        self, request: Request, change: Callable[[JobClient], Awaitable[object]]
    ) -> Response:
        from starlette.responses import PlainTextResponse

        shown = self._shown(request)
        job = shown.job
        if job is None:
            # It is stopped already.
            return _json(shown.json())
        assert isinstance(job, JobClient), "changes of another one are refused"
        try:
            await change(job)
        except AioMailboxError as error:
            return PlainTextResponse(str(error), 409)
        # What it has changed is to be seen at once.
        return _json(shown.json(fresh=True))


def _json(data: bytes) -> Response:
    from starlette.responses import Response

    return Response(data, media_type="application/json")


def _is_engine(line: str) -> bool:
    """Say whether a line of an await-tree says where the engine stands."""
    if line.lstrip().startswith("<MailboxProcessor "):
        return True
    function, paren, place = line.strip().removesuffix(")").rpartition(" (")
    file = place.rpartition(":")[0]
    return bool(paren and function.startswith("in ") and file) and is_own_line(file)


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
        server = uvicorn.Server(config)
        # Signals are the program's.
        server.capture_signals = contextlib.nullcontext
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
