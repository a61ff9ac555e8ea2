from torch import nn


def train_one_epoch(model, loader, optimizer):
    total = 0.0
    for x, labels in loader:
        optimizer.zero_grad()
        loss = compute_loss(model, x, labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def compute_loss(model, x, labels):
    return nn.functional.cross_entropy(model(x), labels)
