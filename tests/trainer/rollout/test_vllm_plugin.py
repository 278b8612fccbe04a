"""The GPU that a word of CUDA_VISIBLE_DEVICES means, in NVML's numbers."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

from trainer.rollout import vllm_plugin

GPUS = (
    "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
    "GPU-8932f9aa-0000-4106-c12f-20bd9faed9f6",
    "GPU-af7b61d8-21af-baea-6a19-42a1f9f7c3cb",
)
PARTS = {
    "MIG-377e0049-554c-540b-93c6-d0976f8426cb": (2, 4),
    "MIG-GPU-af7b61d8-21af-baea-6a19-42a1f9f7c3cb/1/0": (2, 4),
}
"""The name of a MIG device → its GPU, and its number within the GPU."""


class Nvml:
    """Three GPUs; the last is divided. Handles are numbers, or a pair for a part."""

    class NVMLError(Exception):
        pass

    open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(GPUS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return GPUS[handle]

    def nvmlDeviceGetHandleByUUID(self, name: str) -> object:  # noqa: N802
        if name in PARTS:
            return PARTS[name]
        if name in GPUS:
            return GPUS.index(name)
        raise self.NVMLError("Not Found")

    def nvmlDeviceIsMigDeviceHandle(self, handle: object) -> bool:  # noqa: N802
        return isinstance(handle, tuple)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: tuple[int, int]) -> int:  # noqa: N802
        return handle[0]

    def nvmlDeviceGetIndex(self, handle: object) -> object:  # noqa: N802
        return handle[1] if isinstance(handle, tuple) else handle


@pytest.mark.parametrize(
    ("name", "index"),
    [
        *(("1", 1), (" 2", 2), ("GPU-af7b", 2), ("GPU-8932f9a", 1)),
        *((uuid, place) for place, uuid in enumerate(GPUS)),
        *((name, 2) for name in PARTS),
    ],
)
def test_each_name_that_cuda_takes_has_its_gpu(name: str, index: int) -> None:
    nvml = Nvml()
    assert vllm_plugin.index_of(name, nvml) == index
    assert nvml.open == 0


@pytest.mark.parametrize("name", ["GPU-8932f9", "GPU-ffff", "MIG-ffff", ""])
def test_a_name_of_no_gpu_or_of_two_is_an_error(name: str) -> None:
    with pytest.raises(Nvml.NVMLError):
        vllm_plugin.index_of(name, Nvml())


def test_vllm_finds_the_plugin() -> None:
    """It is in the package's metadata, so that vLLM loads it in each of its processes."""
    (found,) = entry_points(group="vllm.general_plugins", name="rollcall")
    assert found.load() is vllm_plugin.register
