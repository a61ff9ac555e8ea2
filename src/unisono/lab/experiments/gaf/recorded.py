"""Steps that are recorded once and replayed: on a GPU, launching a small model's kernels takes longer than they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

WARM_UP = 3


class Recorded:
    """On a CPU everything is simply called.

    :param state: What a step changes and a first try must not.
    """

    def __init__(self, device: torch.device, state: Mapping[str, Tensor]) -> None:
        self._state = state
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def step(self, function: Callable[[], None]) -> Callable[[], None]:
        """The same, replayed; `function` may use only tensors that stay where they are."""
        if self.stream is None:
            return function
        before = {name: tensor.clone() for name, tensor in self._state.items()}
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UP):
                function()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            function()
        for name, tensor in self._state.items():
            tensor.copy_(before[name])
        torch.cuda.synchronize()
        return graph.replay


class OnHost:
    """A result that the device computes, and a copy of it for the host that nothing else waits for."""

    def __init__(self, result: Tensor) -> None:
        self._result, self._copied = result, result.device.type == "cuda"
        if self._copied:
            self._arrived = torch.cuda.Event()
            self._host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)

    def fetch(self) -> None:
        """Starts to copy, after what is under way on the current stream."""
        if self._copied:
            self._host.copy_(self._result, non_blocking=True)
            self._arrived.record()

    def fetched(self) -> Tensor:
        """In float64, once it is there."""
        if not self._copied:
            return self._result.double()
        self._arrived.synchronize()
        return self._host.double()
