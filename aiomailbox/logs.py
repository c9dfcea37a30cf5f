"""How the library logs: by the standard library's ``logging``, with structured fields.

A record's message has everything in words, so that any handler shows it. What it is
about is on the record too, one attribute for each field (``record.operator``,
``record.count``), with ``record.event`` for what happened, so that JSON and structlog
have all of it. The program that this is part of decides where it goes. Where it has configured
nothing, warnings and errors go to stderr, a line each.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final

LOGGER_NAME: Final = "aiomailbox"

# What every record has already; `logging` refuses fields of these names.
_TAKEN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
# What `logging` itself takes beside a message.
_OPTIONS: Final = ("exc_info", "stack_info", "stacklevel")


class _LastResort(logging.Handler):
    """Writes warnings to stderr while no handler of the program's would get them.

    As `logging.lastResort`, but each line says who speaks and how bad it is. A program
    that sets that one to None wants silence.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, if nothing else does."""
        stream = sys.stderr
        if stream is None or logging.lastResort is None or self._is_handled(record):
            return
        try:
            text = record.getMessage()
            # What is raised shows the traceback again.
            block = getattr(record, "traceback", None)
            if isinstance(block, str):
                text = text.replace(f"\n{block}", "")
            stream.write(f"{record.levelname} {LOGGER_NAME}: {text}\n")
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001 -- as every handler does
            self.handleError(record)

    def _is_handled(self, record: logging.LogRecord) -> bool:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            for handler in logger.handlers:
                if handler is not self and not isinstance(handler, logging.NullHandler):
                    return True
            logger = logger.parent if logger.propagate else None
        return False


logging.getLogger(LOGGER_NAME).addHandler(_LastResort(logging.WARNING))


def library_log(**context: Any) -> Any:
    """Return a structlog logger that goes through ``logging``, with fields bound to it.

    It has a configuration of its own: structlog's global one is the program's.

    Args:
        context: What every line is about, such as the job's name.

    Example:
        >>> import sys
        >>> handler = logging.StreamHandler(sys.stdout)
        >>> logging.getLogger(LOGGER_NAME).addHandler(handler)
        >>> library_log(job="orders").warning("records skipped", count=3)
        records skipped job='orders' count=3
        >>> logging.getLogger(LOGGER_NAME).removeHandler(handler)
    """
    structlog = _structlog()
    return structlog.wrap_logger(
        logging.getLogger(LOGGER_NAME),
        processors=[
            structlog.stdlib.filter_by_level,
            # Users log as they do elsewhere: log.info("%s of %s", done, total).
            structlog.stdlib.PositionalArgumentsFormatter(),
            _to_record,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
        cache_logger_on_first_use=False,
    ).bind(**context)


def silenced(log: Any, is_silent: Any) -> Any:
    """Return a logger that leaves out some lines of another one.

    Args:
        log: A structlog logger.
        is_silent: ``is_silent(method, fields)`` says whether a line is left out.
    """
    structlog = _structlog()

    def leave_out(_: Any, method: str, fields: Any) -> Any:
        if is_silent(method, fields):
            raise structlog.DropEvent
        return fields

    return structlog.wrap_logger(
        log,
        processors=[leave_out],
        wrapper_class=structlog.BoundLogger,
        context_class=dict,
        cache_logger_on_first_use=False,
    )


def _structlog() -> Any:
    # Its import takes longer than that of everything else, where rich is installed. It
    # asks stdout whether it is a terminal, which one that is closed does not answer.
    is_closed = getattr(sys.stdout, "closed", False)
    with contextlib.redirect_stdout(None) if is_closed else contextlib.nullcontext():
        import structlog
    return structlog


def _to_record(
    _: Any, __: str, fields: MutableMapping[str, Any]
) -> tuple[tuple[str], dict[str, Any]]:
    """Return the arguments for a method of a `logging.Logger`."""
    event = str(fields.pop("event"))
    options: dict[str, Any] = {
        name: fields.pop(name) for name in _OPTIONS if name in fields
    }
    words, blocks = [event], []
    for name, value in fields.items():
        if isinstance(value, str) and "\n" in value:
            blocks.append(value)
        else:
            words.append(f"{name}={value!r}")
    extra = {f"{name}_" if name in _TAKEN else name: fields[name] for name in fields}
    # A percent sign means nothing where there are no arguments.
    text = "\n".join([" ".join(words), *blocks])
    return (text,), {"extra": {"event": event, **extra}, **options}
