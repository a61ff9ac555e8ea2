"""On a GPU (all ranks may share one): bit-equal weights, true measures, no synchronisation."""

import contextlib
import gc
import hashlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from common import MODELS, batch, optimizer_for
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import unisono
from unisono.listen import gradient_reader as reader
from unisono.listen import handover
from unisono.listen.evidence.collector import EvidenceCollector
from unisono.listen.step_tracker import StepTracker
from unisono.records.runfile import read_run
from unisono.show.analysis.checkup import examine

STEPS = 40
IN_BUCKETS = {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01}
REFERENCES = {
    "reference": {},
    "reference-scaled": {"scaled": True},
    "reference-in-buckets": IN_BUCKETS,
    "reference-in-buckets-zeroed": IN_BUCKETS | {"zeroed": True},
    "reference-static": {"static_graph": True},
    "reference-unused": IN_BUCKETS | {"find_unused_parameters": True},
}


def digest(model):
    weights = b"".join(tensor.detach().cpu().numpy().tobytes() for tensor in model.state_dict().values())
    return hashlib.sha256(weights).hexdigest()


def train(kind, run_dir, monitored, scaled=False, kept=None, fault=None, zeroed=False, **options):
    torch.manual_seed(0)
    bare = MODELS[kind]().cuda()
    model = DistributedDataParallel(bare, **options)
    arrived = {}
    if kept is not None:
        for name, parameter in bare.named_parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda parameter, name=name: arrived.__setitem__(name, parameter.grad.detach().double().clone())
            )
    optimizer = optimizer_for("adamw", model)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, enabled=scaled)
    monitor = unisono.attach(model, optimizer, run_dir=run_dir) if monitored else contextlib.nullcontext()
    generator = torch.Generator().manual_seed(dist.get_rank())
    torch.manual_seed(100 if fault == "same dropout" else 100 + dist.get_rank())
    with monitor:
        for step in range(STEPS):
            inputs, labels = (tensor.cuda() for tensor in batch(kind, generator))
            optimizer.zero_grad(set_to_none=not zeroed)
            loss = cross_entropy(model(inputs), labels)
            scaler.scale(loss).backward()
            if kept is not None:
                flat = torch.cat([arrived[name].flatten() for name, _ in bare.named_parameters()])
                kept.append((loss.item(), flat / scaler.get_scale()))
            scaler.step(optimizer)
            scaler.update()
            if fault == "drift" and step == 10 and dist.get_rank() == 1:
                weight = next(bare.parameters()).data
                weight.copy_(torch.nextafter(weight, torch.full_like(weight, torch.inf)))
    return digest(bare)


def complete(run_dir):
    """Steps in which all evidence was taken although waiting for the GPU was an error; whether anything was found."""
    dist.barrier()
    if dist.get_rank():
        return None
    audits = {"reduced", "used", "weights", "state"}
    taken = [record for record in read_run(run_dir).timeline() if record.heard and audits <= set(record.audits)]
    return {"steps": len(taken), "found": sorted(finding.code for finding in examine(run_dir).findings)}


@contextlib.contextmanager
def no_synchronisation():
    """While unisono works on the training thread, anything that waits for the GPU is an error."""

    def strict(method):
        def call(*args, **kwargs):
            torch.cuda.set_sync_debug_mode("error")
            try:
                return method(*args, **kwargs)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return call

    places = [
        (StepTracker, ("backward_begins", "backward_ended", "optimizer_stepped", "loss_scaled", "clipped")),
        (reader.GradientReader, ("open", "hear", "close", "squared_norm_of")),
        (handover.Handover, ("send",)),
        (EvidenceCollector, ("backward_begins", "loaded", "forward_begins", "forward_ended", "optimizer_begins")),
        (EvidenceCollector, ("backward_counted", "raw_evidence")),
    ]
    originals = [(owner, name, getattr(owner, name)) for owner, names in places for name in names]
    for owner, name, method in originals:
        setattr(owner, name, strict(method))
    try:
        yield
    finally:
        for owner, name, method in originals:
            setattr(owner, name, method)


def largest_errors(run_dir, kept):
    """Relative error of norms and losses, absolute error of cosines, against the gradients of all ranks."""
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, [(loss, flat.cpu()) for loss, flat in kept])
    if dist.get_rank():
        return None
    errors = {"norm": 0.0, "loss": 0.0, "cosine": 0.0, "heard": 0}
    for record, steps in zip(read_run(run_dir).timeline(), zip(*gathered, strict=True), strict=True):
        gradient_WN = torch.stack([flat for _, flat in steps])
        loss_W = torch.tensor([loss for loss, _ in steps], dtype=torch.float64)
        errors["loss"] = max(errors["loss"], float((torch.tensor(record.loss_W).double() / loss_W - 1).abs().max()))
        if record.heard and record.cos_mean is not None:
            norm_W = torch.tensor(record.norm_W, dtype=torch.float64)
            errors["norm"] = max(errors["norm"], float((norm_W / gradient_WN.norm(dim=1) - 1).abs().max()))
            cosine = torch.nn.functional.cosine_similarity(gradient_WN[0], gradient_WN[1], dim=0)
            errors["cosine"] = max(errors["cosine"], abs(record.cos_mean - float(cosine)))
            errors["heard"] += 1
    return errors


def main(results):
    dist.init_process_group("gloo")
    torch.cuda.set_device(0)
    torch.use_deterministic_algorithms(True)
    found = {"torch": str(torch.__version__), "device": torch.cuda.get_device_name(), "equal": {}, "evidence": {}}
    cases = {
        "perceptron": ("perceptron", {}),
        "convolutional": ("convolutional", {}),
        "transformer": ("transformer", {}),
        "bucket view": ("transformer", {"gradient_as_bucket_view": True}),
        "bucket view, zeroed": ("transformer", {"gradient_as_bucket_view": True, "zeroed": True}),
        "small buckets": ("transformer", {"gradient_as_bucket_view": True, "zeroed": True, "bucket_cap_mb": 0.1}),
        "unused": ("transformer", {"gradient_as_bucket_view": True, "find_unused_parameters": True}),
        "scaled": ("perceptron", {"scaled": True}),
    }
    for name, (kind, options) in cases.items():
        run_dir = os.path.join(results, name.replace(" ", "-"))
        plain = train(kind, run_dir, False, **options)
        with no_synchronisation():
            found["equal"][name] = plain == train(kind, run_dir, True, **options)
        found["evidence"][name] = complete(run_dir)
    for fault, kind in (("drift", "perceptron"), ("same dropout", "transformer")):
        run_dir = os.path.join(results, fault.replace(" ", "-"))
        train(kind, run_dir, True, fault=fault)
        found["evidence"][fault] = complete(run_dir)
    for name, options in REFERENCES.items():
        kept = []
        train("perceptron", os.path.join(results, name), True, kept=kept, **options)
        dist.barrier()
        found[name] = largest_errors(os.path.join(results, name), kept)
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.barrier()
    gc.collect()
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
