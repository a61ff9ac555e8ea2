"""The batch size is found out by a look at the first batch, before `set_epoch`: as in PyTorch's own DDP tutorial."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model, train_data, test_data, optimizer):
        self.model = DistributedDataParallel(model)
        self.train_data, self.test_data, self.optimizer = train_data, test_data, optimizer

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(source), targets)
        loss.backward()
        self.optimizer.step()

    def _test(self, epoch):
        with torch.no_grad():
            losses = [nn.functional.mse_loss(self.model(source), targets).item() for source, targets in self.test_data]
        if dist.get_rank() == 0:
            print(f"epoch {epoch} test loss {sum(losses) / len(losses):.4f}")

    def _run_epoch(self, epoch):
        b_sz = len(next(iter(self.train_data))[0])
        if dist.get_rank() == 0:
            print(f"epoch {epoch} | batch size {b_sz} | steps {len(self.train_data)}")
        if epoch % 2:
            self._test(epoch)
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            self._run_batch(source, targets)

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self._run_epoch(epoch)


dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.rand(640, 20)
dataset = TensorDataset(inputs, inputs @ torch.rand(20, 1))
held_out = TensorDataset(torch.rand(32, 20), torch.rand(32, 1))
train_data = DataLoader(dataset, batch_size=32, shuffle=False, sampler=DistributedSampler(dataset))
model = nn.Linear(20, 1)
trainer = Trainer(model, train_data, DataLoader(held_out, batch_size=16), torch.optim.SGD(model.parameters(), lr=1e-3))
trainer.train(8)

dist.barrier()
del trainer
gc.collect()
dist.destroy_process_group()
