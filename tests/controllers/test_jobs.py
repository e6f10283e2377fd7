"""Jobs: counting, retries, deadlines, indexes, suspension."""

from hypothesis import given
from hypothesis import strategies as st
from world import Json, World, workload, world

from gpuslice.local.controllers import indexes


def ended(item: Json, kind: str) -> Json:
    found: Json = next(one for one in item["status"]["conditions"] if one["type"] == kind)
    assert found["status"] == "True"
    return found


async def finished(it: World, kind: str) -> Json:
    async def there() -> Json | None:
        item = await it.get("Job", "web")
        conditions = item.get("status", {}).get("conditions", [])
        return item if any(one["type"] == kind and one["status"] == "True" for one in conditions) else None

    item: Json = await it.until(there)
    return item


async def test_a_job_runs_so_many_pods_at_a_time_until_enough_have_succeeded() -> None:
    async with world() as it:
        it.decide = lambda _: "running"
        await it.create(workload("Job", completions=5, parallelism=2))
        await it.status("Job", "web", active=2)
        assert it.pods_created == 2
        for pod in await it.list("Pod"):
            await it.mark(pod, "succeeded")
        it.decide = lambda _: "succeeded"
        item = await finished(it, "Complete")
        assert item["status"]["succeeded"] == 5
        assert item["status"]["completionTime"]
        assert it.pods_created == 5
        assert not item["status"].get("uncountedTerminatedPods")
        assert not any(pod["metadata"].get("finalizers") for pod in await it.list("Pod"))
        (pod, *_) = await it.list("Pod", labelSelector="job-name=web")
        assert pod["metadata"]["ownerReferences"][0]["kind"] == "Job"


async def test_a_success_counts_even_if_its_pod_is_deleted() -> None:
    async with world() as it:
        it.decide = lambda _: "running"
        await it.create(workload("Job", completions=2))
        await it.status("Job", "web", active=1)
        (pod,) = await it.list("Pod")
        await it.mark(pod, "succeeded")
        await it.delete("Pod", pod["metadata"]["name"], grace=0)
        item = await it.status("Job", "web", succeeded=1, active=1)
        assert it.pods_created == 2
        assert item["spec"]["completions"] == 2


async def test_failures_are_retried_with_growing_pauses_up_to_the_limit() -> None:
    async with world(speed=100) as it:
        it.decide = lambda _: "failed"
        begun = it.clock.monotonic()
        await it.create(workload("Job", backoffLimit=2))
        item = await finished(it, "Failed")
        assert ended(item, "Failed")["reason"] == "BackoffLimitExceeded"
        assert (item["status"]["failed"], it.pods_created) == (3, 3)
        assert it.clock.monotonic() - begun >= 30, "10 s before the second try, 20 s before the third"


async def test_a_job_over_its_deadline_is_ended() -> None:
    async with world(speed=50) as it:
        it.decide = lambda _: "running"
        await it.create(workload("Job", activeDeadlineSeconds=20))
        item = await finished(it, "Failed")
        assert ended(item, "Failed")["reason"] == "DeadlineExceeded"
        assert not item["status"]["active"]
        assert await it.list("Pod") == []


async def test_an_indexed_job_does_each_index_once() -> None:
    async with world() as it:
        failed: set[str] = set()

        def decide(pod: Json) -> str:
            index = pod["metadata"]["annotations"][indexes.INDEX]
            if index == "1" and index not in failed:
                failed.add(index)
                return "failed"
            return "succeeded" if index != "1" else "running"

        it.decide = decide
        await it.create(workload("Job", completions=4, parallelism=4, completionMode="Indexed"))
        item = await it.status("Job", "web", succeeded=3)
        assert item["status"]["completedIndexes"] == "0,2-3"
        pod = (await it.list("Pod"))[0]
        index = pod["metadata"]["annotations"][indexes.INDEX]
        assert pod["spec"]["hostname"] == f"web-{index}"
        assert {"name": "JOB_COMPLETION_INDEX", "value": index} in pod["spec"]["containers"][0]["env"]


async def test_a_suspended_job_has_no_pods_and_starts_afresh() -> None:
    async with world() as it:
        it.decide = lambda _: "running"
        await it.create(workload("Job", parallelism=2, completions=2))
        await it.status("Job", "web", active=2)
        await it.patch("Job", "web", {"spec": {"suspend": True}})
        item = await it.status("Job", "web", active=0, failed=0, startTime=0)
        assert ended(item, "Suspended")["reason"] == "JobSuspended"
        it.decide = lambda _: "succeeded"
        await it.patch("Job", "web", {"spec": {"suspend": False}})
        item = await finished(it, "Complete")
        assert (item["status"]["succeeded"], item["status"].get("failed") or 0) == (2, 0)


async def test_a_finished_job_and_its_pods_go_after_their_time() -> None:
    async with world(speed=20) as it:
        it.decide = lambda _: "succeeded"
        await it.create(workload("Job", ttlSecondsAfterFinished=10))
        await finished(it, "Complete")

        async def gone() -> bool:
            return not await it.list("Job") and not await it.list("Pod")

        await it.until(gone)


async def test_deleting_a_job_lets_go_of_its_pods() -> None:
    """Their finalizer must not keep them for ever."""
    async with world() as it:
        it.decide = lambda _: "running"
        await it.create(workload("Job", parallelism=3, completions=3))
        await it.status("Job", "web", active=3)
        await it.delete("Job", "web", "Background")

        async def gone() -> bool:
            return not await it.list("Pod")

        await it.until(gone)


@given(st.sets(st.integers(0, 40)))
def test_indexes_are_written_shortly_and_read_back(given_indexes: set[int]) -> None:
    assert indexes.parse(indexes.show(given_indexes)) == given_indexes


def test_indexes_in_the_notation_of_kubernetes() -> None:
    assert indexes.show({5, 0, 3, 4}) == "0,3-5"
