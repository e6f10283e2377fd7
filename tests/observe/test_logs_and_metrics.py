"""Log lines as machines and people read them; metrics that never collide."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from gpuslice.observe.logging import setup
from gpuslice.observe.metrics import Metrics
from gpuslice.observe.probes import CONTENT_TYPE


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    handlers = list(logging.getLogger().handlers)
    yield
    logging.getLogger().handlers = handlers
    structlog.reset_defaults()


def test_a_log_line_is_one_json_object_with_time_and_level(capsys: pytest.CaptureFixture[str]) -> None:
    setup(json=True)
    structlog.get_logger().warning("cannot follow", kind="Pod", error=ValueError("x\ny"))
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    event = json.loads(line)
    assert event.pop("timestamp").endswith("Z")
    assert event == {"event": "cannot follow", "level": "warning", "kind": "Pod", "error": "x\ny"}


def test_the_level_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    setup(json=True, level="warning")
    structlog.get_logger().info("quiet")
    assert capsys.readouterr().err == ""


def test_a_person_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    setup(json=False)
    structlog.get_logger().info("listening", port=80)
    line = capsys.readouterr().err
    assert "listening" in line
    assert "port=80" in line
    assert not line.startswith("{")


def test_nobody_watching_means_json(capsys: pytest.CaptureFixture[str]) -> None:
    setup()
    structlog.get_logger().info("x")
    assert json.loads(capsys.readouterr().err)["event"] == "x"


def test_two_instances_in_one_process_count_for_themselves() -> None:
    one, two = Metrics(), Metrics()
    one.verdicts.labels("filter", "fits").inc(3)
    one.seconds.labels("filter").observe(0.0007)
    text = one.render().decode()
    assert 'gpuslice_verdicts_total{code="fits",verb="filter"} 3.0' in text
    assert 'gpuslice_extender_request_seconds_bucket{le="0.001",verb="filter"} 1.0' in text
    assert "verdicts_total{" not in two.render().decode()
    assert "version=0.0.4" in CONTENT_TYPE
