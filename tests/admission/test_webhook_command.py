"""The webhook as a part of a command: what goes together, and that it serves once it has a certificate."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gpuslice.admission.nodename import unknown
from gpuslice.admission.rotating import Secret
from gpuslice.admission.visibility import EnvFrom, Rules
from gpuslice.admission.webhook import webhook_app
from gpuslice.cli.run.webhook import WebhookOptions, webhook_options
from gpuslice.cli.run.webhookserver import Webhook
from gpuslice.clock import SystemClock
from gpuslice.kube.client import Client
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.observe.serving import listen


@click.command()
@click.option("--other")
@webhook_options
def command(other: str | None, webhook: WebhookOptions | None) -> None:
    click.echo(f"{other} {webhook}")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--webhook :1", "--webhook and --webhook-certificate go together"),
        ("--webhook-certificate /x", "--webhook and --webhook-certificate go together"),
        ("--certificate-secret a/b --certificate-name n", "--certificate-secret needs --webhook"),
        (
            "--webhook :1 --webhook-certificate /x --certificate-secret a/b",
            "--certificate-secret needs --certificate-name",
        ),
        ("--webhook :1 --webhook-certificate /x --certificate-name n", "need --certificate-secret"),
        ("--certificate-secret tls", "is not NAMESPACE/NAME"),
        ("--webhook-client-ca /x", "--webhook-client-ca needs --webhook"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(arguments: str, sentence: str) -> None:
    result = CliRunner().invoke(command, arguments.split())
    assert result.exit_code == 2
    assert sentence in result.output


def test_the_options_arrive_as_one_and_leave_others_alone() -> None:
    nothing = CliRunner().invoke(command, ["--other", "x"])
    assert nothing.output == "x None\n"
    arguments = "--webhook :1 --webhook-certificate /x --certificate-secret a/b --certificate-name n"
    given = CliRunner().invoke(command, [*arguments.split(), "--certificate-name", "m"])
    options = WebhookOptions(":1", Path("/x"), ("a", "b"), ("n", "m"), None)
    assert given.output == f"None {options}\n"


def test_what_an_administrator_chooses_arrives() -> None:
    arguments = "--webhook :1 --webhook-certificate /x --env-from resolve --no-hide-gpus"
    options = WebhookOptions(
        ":1", Path("/x"), None, (), None, rules=Rules(env_from=EnvFrom.RESOLVE, hide=False)
    )
    assert CliRunner().invoke(command, arguments.split()).output == f"None {options}\n"


async def test_the_choice_is_the_webhooks_answer() -> None:
    """As it is asked over HTTP."""
    pod = {"spec": {"containers": [{"name": "c"}]}}
    question = json.dumps({"request": {"uid": "u", "kind": {"kind": "Pod"}, "object": pod}}).encode()
    scope = {"type": "http", "method": "POST", "path": "/mutate"}

    async def answered(rules: Rules) -> dict[str, object]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": question, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await webhook_app(rules)(scope, receive, send)
        response: dict[str, object] = json.loads(sent[-1]["body"])["response"]
        return response

    assert "patch" in await answered(Rules())
    assert "patch" not in await answered(Rules(hide=False))


async def test_it_serves_as_soon_as_there_is_a_secret_to_keep_the_certificate_in(tmp_path: Path) -> None:
    """The Secret may come later than the pod: until then it is not ready and says why."""
    server = ApiServer(clock=SystemClock(), new_uid=iter(map(str, range(1000))).__next__)
    await server.start()
    client = Client(server.transport())
    free = listen("127.0.0.1", 0)
    port = free.getsockname()[1]
    free.close()
    options = WebhookOptions(f"127.0.0.1:{port}", tmp_path, ("default", "tls"), ("127.0.0.1",), None)
    hook = Webhook(client, options, clock=SystemClock(), offered=unknown)
    running = asyncio.create_task(hook.run())
    assert hook.waits_for() == "the webhook has no certificate yet"
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls"}}
    await client.create(Secret.resource, body, "default")
    async with asyncio.timeout(10):
        await hook.certified()
        assert hook.waits_for() == ""
        trusting = ssl.create_default_context(cafile=tmp_path / "ca.crt")
        while True:
            with suppress(ConnectionRefusedError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
                break
            await asyncio.sleep(0)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).endswith(b"ok")
    writer.close()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await server.stop()


async def test_none_is_ready_at_once() -> None:
    server = ApiServer(clock=SystemClock(), new_uid=iter(map(str, range(1000))).__next__)
    hook = Webhook(Client(server.transport()), None, clock=SystemClock(), offered=unknown)
    await hook.run()
    assert hook.waits_for() == ""
