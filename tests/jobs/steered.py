"""Trains with steering, case by case, and leaves what became of the weights for the test."""

import contextlib
import copy
import math
import os
import sys

import torch
import torch.distributed as dist
from common import MODELS, batch, digest, optimizer_for, process_group, raised, say
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.join import Join
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import unisono
from unisono.weightings import AdaptiveFilter, AgreementFilter, FromTorchJD, Mean, NormAware, Preconditioned, Windowed

STEPS, FROM = 12, 4


class Odd(nn.Module):
    """Tied, complex and empty parameters."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)
        self.second.weight = self.first.weight
        self.turn, self.empty = nn.Parameter(torch.ones(10, dtype=torch.complex64)), nn.Parameter(torch.empty(0))

    def forward(self, inputs):
        hidden = self.second(self.first(inputs).relu())[:, :10]
        return (hidden * self.turn * (1 + 0.5j)).real + self.empty.sum()


MODELS["odd"] = Odd
EVERYBODY = AgreementFilter(max_distance=2)


def at_first_everybody(step):
    return 2.0 if step < FROM else 0.0


def built(kind, optimizer_name, weighting=None, name="run", channels_last=False, steering=None, **options):
    torch.manual_seed(0)
    module = MODELS[kind]() if isinstance(kind, str) else kind()
    module = module.to(memory_format=torch.channels_last) if channels_last else module
    model = DistributedDataParallel(module, bucket_cap_mb=0.01, **options)
    optimizer = optimizer_for(optimizer_name, model)
    run_dir = os.path.join(os.environ["RESULTS"], name)
    monitor = (
        unisono.attach(model, optimizer, weighting=weighting, run_dir=run_dir, **steering or {}) if weighting else None
    )
    return model, optimizer, monitor or contextlib.nullcontext()


def train(kind="perceptron", optimizer_name="sgd", weighting=None, factor=None, accumulate=1, scaled=False, **options):
    """
    What became of it after every step.

    :param weighting: None for plain DDP.
    :param factor: From the step to a factor on this rank's loss.
    """
    size = options.pop("size", 8)
    model, optimizer, monitor = built(kind, optimizer_name, weighting, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=20, enabled=scaled)
    torch.manual_seed(100 + dist.get_rank())
    generator = torch.Generator().manual_seed(dist.get_rank())
    prints, states, buffers = [], [], []
    with monitor:
        for step in range(STEPS):
            optimizer.zero_grad()
            for micro in range(accumulate):
                inputs, labels = lesson(kind, generator, size)
                with model.no_sync() if micro + 1 < accumulate else contextlib.nullcontext():
                    loss = cross_entropy(model(inputs), labels) / accumulate
                    scaler.scale(loss * (1.0 if factor is None else factor(step))).backward()
            scaler.step(optimizer)
            scaler.update()
            prints.append(digest(nn.ParameterList(model.parameters())))
            states.append(copy.deepcopy(optimizer.state_dict()["state"]))
            buffers.append([buffer.clone() for buffer in model.module.buffers()])
    return {"model": model.module, "prints": prints, "states": states, "buffers": buffers, "scale": scaler.get_scale()}


def lesson(kind, generator, size):
    """Something that can be learnt, so that healthy workers agree."""
    inputs, labels = batch(kind, generator, size)
    table = torch.randn(10, 3, generator=torch.Generator().manual_seed(1))
    if kind == "convolutional":
        return inputs + table[labels][:, :, None, None], labels
    return (inputs, labels) if kind == "transformer" else (inputs, inputs[:, :10].argmax(1))


def flat(module):
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def on(rank, value):
    """A factor of this rank alone, from step FROM on."""
    return lambda step: value if dist.get_rank() == rank and step >= FROM else 1.0


def like_plain(**options):
    plain, steered = train(**{**options, "steering": None}), train(weighting=EVERYBODY, **options)
    apart = float((flat(plain["model"]) - flat(steered["model"])).norm() / flat(plain["model"]).norm())
    return {"bits": steered["prints"] == plain["prints"], "apart": apart, "prints": steered["prints"]}


def with_fault(value, weighting, rank=1, name="run", **options):
    found = train(weighting=weighting, factor=on(rank, value), size=64, name=name, **options)
    return {"prints": found["prints"], "finite": bool(flat(found["model"]).isfinite().all()), "scale": found["scale"]}


def same(one, other):
    return str(one) == str(other) and all(
        torch.equal(one[key][name], other[key][name])
        for key in one
        for name in one[key]
        if torch.is_tensor(one[key][name])
    )


def skipping(**options):
    """From step FROM on nobody agrees: nothing may move."""
    found = train(weighting=AgreementFilter(max_distance=at_first_everybody), name="skipped", **options)
    return {
        "prints": found["prints"],
        "state_kept": all(same(state, found["states"][FROM - 1]) for state in found["states"][FROM:]),
        "state_moved": not same(found["states"][0], found["states"][FROM - 1]),
    }


def nobody_finite(**options):
    found = train(
        weighting=AgreementFilter(), factor=lambda step: math.nan if step >= FROM else 1.0, size=64, **options
    )
    return {"prints": found["prints"], "scale": found["scale"]}


def statistics(forget):
    """The first rank, whose buffers count, is rejected from step FROM on."""
    found = train(
        "convolutional", weighting=AgreementFilter(), factor=on(0, -1.0), size=64, steering={"forget_rejected": forget}
    )
    frozen = all(
        torch.equal(one, other)
        for later in found["buffers"][FROM:]
        for one, other in zip(later, found["buffers"][FROM - 1], strict=True)
    )
    return {"frozen": frozen}


def compressed():
    model = DistributedDataParallel(MODELS["perceptron"]())
    model.register_comm_hook(None, fp16_compress_hook)
    unisono.attach(model, weighting=AgreementFilter())


def compressed_later():
    model, _, _ = built("perceptron", "sgd", AgreementFilter())
    model.register_comm_hook(None, fp16_compress_hook)


def joining():
    model, _, _ = built("perceptron", "sgd", AgreementFilter())
    with Join([model]):
        model(torch.randn(4, 32)).sum().backward()


def sparse():
    model, _, _ = built(lambda: nn.Embedding(16, 4, sparse=True), "sgd", AgreementFilter())
    model(torch.tensor([1, 2])).sum().backward()


def different():
    built("perceptron", "sgd", AgreementFilter(), steering={"gram": "exact" if dist.get_rank() else "sketch"})


def broken(gram_WW):
    raise ZeroDivisionError("injected")


def krum():
    from torchjd.aggregation import Krum

    return with_fault(-1.0, FromTorchJD(Krum(n_byzantine=1, n_selected=2)), name="krum")


def weights_of(gram_WW):
    return [0.0 if worker == 1 else 1 / (len(gram_WW) - 1) for worker in range(len(gram_WW))]


VARIANTS = {
    "perceptron": {"kind": "perceptron"},
    "bucket-view": {"kind": "transformer", "gradient_as_bucket_view": True},
    "channels-last": {"kind": "convolutional", "channels_last": True},
    "accumulated-scaled": {"kind": "perceptron", "accumulate": 3, "scaled": True},
    "find-unused": {"kind": "transformer", "find_unused_parameters": True},
    "static-graph": {"kind": "transformer", "static_graph": True},
    "odd": {"kind": "odd"},
}
ROUTES = {
    f"{gram}-{scope}": {"gram": gram, "scope": scope} for gram in ("sketch", "exact") for scope in ("model", "bucket")
}
CASES = {
    f"everybody-{route}-{variant}": lambda o=options, s=steering: like_plain(steering=s, **o)
    for route, steering in ROUTES.items()
    for variant, options in VARIANTS.items()
}
for route, steering in ROUTES.items():
    CASES |= {
        f"flipped-{route}": lambda s=steering, r=route: with_fault(
            -1.0, AgreementFilter(), name=f"flipped-{r}", steering=s
        ),
        f"nan-{route}": lambda s=steering, r=route: with_fault(
            math.nan, AgreementFilter(), name=f"nan-{r}", steering=s
        ),
        f"skipped-{route}": lambda s=steering: skipping(steering=s),
    }
CASES |= {
    "skipped-adamw": lambda: skipping(optimizer_name="adamw"),
    "skipped-scaler": lambda: skipping(scaled=True),
    "nobody-finite": nobody_finite,
    "nobody-finite-scaler": lambda: nobody_finite(scaled=True),
    "overflow-on-one": lambda: with_fault(math.inf, AgreementFilter(), scaled=True),
    "mean-of-nan": lambda: with_fault(math.nan, Mean()),
    "adaptive": lambda: with_fault(-1.0, AdaptiveFilter(), name="adaptive"),
    "norm-aware": lambda: with_fault(1e3, NormAware(AgreementFilter()), name="norm-aware"),
    "windowed": lambda: with_fault(-1.0, Windowed(AgreementFilter(), steps=4), name="windowed"),
    "preconditioned": lambda: with_fault(
        -1.0, Preconditioned(AgreementFilter()), name="preconditioned", optimizer_name="adamw"
    ),
    "own-function": lambda: with_fault(-1.0, weights_of, name="own-function"),
    "krum": krum,
    "statistics-forgotten": lambda: statistics(True),
    "statistics-kept": lambda: statistics(False),
    "refuse-compression": lambda: raised(compressed),
    "refuse-compression-later": lambda: raised(compressed_later),
    "refuse-different": lambda: raised(different),
    "refuse-join": lambda: raised(joining),
    "refuse-sparse": lambda: raised(sparse),
    "broken-weighting": lambda: raised(lambda: train(weighting=broken)),
}

if __name__ == "__main__":
    with process_group():
        for name in sys.argv[1:]:
            say(name, CASES[name]())
