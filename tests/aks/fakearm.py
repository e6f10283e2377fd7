"""The part of Azure Resource Manager that keeps a cluster's agent pools, on loopback. Our own code.

It answers as the API of 2026-08-01 is described: over TLS, with a bearer token, long operations followed by
Azure-AsyncOperation or Location. Nothing takes time: an operation is over after `polls` questions about it.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from gpuslice.clock import SystemClock
from gpuslice.local.apiserver.api.certificates import issue
from gpuslice.observe.serving import Tls, serving

API_VERSION = "2026-08-01"
TOKEN = "a-token-of-the-tests"
SECRET = "a-secret-of-the-tests"
SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
GROUP, CLUSTER, REGION = "myresourcegroup", "migcluster", "southcentralus"
VM_SIZES = {  # vCPUs, can be partitioned
    "Standard_ND96asr_v4": (96, True),
    "Standard_NC24ads_A100_v4": (24, True),
    "Standard_NC4as_T4_v3": (4, False),
    "Standard_DS2_v2": (2, False),
}
IMMUTABLE = ("vmSize", "gpuInstanceProfile", "osType")

_POOLS = re.compile(
    r"/subscriptions/(?P<subscription>[^/]+)/resourcegroups/(?P<group>[^/]+)/providers"
    r"/microsoft\.containerservice/managedclusters/(?P<cluster>[^/]+)/agentpools(?:/(?P<pool>[^/]+))?",
    re.IGNORECASE,
)
_OPERATIONS = re.compile(r"/operations/(?P<kind>status|result)/(?P<id>\d+)")


@dataclass
class Answer:
    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Operation:
    """What is under way in a pool; `left`: how often it is asked about until it has ended."""

    pool: str
    verb: str
    left: int
    failure: dict[str, str] | None
    status: str = "InProgress"


def error(status: int, code: str, message: str, **headers: str) -> Answer:
    """An error as AKS itself writes it: without a wrapper, and with nulls."""
    body = {"code": code, "details": None, "message": message, "subcode": ""}
    return Answer(status, body, headers)


def arm_error(status: int, code: str, message: str, **headers: str) -> Answer:
    """An error as Azure Resource Manager writes it, which stands before AKS."""
    return Answer(status, {"error": {"code": code, "message": message}}, headers)


@dataclass
class FakeArm:
    """One cluster's pools. The fields are the tests' to set.

    `instead`: what the next requests get, whatever they ask, or those of the method `instead_of`. `polls`: None for operations that never end.
    `operation_fails`: the error with which the next operation ends. `followed_by`: the header that tells where
    to ask about an operation. `page`: how many pools a page of the list has. `after_get`: what somebody else
    does before who has read a pool acts on it.
    """

    quota_vcpus: int = 960
    polls: int | None = 1
    retry_after: str = ""
    operation_fails: tuple[str, str] | None = None
    followed_by: str = "Azure-AsyncOperation"
    page: int = 100
    after_get: Callable[[], None] = lambda: None
    instead: list[Answer] = field(default_factory=list)
    instead_of: str = ""
    pools: dict[str, dict[str, Any]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    polled: threading.Event = field(default_factory=threading.Event)
    endpoint: str = ""

    def add(self, name: str, **properties: Any) -> None:
        """A pool that is there already, whoever has made it."""
        has = {"vmSize": "Standard_DS2_v2", "count": 1, "mode": "User", "osType": "Linux"} | properties
        self.pools[name] = {"provisioningState": "Succeeded", "eTag": "1", **has}

    def finish(self) -> None:
        """End what is under way."""
        for operation in self.operations:
            if operation.status == "InProgress":
                self._end(operation)

    def puts(self) -> list[dict[str, Any]]:
        """The properties of every PUT, in order."""
        return [request.body["properties"] for request in self.requests if request.method == "PUT"]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        content, more = b"", True
        while more:
            message = await receive()
            content += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {key.decode().lower(): value.decode() for key, value in scope["headers"]}
        if scope["path"].endswith("/oauth2/v2.0/token"):
            await _send(send, self._login(parse_qs(content.decode())))
            return
        body = json.loads(content) if content else None
        request = Request(scope["method"], scope["path"], headers, body)
        self.requests.append(request)
        await _send(send, self._answer(request, parse_qs(scope["query_string"].decode())))

    def _login(self, form: dict[str, list[str]]) -> Answer:
        """Microsoft Entra's part: a token for a service principal whose secret is right."""
        if form["client_secret"] != [SECRET]:
            said = "AADSTS7000215: Invalid client secret provided. Ensure the secret being sent is the right one."
            return Answer(401, {"error": "invalid_client", "error_description": said})
        return Answer(200, {"token_type": "Bearer", "expires_in": 3600, "access_token": TOKEN})

    def _answer(self, request: Request, query: dict[str, list[str]]) -> Answer:
        if self.instead and self.instead_of in ("", request.method):
            return self.instead.pop(0)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return arm_error(
                401,
                "InvalidAuthenticationToken",
                "The access token is invalid.",
                **{"WWW-Authenticate": "Bearer"},
            )
        if query.get("api-version") != [API_VERSION]:
            return arm_error(400, "InvalidApiVersionParameter", f"The api-version {query} is invalid.")
        if operation := _OPERATIONS.fullmatch(request.path):
            return self._follow(self.operations[int(operation["id"])], operation["kind"])
        path = _POOLS.fullmatch(request.path)
        if path is None:
            return arm_error(404, "InvalidResourceType", request.path)
        if path["subscription"] != SUBSCRIPTION:
            return arm_error(
                404, "SubscriptionNotFound", f"The subscription '{path['subscription']}' is unknown."
            )
        if path["group"].lower() != GROUP:
            return arm_error(
                404, "ResourceGroupNotFound", f"Resource group '{path['group']}' could not be found."
            )
        if path["cluster"].lower() != CLUSTER:
            return arm_error(404, "ResourceNotFound", f"The Resource '{path['cluster']}' was not found.")
        if path["pool"] is None:
            return self._list(int(query.get("from", ["0"])[0]))
        return getattr(self, f"_{request.method.lower()}")(path["pool"], request)

    def _list(self, first: int) -> Answer:
        names = list(self.pools)
        body: dict[str, Any] = {"value": [self._shown(name) for name in names[first : first + self.page]]}
        if first + self.page < len(names):
            base = f"{self.endpoint}/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers"
            clusters = f"{base}/Microsoft.ContainerService/managedClusters/{CLUSTER}"
            body["nextLink"] = f"{clusters}/agentPools?from={first + self.page}&api-version={API_VERSION}"
        return Answer(200, body)

    def _get(self, name: str, _request: Request) -> Answer:
        if name not in self.pools:
            return error(404, "NotFound", f"The agent pool '{name}' was not found.")
        answer = Answer(200, copy.deepcopy(self._shown(name)))
        self.after_get()
        return answer

    def _put(self, name: str, request: Request) -> Answer:
        wanted, has = request.body["properties"], self.pools.get(name)
        if has is not None and request.headers.get("if-none-match") == "*":
            return error(412, "PreconditionFailed", "A condition of the request does not hold.")
        if "if-match" in request.headers and request.headers["if-match"] != (has or {}).get("eTag"):
            return error(412, "PreconditionFailed", "A condition of the request does not hold.")
        if refusal := self._busy() or self._why_not(name, wanted, has or {}):
            return refusal
        etag = str(int((has or {}).get("eTag", "0")) + 1)
        self.pools[name] = {**wanted, "eTag": etag, "provisioningState": "Updating" if has else "Creating"}
        headers = self._start(Operation(name, "put", self.polls or 0, self._failure()))
        return Answer(200 if has else 201, self._shown(name), headers)

    def _delete(self, name: str, _request: Request) -> Answer:
        if name not in self.pools:
            return Answer(204)
        if refusal := self._busy():
            return refusal
        self.pools[name]["provisioningState"] = "Deleting"
        return Answer(202, None, self._start(Operation(name, "delete", self.polls or 0, self._failure())))

    def _busy(self) -> Answer | None:
        for name, has in self.pools.items():
            if has["provisioningState"] in ("Creating", "Updating", "Deleting"):
                return error(
                    409,
                    "OperationNotAllowed",
                    f"Operation is not allowed: Another agentpool operation ({name} - {has['provisioningState']}) "
                    "is in progress, please wait for it to finish before starting a new operation. "
                    "See https://aka.ms/aks-pending-operation for more details",
                )
        return None

    def _why_not(self, name: str, wanted: dict[str, Any], has: dict[str, Any]) -> Answer | None:
        if not re.fullmatch(r"[a-z][a-z0-9]{0,11}", name):
            return error(
                400, "InvalidParameter", f"The value of parameter agentPool.name is invalid: {name!r}."
            )
        for key in IMMUTABLE:
            if has and wanted.get(key) != has.get(key):
                said = f"Changing property 'properties.{key}' is not allowed."
                return error(400, "PropertyChangeNotAllowed", said)
        size = VM_SIZES.get(wanted["vmSize"])
        if size is None:
            said = f"The VM size of {wanted['vmSize']} is not allowed in your subscription in location '{REGION}'."
            return error(400, "BadRequest", said)
        if wanted.get("gpuInstanceProfile") and not size[1]:
            return error(400, "InvalidParameter", "The VM size has no GPU that can be partitioned.")
        if not wanted.get("enableAutoScaling") and ("minCount" in wanted or "maxCount" in wanted):
            return error(400, "InvalidParameter", "minCount and maxCount need enableAutoScaling.")
        if (
            wanted.get("enableAutoScaling")
            and not wanted["minCount"] <= wanted["count"] <= wanted["maxCount"]
        ):
            return error(400, "InvalidParameter", "count must be between minCount and maxCount.")
        others = sum(
            VM_SIZES[pool["vmSize"]][0] * pool["count"] for other, pool in self.pools.items() if other != name
        )
        needed, left = size[0] * wanted["count"], self.quota_vcpus - others
        if needed > left:
            return error(
                400,
                "ErrCode_InsufficientVCPUQuota",
                f"Insufficient vcpu quota requested {needed}, remaining {left} for family standardNDASv4_A100Family "
                f"for region {REGION}. If you want to increase the quota, see https://learn.microsoft.com.",
            )
        return None

    def _failure(self) -> dict[str, str] | None:
        ends, self.operation_fails = self.operation_fails, None
        return {"code": ends[0], "message": ends[1]} if ends else None

    def _start(self, operation: Operation) -> dict[str, str]:
        self.operations.append(operation)
        number = len(self.operations) - 1
        kind = "status" if self.followed_by == "Azure-AsyncOperation" else "result"
        url = f"{self.endpoint}/operations/{kind}/{number}?api-version={API_VERSION}"
        return {self.followed_by: url} | self._wait()

    def _wait(self) -> dict[str, str]:
        return {"Retry-After": self.retry_after} if self.retry_after else {}

    def _follow(self, operation: Operation, kind: str) -> Answer:
        self.polled.set()
        if self.polls is not None and operation.status == "InProgress":
            operation.left -= 1
            if operation.left < 0:
                self._end(operation)
        body: dict[str, Any] = {"name": operation.pool, "status": operation.status}
        if operation.status == "InProgress":
            return Answer(200 if kind == "status" else 202, body, self._wait())
        if operation.status == "Failed":
            body["error"] = operation.failure
        if kind == "result" and operation.verb == "put":
            return Answer(200, self._shown(operation.pool))
        return Answer(200, body) if kind == "status" else Answer(204)

    def _end(self, operation: Operation) -> None:
        operation.status = "Failed" if operation.failure else "Succeeded"
        if operation.verb == "delete" and not operation.failure:
            del self.pools[operation.pool]
            return
        has = self.pools[operation.pool]
        has["provisioningState"] = operation.status
        if operation.failure:
            has["status"] = {"provisioningError": operation.failure}

    def _shown(self, name: str) -> dict[str, Any]:
        base = f"/subscriptions/{SUBSCRIPTION}/resourcegroups/{GROUP}/providers/Microsoft.ContainerService"
        kind = "Microsoft.ContainerService/managedClusters/agentPools"
        place = f"{base}/managedClusters/{CLUSTER}/agentPools/{name}"
        return {"id": place, "name": name, "type": kind, "properties": self.pools[name]}


async def _send(send: Any, answer: Answer) -> None:
    sent = b"" if answer.body is None else json.dumps(answer.body).encode()
    answer.headers["Content-Type"] = "application/json"
    answer.headers["Content-Length"] = str(len(sent))
    raw = [(key.encode(), value.encode()) for key, value in answer.headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": raw})
    await send({"type": "http.response.body", "body": sent})


@contextmanager
def running(fake: FakeArm, folder: Path) -> Iterator[Path]:
    """Serve it on a free port in a thread of its own; yields the file of the authority to trust."""
    made = issue(SystemClock())
    tls = Tls(folder / "tls.crt", folder / "tls.key")
    authority = folder / "ca.crt"
    for path, pem in ((tls.cert, made.certificate), (tls.key, made.key), (authority, made.authority)):
        path.write_bytes(pem)
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(fake, host="127.0.0.1", port=0, clock=SystemClock(), tls=tls, grace_seconds=5) as (
            host,
            port,
        ):
            fake.endpoint = f"https://{host}:{port}"
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="fake ARM")
    thread.start()
    try:
        assert started.wait(10)
        yield authority
    finally:
        gc.collect()  # Connections end with the pools that errors still hold; the server waits for them.
        stop.set()
        thread.join()
