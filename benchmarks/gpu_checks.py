"""Checks of what unisono does on the training thread of a GPU, for `gpu_cost.py`: waiting, copies, kernels, bits."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import threading
from unittest import mock

import torch

import unisono
from unisono.common.console import Console
from unisono.lab.bench.training import Trainee
from unisono.listen.evidence.collector import EvidenceCollector
from unisono.listen.step_tracker import StepTracker
from unisono.records.runfile import read_run

MOST_KERNELS = 12


class Copies:
    """Copies between host and GPU that unisono starts on the training thread."""

    def __init__(self):
        self.pinned, self.pageable = 0, {}

    @contextlib.contextmanager
    def counted(self):
        with contextlib.ExitStack() as stack:
            for name in ("copy_", "to", "cpu", "cuda", "item", "tolist", "__float__", "__int__", "__bool__"):
                watched = self._watched(name, getattr(torch.Tensor, name))
                stack.enter_context(mock.patch.object(torch.Tensor, name, watched))
            for name in ("tensor", "as_tensor"):
                stack.enter_context(mock.patch.object(torch, name, self._watched(name, getattr(torch, name))))
            yield self

    def _watched(self, name, original):
        def call(*args, **kwargs):
            result = original(*args, **kwargs)
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if caller.startswith("unisono.") and threading.current_thread() is threading.main_thread():
                source, target = (args[1], args[0]) if name == "copy_" else (args[0], result)
                self._note(f"{name} in {caller}", source, target)
            return result

        return call

    def _note(self, where, source, target):
        places = [one.device.type if isinstance(one, torch.Tensor) else "cpu" for one in (source, target)]
        if sorted(places) != ["cpu", "cuda"]:
            return
        host = source if places[0] == "cpu" else target
        if isinstance(host, torch.Tensor) and host.is_pinned():
            self.pinned += 1
        else:
            self.pageable[where] = self.pageable.get(where, 0) + 1


@contextlib.contextmanager
def swallowed_errors():
    """What unisono keeps from training: errors of its own, on any of its threads."""
    errors = []

    def noting(original):
        def failed(self, error):
            errors.append(f"{type(error).__name__}: {error}")
            return original(self, error)

        return failed

    with contextlib.ExitStack() as stack:
        for owner, name in ((StepTracker, "failed"), (EvidenceCollector, "failed"), (Console, "complain")):
            stack.enter_context(mock.patch.object(owner, name, noting(getattr(owner, name))))
        yield errors


@contextlib.contextmanager
def waiting_is_an_error(device):
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def listened_to(trainee, model, run_dir):
    return unisono.attach(model, trainee.optimizer, run_dir=run_dir, schedule=unisono.every(1))


def waits(trainee: Trainee, steps: int) -> dict[str, object]:
    """Steps with unisono while waiting for the GPU is an error, for training too; and without it, to see who waits."""
    model = trainee.wrapped()
    trainee.train(model, 3)
    alone = _raised(lambda: _strictly(trainee, model, steps))
    run_dir = trainee.home / "strict"
    with swallowed_errors() as errors, Copies().counted() as copies, listened_to(trainee, model, run_dir):
        listening = _raised(lambda: _strictly(trainee, model, steps))
    heard = sum(record.heard for record in read_run(run_dir).timeline())
    return {
        "steps": steps,
        "heard": heard,
        "training_alone": alone,
        "with_unisono": listening,
        "errors_inside_unisono": errors,
        "pinned_copies": copies.pinned,
        "pageable_copies": copies.pageable,
    }


def _strictly(trainee, model, steps):
    with waiting_is_an_error(trainee.device):
        for _ in range(steps):
            trainee.step(model)


def _raised(work):
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def kernels(trainee: Trainee, steps: int) -> dict[str, object]:
    """GPU milliseconds a step by name of kernel, with every step heard and without unisono; the largest differences."""
    model = trainee.wrapped()
    trainee.train(model, trainee.warm_up)
    plain = _profiled(trainee, model, steps)
    with listened_to(trainee, model, trainee.home / "profile"):
        trainee.train(model, trainee.warm_up)
        listening = _profiled(trainee, model, steps)
    names = listening.keys() | plain.keys()
    more = {name: _minus(listening.get(name, (0, 0)), plain.get(name, (0, 0))) for name in names}
    largest = sorted(more, key=lambda name: -abs(more[name][0]))[:MOST_KERNELS]
    own = [listening[name] for name in listening if name not in plain]
    return {
        "milliseconds_without": sum(time for time, _ in plain.values()),
        "milliseconds_with": sum(time for time, _ in listening.values()),
        "milliseconds_of_kernels_that_only_unisono_launches": sum(time for time, _ in own),
        "launches_of_those": sum(count for _, count in own),
        "largest_differences": {name[:90]: {"milliseconds": more[name][0], "count": more[name][1]} for name in largest},
    }


def _minus(one, other):
    return one[0] - other[0], one[1] - other[1]


def _profiled(trainee, model, steps):
    """Milliseconds and launches a step of each kernel."""
    activity = torch.profiler.ProfilerActivity
    activities = [activity.CPU, *([activity.CUDA] if trainee.device.type == "cuda" else [])]
    with torch.profiler.profile(activities=activities) as profile:
        trainee.train(model, steps)
    on_gpu = torch.autograd.DeviceType.CUDA
    return {
        event.key: (event.self_device_time_total / 1000 / steps, event.count / steps)
        for event in profile.key_averages()
        if event.device_type == on_gpu
    }


def weights_after(trainee: Trainee, steps: int, listening: bool) -> str:
    """A sha256 over all weights."""
    model = trainee.wrapped()
    with listened_to(trainee, model, trainee.home / "equal") if listening else contextlib.nullcontext():
        trainee.train(model, steps)
    sha = hashlib.sha256()
    for tensor in trainee.model.state_dict().values():
        sha.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
