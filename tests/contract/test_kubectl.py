"""What people do with kubectl, and what it tells them."""

from __future__ import annotations

import json
import re
from typing import Any

from .custom import gadget, gadgets
from .kit import Kit, config, container, deployment, idle, pod, until

APPS = "apps/v1"
# Says when it is ready to be killed and leaves at once when it is asked to.
ENDLESS = "echo started; trap 'exit 0' TERM; while true; do sleep 0.1; done"


async def apply(k8s: Kit, thing: Any, *words: str) -> str:
    return await k8s.kubectl("apply", "--filename=-", *words, stdin=json.dumps(thing))


async def test_apply_creates_changes_and_leaves_alone(k8s: Kit) -> None:
    assert await apply(k8s, config("c", a="1", b="1")) == "configmap/c created\n"
    assert await apply(k8s, config("c", a="1", b="1")) == "configmap/c unchanged\n"
    assert await apply(k8s, config("c", a="2")) == "configmap/c configured\n"
    assert (await k8s.api.get(k8s.path("configmaps", "c")))["data"] == {"a": "2"}, "three-way: b was ours"


async def test_apply_on_the_server_side_tells_of_conflicts(k8s: Kit) -> None:
    assert await apply(k8s, config("c", a="1"), "--server-side") == "configmap/c serverside-applied\n"
    ran = await k8s.run(
        "apply",
        "--server-side",
        "--field-manager=other",
        "--filename=-",
        stdin=json.dumps(config("c", a="2")),
    )
    assert ran.code == 1
    assert 'error: Apply failed with 1 conflict: conflict with "kubectl": .data.a' in ran.err
    forced = ("--server-side", "--field-manager=other", "--force-conflicts")
    assert await apply(k8s, config("c", a="2"), *forced) == "configmap/c serverside-applied\n"


async def test_apply_refuses_unknown_fields_and_wrong_values(k8s: Kit) -> None:
    body = deployment("web", 0)
    body["spec"]["replicaz"] = 1
    ran = await k8s.run("apply", "--filename=-", stdin=json.dumps(body))
    assert ran.code == 1
    assert 'strict decoding error: unknown field "spec.replicaz"' in ran.err
    body = deployment("web", 0, containers=[container("Bad_Name")])
    ran = await k8s.run("apply", "--filename=-", stdin=json.dumps(body))
    assert ran.code == 1
    assert (
        'The Deployment "web" is invalid: spec.template.spec.containers[0].name: Invalid value: "Bad_Name"'
        in (ran.err)
    )


async def test_diff_shows_what_apply_would_change(k8s: Kit) -> None:
    await apply(k8s, config("c", a="1"))
    ran = await k8s.run("diff", "--filename=-", stdin=json.dumps(config("c", a="2")))
    assert ran.code == 1, ran.err
    assert re.search(r'^-\s+a: "1"$', ran.out, re.MULTILINE)
    assert re.search(r'^\+\s+a: "2"$', ran.out, re.MULTILINE)
    assert (await k8s.run("diff", "--filename=-", stdin=json.dumps(config("c", a="1")))).code == 0


async def test_patch_label_annotate_and_set_edit_objects(k8s: Kit) -> None:
    await apply(k8s, deployment("web", 0))
    change = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "busybox:other"}]}}}}
    assert await k8s.kubectl("patch", "deployment", "web", "--patch", json.dumps(change)) == (
        "deployment.apps/web patched\n"
    )
    assert await k8s.kubectl("label", "deployment", "web", "team=a") == "deployment.apps/web labeled\n"
    ran = await k8s.run("label", "deployment", "web", "team=b")
    assert ran.code == 1
    assert "'team' already has a value (a), and --overwrite is false" in ran.err
    assert await k8s.kubectl("annotate", "deployment", "web", "note=x") == "deployment.apps/web annotated\n"
    await k8s.kubectl("set", "env", "deployment/web", "A=b")
    found = json.loads(await k8s.kubectl("get", "deployment", "web", "--output=json"))
    (c,) = found["spec"]["template"]["spec"]["containers"]
    assert (c["image"], c["env"]) == ("busybox:other", [{"name": "A", "value": "b"}])
    assert (found["metadata"]["labels"]["team"], found["metadata"]["annotations"]["note"]) == ("a", "x")


