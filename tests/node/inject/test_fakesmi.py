"""nvidia-smi in containers with simulated GPUs: what it prints, and who is given one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from agent_world import GPUS, container, world

from gpuslice import names
from gpuslice.devices.found import Found, FoundGpu
from gpuslice.node.inject.fakesmi import script

MACHINE = Found(
    "550.163.01", "12.4", tuple(FoundGpu(g.index, g.uuid, "Tesla T4 's $HOME", 15360, 251) for g in GPUS)
)
SECOND = f"GPU 0: Tesla T4 's $HOME (UUID: {GPUS[1].uuid})\n"


async def ran(program: Path, *words: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        program, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={}
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("word", ["-L", "--list-gpus"])
async def test_it_lists_the_containers_gpus_with_nothing_but_a_shell(tmp_path: Path, word: str) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(script(MACHINE, [GPUS[1].uuid]))
    program.chmod(0o755)
    assert await ran(program, word) == (0, SECOND, "")


@pytest.mark.parametrize("words", [(), ("-q",), ("-L", "-i", "0"), ("*",)])
async def test_it_says_what_it_is_when_asked_for_anything_else(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(script(MACHINE, [GPUS[1].uuid]))
    program.chmod(0o755)
    sentence = "this is gpuslice's stand-in for nvidia-smi, as this container's GPUs are simulated; it knows only -L\n"
    assert await ran(program, *words) == (2, "", sentence)


async def test_an_agent_of_simulated_gpus_mounts_it_where_the_drivers_own_is() -> None:
    async with world(simulated=lambda: MACHINE) as here:
        await here.create("share", container("c", 5), on={"c": (1,)})
        await here.create("whole", container("c", whole=1), on={"c": (0,)})
        for name, lines in (("share", SECOND), ("whole", SECOND.replace(GPUS[1].uuid, GPUS[0].uuid))):
            folder, program = here.given(await here.running(name)).mounts
            assert folder.container_path == names.SLICE_DIR_IN_CONTAINER
            assert (program.container_path, program.read_only) == ("/usr/bin/nvidia-smi", True)
            assert Path(program.host_path).parent == Path(folder.host_path)
            assert await ran(Path(program.host_path), "-L") == (0, lines, "")


async def test_on_real_gpus_nothing_hides_the_drivers_own() -> None:
    async with world() as here:
        await here.create("share", container("c", 5), on={"c": (1,)})
        (mount,) = here.given(await here.running("share")).mounts
        assert mount.container_path == names.SLICE_DIR_IN_CONTAINER
