"""One set-up for the logs of every process: structured, JSON unless a person is watching."""

from __future__ import annotations

import logging
import sys

import msgspec
import structlog

from gpuslice.observe.repeats import StandardLibrary


def setup(*, json: bool | None = None, level: str = "info") -> None:
    """Configure structlog. `json=None` means JSON unless stderr is a terminal.

    The logs of libraries get the same form, and repeated ones are counted.
    """
    if json is None:
        json = not sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(serializer=_encode)
        if json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    if not any(isinstance(handler, StandardLibrary) for handler in root.handlers):
        root.addHandler(StandardLibrary())


def _encode(event: object, **_options: object) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
