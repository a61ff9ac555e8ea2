"""One worker's tensors and bytes to all others, in collectives of training's own group.

Everything travels as bytes: not every backend knows bool, complex or the small types. N = bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from unisono.exchange.collectives import Collectives

AT_ONCE = 1 << 26
_ALIGNED = 16
_ELEMENTS_AT_ONCE = 1 << 22
_FAILED = -1


def gathered(
    collectives: Collectives, numbers: Sequence[int | float | Tensor], dtype: torch.dtype = torch.int64
) -> Tensor:
    """Everybody's numbers, a row a worker, on the host."""
    mine = [torch.as_tensor(number, dtype=dtype).to(collectives.wire) for number in numbers]
    row = torch.stack(mine) if mine else torch.empty(0, dtype=dtype, device=collectives.wire)
    rows = [torch.empty_like(row) for _ in range(collectives.world)]
    dist.all_gather(rows, row, group=collectives.group)
    return torch.stack(rows).cpu()


@torch.no_grad()
def send_tensors(collectives: Collectives, giver: int, tensors: Sequence[Tensor], differs: Sequence[bool]) -> float:
    """
    Fills those of this worker's tensors that differ from the giver's; the largest difference there was.

    :param tensors: As many on every worker, of the same types and shapes.
    """
    largest = 0.0
    for chosen in _loads(tensors):
        size = sum(_room(tensors[index]) for index in chosen)
        bytes_N = torch.empty(size, dtype=torch.uint8, device=collectives.wire)
        views = _views(bytes_N, [tensors[index] for index in chosen])
        if collectives.rank == giver:
            for index, view in zip(chosen, views, strict=True):
                view.copy_(tensors[index])
        _broadcast(collectives, giver, bytes_N)
        for index, view in zip(chosen, views, strict=True):
            if differs[index]:
                received = view.to(tensors[index].device)
                largest = max(largest, _largest_difference(tensors[index].detach(), received))
                _fill(tensors[index], received)
    return largest


def send_object(collectives: Collectives, giver: int, content: Callable[[], Any], wanted: bool) -> Any:
    """The giver's plain content, on the workers that want it. Where it cannot be sent, all fail."""
    file, error = io.BytesIO(), None
    length = 0
    if collectives.rank == giver:
        try:
            torch.save(content(), file)
            length = file.getbuffer().nbytes
        except Exception as raised:
            length, error = _FAILED, raised
    announced = torch.tensor([length], device=collectives.wire)
    _broadcast(collectives, giver, announced)
    length = int(announced)
    if length == _FAILED:
        raise RuntimeError("The optimizer's state could not be packed. No worker took it over.") from error
    memory = file.getbuffer() if collectives.rank == giver else bytearray(length)
    for piece_N in torch.frombuffer(memory, dtype=torch.uint8).split(AT_ONCE):
        on_wire = piece_N.to(collectives.wire)
        _broadcast(collectives, giver, on_wire)
        piece_N.copy_(on_wire)
    return torch.load(io.BytesIO(memory), map_location="cpu", weights_only=True) if wanted else None


def _broadcast(collectives: Collectives, giver: int, tensor: Tensor) -> None:
    dist.broadcast(tensor, dist.get_global_rank(collectives.group, giver), group=collectives.group)


def _loads(tensors: Sequence[Tensor]) -> Iterator[list[int]]:
    """Which tensors travel together: neighbours, up to a size that memory has room for."""
    chosen: list[int] = []
    size = 0
    for index, tensor in enumerate(tensors):
        if chosen and size + _room(tensor) > AT_ONCE:
            yield chosen
            chosen, size = [], 0
        chosen.append(index)
        size += _room(tensor)
    if chosen:
        yield chosen


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNED) * _ALIGNED


def _views(bytes_N: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Parts of the bytes, read as tensors of these types and shapes."""
    views, begin = [], 0
    for tensor in tensors:
        views.append(bytes_N[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape))
        begin += _room(tensor)
    return views


def _fill(tensor: Tensor, received: Tensor) -> None:
    # Of an expanded tensor, every element in memory once.
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
    # Not the tensor itself: a graph that is kept would notice, on this worker only.
    tensor.data[once].copy_(received[once])


def _largest_difference(own: Tensor, received: Tensor) -> float:
    largest = 0.0
    flat = own.resolve_conj().resolve_neg().reshape(-1), received.reshape(-1)
    real = [torch.view_as_real(each).reshape(-1) if each.is_complex() else each for each in flat]
    for pieces in zip(*(each.split(_ELEMENTS_AT_ONCE) for each in real), strict=True):
        mine, theirs = (piece.to(torch.float64) for piece in pieces)
        same = (mine == theirs) | (mine.isnan() & theirs.isnan())
        apart = torch.where(same, 0.0, (mine - theirs).abs().nan_to_num(torch.inf, torch.inf))
        largest = max(largest, float(apart.max()) if len(apart) else 0.0)
    return largest