async def test_a_rollout_is_followed_undone_and_scaled(k8s: Kit) -> None:
    await apply(k8s, deployment("web", 1))
    said = await k8s.kubectl("rollout", "status", "deployment/web", "--timeout=50s")
    assert said.endswith('deployment "web" successfully rolled out\n')
    await k8s.kubectl("set", "env", "deployment/web", "A=b")
    await k8s.kubectl("rollout", "status", "deployment/web", "--timeout=50s")
    history = await k8s.kubectl("rollout", "history", "deployment/web")
    assert [line.split()[0] for line in history.splitlines()[2:] if line] == ["1", "2"]
    assert await k8s.kubectl("rollout", "undo", "deployment/web") == "deployment.apps/web rolled back\n"
    await k8s.kubectl("rollout", "status", "deployment/web", "--timeout=50s")
    (c,) = (await k8s.api.get(k8s.path("deployments", "web", APPS)))["spec"]["template"]["spec"]["containers"]
    assert "env" not in c
    assert await k8s.kubectl("scale", "deployment/web", "--replicas=2") == "deployment.apps/web scaled\n"
    await k8s.kubectl("rollout", "status", "deployment/web", "--timeout=50s")
    table = (await k8s.kubectl("get", "deployment", "web")).splitlines()
    assert table[0].split() == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    assert table[1].split()[:4] == ["web", "2/2", "2", "2"]
    ran = await k8s.run("scale", "deployment/web", "--replicas=3", "--current-replicas=9")
    assert "Expected replicas to be 9, was 2" in ran.err
    assert await k8s.kubectl("rollout", "restart", "deployment/web") == "deployment.apps/web restarted\n"
    await k8s.kubectl("rollout", "status", "deployment/web", "--timeout=50s")
    assert (await k8s.kubectl("delete", "deployment", "web")).startswith('deployment.apps "web" deleted')


async def test_drain_evicts_and_cordons_and_uncordon_lets_back(k8s: Kit) -> None:
    """Only what is of this test: others use the nodes too."""
    node = "node-2"
    try:
        await apply(k8s, deployment("web", 1, nodeName=node))
        await k8s.kubectl("rollout", "status", "deployment/web", "--timeout=50s")
        await apply(k8s, pod("alone", nodeName=node, labels={"app": "web"}))
        await k8s.phase("alone", "Running")
        select = f"--pod-selector=app=web,contract={k8s.ns}"
        await k8s.kubectl("label", "pods", "--selector=app=web", f"contract={k8s.ns}")
        ran = await k8s.run("drain", node, select, "--timeout=40s", "--ignore-daemonsets")
        assert ran.code == 1
        assert "cannot delete Pods that declare no controller (use --force to override)" in ran.err
        assert f"{k8s.ns}/alone" in ran.err
        # What the Deployment makes meanwhile would be bound to the node again.
        await k8s.kubectl("scale", "deployment/web", "--replicas=0", "--timeout=0s")
        ran = await k8s.run("drain", node, select, "--timeout=40s", "--ignore-daemonsets", "--force")
        assert ran.code == 0, ran.err
        assert ran.out.splitlines()[-1] == f"node/{node} drained"
        await k8s.gone(f"{k8s.pods}/alone")
        assert "SchedulingDisabled" in await k8s.kubectl("get", "node", node)
        taints = (await k8s.api.get(f"/api/v1/nodes/{node}"))["spec"]["taints"]
        assert ("node.kubernetes.io/unschedulable", "NoSchedule") in {(t["key"], t["effect"]) for t in taints}
    finally:
        assert await k8s.kubectl("uncordon", node) == f"node/{node} uncordoned\n"

    async def open_again() -> bool:
        return not (await k8s.api.get(f"/api/v1/nodes/{node}"))["spec"].get("taints")

    await until(open_again, f"{node} to have no taint")


async def test_wait_waits_for_conditions_fields_and_deletion(k8s: Kit) -> None:
    await apply(k8s, pod("p"))
    assert (
        await k8s.kubectl("wait", "pod/p", "--for=condition=Ready", "--timeout=50s")
        == "pod/p condition met\n"
    )
    said = await k8s.kubectl("wait", "pod/p", "--for=jsonpath={.status.phase}=Running", "--timeout=10s")
    assert said == "pod/p condition met\n"
    ran = await k8s.run("wait", "pod/p", "--for=condition=Ready=false", "--timeout=1s")
    assert ran.code == 1
    assert "timed out waiting for the condition on pods/p" in ran.err
    await k8s.kubectl("delete", "pod", "p", "--wait=false")
    await k8s.kubectl("wait", "pod/p", "--for=delete", "--timeout=50s")


