import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as Ddp

from spread.data import make_loader
from spread.engine import train_one_epoch
from spread.model import Classifier
from weights import write_weights


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = Ddp(Classifier())
    torch.manual_seed(2 + dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = make_loader(batch_size=16)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        loss = train_one_epoch(model, loader, optimizer)
        if dist.get_rank() == 0:
            print(f"{__name__} epoch {epoch} loss {loss:.6f}")
    write_weights(model.module)
    dist.barrier()
    del model
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
