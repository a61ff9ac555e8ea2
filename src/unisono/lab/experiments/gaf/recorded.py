"""Steps that are recorded once and replayed: on a GPU, launching a small model's kernels takes longer than they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

WARM_UP = 3


class Recorded:
    """On a CPU everything is simply called.

    :param state: What a step changes and a first try must not.
    :param result: What the host reads after a step.
    """

    def __init__(self, device: torch.device, state: Mapping[str, Tensor], result: Tensor) -> None:
        self._state, self._result = state, result
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)
            self._arrived = torch.cuda.Event()
            self._host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)

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

    def fetch(self) -> None:
        """Starts to copy the result of the last step."""
        if self.stream is not None:
            self._host.copy_(self._result, non_blocking=True)
            self._arrived.record()

    def fetched(self) -> Tensor:
        """In float64, once it is there."""
        if self.stream is None:
            return self._result.double()
        self._arrived.synchronize()
        return self._host.double()