async def test_logs_follow_to_the_end_and_take_a_tail(k8s: Kit) -> None:
    count = "for n in 1 2 3; do echo line $n; sleep 0.2; done"
    await apply(k8s, pod("p", command=count, restartPolicy="Never"))
    await k8s.pod("p", lambda p: p["status"].get("phase") in ("Running", "Succeeded"), "has started")
    assert await k8s.kubectl("logs", "p", "--follow") == "line 1\nline 2\nline 3\n"
    await k8s.phase("p", "Succeeded")
    assert await k8s.kubectl("logs", "p", "--tail=1") == "line 3\n"
    stamped = await k8s.kubectl("logs", "p", "--timestamps", "--tail=1")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\S* line 3\n", stamped)


async def test_logs_of_a_pod_that_has_not_started_or_has_no_such_container(k8s: Kit) -> None:
    await apply(k8s, idle("p"))
    ran = await k8s.run("logs", "p")
    assert (ran.code, ran.out, ran.err) == (0, "", ""), "there is no node to ask"
    ran = await k8s.run("logs", "p", "--container=none")
    assert ran.code == 1
    assert "container none is not valid for pod p" in ran.err


async def test_logs_of_the_one_before(k8s: Kit) -> None:
    await apply(k8s, pod("p", command="echo once; exit 3"))
    await k8s.pod("p", lambda p: restarts(p) >= 1, "is restarted")
    assert await k8s.kubectl("logs", "p", "--previous") == "once\n"
    found = await k8s.api.get(f"{k8s.pods}/p")
    last = found["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"]) == (3, "Error")


def restarts(found: Any) -> int:
    return sum(c["restartCount"] for c in found["status"].get("containerStatuses") or [])


