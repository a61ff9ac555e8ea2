"""Every script ends by leaving the hash of its weights where a test can find it."""

import hashlib
import os

import torch.distributed as dist


def write_weights(*modules):
    target = os.environ.get("WEIGHTS_OUT")
    if target is None:
        return
    digest = hashlib.sha256()
    for module in modules:
        for name, tensor in sorted(module.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().contiguous().cpu().numpy().tobytes())
    with open(f"{target}.{dist.get_rank()}", "w") as file:
        file.write(digest.hexdigest())