async def test_exec_runs_in_the_container_and_hands_on_its_exit_code(k8s: Kit) -> None:
    await apply(k8s, pod("p", container("c", env=[{"name": "COLOUR", "value": "red"}])))
    await k8s.phase("p", "Running")
    assert await k8s.kubectl("exec", "p", "--", "sh", "-c", "echo $COLOUR; echo $HOSTNAME") == "red\np\n"
    ran = await k8s.run("exec", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (ran.code, ran.out) == (7, "out\n")
    assert ran.err == "err\ncommand terminated with exit code 7\n"
    assert await k8s.kubectl("exec", "-i", "p", "--", "cat", stdin="through\n") == "through\n"
    ran = await k8s.run("exec", "p", "--container=none", "--", "true")
    assert ran.code == 1
    assert "container none is not valid for pod p" in ran.err or "container not found" in ran.err


async def test_a_copy_into_a_container_and_back(k8s: Kit) -> None:
    await apply(k8s, pod("p"))
    await k8s.phase("p", "Running")
    ran = await k8s.run("exec", "-i", "p", "--", "sh", "-c", "cat > here; cat here; rm here", stdin="text")
    assert (ran.code, ran.out) == (0, "text")


async def test_describe_pod_shows_the_lines_that_matter(k8s: Kit) -> None:
    c = container("c", limits={"cpu": "100m"}, env=[{"name": "A", "value": "b"}])
    await apply(k8s, pod("p", c, annotations={"gpuslice.io/note": "here"}))
    await k8s.phase("p", "Running")

    async def described() -> str | None:
        text = await k8s.kubectl("describe", "pod", "p")
        return text if "Started" in text.partition("Events:")[2] else None

    text = await until(described, "the events of a start")
    assert re.search(r"^Annotations: +gpuslice\.io/note: here$", text, re.MULTILINE)
    assert re.search(r"^Node: +node-[12]/", text, re.MULTILINE)
    assert re.search(r"^Status: +Running$", text, re.MULTILINE)
    assert re.search(r"^ +cpu: +100m$", text, re.MULTILINE)
    assert re.search(r"^ +A: +b$", text, re.MULTILINE)
    assert re.search(r"^QoS Class: +Burstable$", text, re.MULTILINE)
    events = text.partition("Events:")[2]
    assert re.search(
        rf"Normal +Scheduled +\S+ +\S+-scheduler +Successfully assigned {k8s.ns}/p to node-", events
    )
    assert k8s.real == bool(
        re.search(r"Normal +Created +\S+ +kubelet +(spec.containers\{c\}: )?Container created", events)
    )
    assert re.search(r"Normal +Started +\S+ +kubelet +(spec.containers\{c\}: )?Container started", events)
    started = await k8s.event("Started", "p")
    assert started["involvedObject"]["fieldPath"] == "spec.containers{c}"


async def test_describe_of_a_pod_that_fits_nowhere_says_why(k8s: Kit) -> None:
    await apply(k8s, pod("p", container("c", limits={"contract.example/none": 1})))
    event = await k8s.event("FailedScheduling", "p")
    assert "0/2 nodes are available" in event["message"]
    assert "2 Insufficient contract.example/none" in event["message"]
    found = await k8s.api.get(f"{k8s.pods}/p")
    (condition,) = [c for c in found["status"]["conditions"] if c["type"] == "PodScheduled"]
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    text = await k8s.kubectl("describe", "pod", "p")
    assert re.search(r"Warning +FailedScheduling", text)


async def test_get_prints_tables_names_and_columns(k8s: Kit) -> None:
    await apply(k8s, pod("p"))
    await k8s.phase("p", "Running")
    lines = (await k8s.kubectl("get", "pods", "--output=wide")).splitlines()
    assert re.split(r"  +", lines[0].strip()) == [
        *("NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE", "NOMINATED NODE", "READINESS GATES")
    ]
    assert lines[1].split()[:4] == ["p", "1/1", "Running", "0"]
    assert await k8s.kubectl("get", "pods", "--output=name") == "pod/p\n"
    assert await k8s.kubectl("get", "pod", "p", "--output=jsonpath={.status.phase}") == "Running"
    ran = await k8s.run("get", "pods", "--selector=app=none")
    assert ran.err == f"No resources found in {k8s.ns} namespace.\n"
    ran = await k8s.run("get", "pod", "none")
    assert (ran.code, ran.err) == (1, 'Error from server (NotFound): pods "none" not found\n')
    ran = await k8s.run("get", "gizmos")
    assert (ran.code, ran.err) == (1, 'error: the server doesn\'t have a resource type "gizmos"\n')


async def test_top_level_tools_know_the_api(k8s: Kit) -> None:
    resources = await k8s.kubectl("api-resources", "--output=name")
    for name in (
        "pods",
        "deployments.apps",
        "leases.coordination.k8s.io",
        "customresourcedefinitions.apiextensions.k8s.io",
    ):
        assert name in resources.splitlines()
    assert "FIELD: containers <[]Container>" in await k8s.kubectl("explain", "pod.spec.containers")
    assert await k8s.kubectl("auth", "can-i", "create", "pods") == "yes\n"


async def test_custom_kinds_are_found_by_their_short_name(k8s: Kit) -> None:
    group = await gadgets(k8s)
    await apply(k8s, gadget(group, mode="fast"))
    lines = (await k8s.kubectl("get", f"gadgets.{group.partition('/')[0]}")).splitlines()
    assert [line.split() for line in lines] == [["NAME", "MODE"], ["g", "fast"]]


async def test_delete_waits_until_the_pod_has_ended(k8s: Kit) -> None:
    await apply(k8s, pod("p", command=ENDLESS, terminationGracePeriodSeconds=30))
    await k8s.phase("p", "Running")

    async def ready_to_be_ended() -> bool:
        return (await k8s.kubectl("logs", "p")) == "started\n"

    await until(ready_to_be_ended, "the trap to be set")
    assert (await k8s.kubectl("delete", "pod", "p")).startswith('pod "p" deleted')
    assert (await k8s.api("GET", f"{k8s.pods}/p")).status == 404


async def test_create_and_expose_make_objects(k8s: Kit) -> None:
    said = await k8s.kubectl("create", "configmap", "c", "--from-literal=a=1")
    assert said == "configmap/c created\n"
    assert await k8s.kubectl("create", "deployment", "web", "--image=busybox:e2e", "--replicas=0") == (
        "deployment.apps/web created\n"
    )
    assert await k8s.kubectl("expose", "deployment", "web", "--port=80") == "service/web exposed\n"
    found = await k8s.api.get(k8s.path("services", "web"))
    assert found["spec"]["selector"] == {"app": "web"}
    assert found["spec"]["clusterIP"]
    assert await k8s.kubectl("run", "p", "--image=busybox:e2e", "--restart=Never", "--dry-run=server") == (
        "pod/p created (server dry run)\n"
    )


async def test_a_job_runs_to_its_end(k8s: Kit) -> None:
    template = pod("job", command="echo done", restartPolicy="Never")["spec"]
    spec = {"backoffLimit": 0, "template": {"spec": template}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": spec}
    assert await apply(k8s, job) == "job.batch/job created\n"
    await k8s.kubectl("wait", "job/job", "--for=condition=Complete", "--timeout=50s")
    assert await k8s.kubectl("logs", "job/job") == "done\n"
    line = (await k8s.kubectl("get", "job", "job")).splitlines()[1].split()
    assert line[:3] == ["job", "Complete", "1/1"]
