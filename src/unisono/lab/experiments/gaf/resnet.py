"""ResNet-18 (He et al., arXiv 1512.03385) with the stem for ImageNet, as the paper used it, or one for small images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BLOCKS, WIDTHS = 2, (1, 2, 4, 8)


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.extend([nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)])

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.first_norm(self.first(images)))
        return torch.relu(self.second_norm(self.second(hidden)) + self.shortcut(images))


def resnet18(classes: int, stem: str = "imagenet", width: int = 64) -> nn.Sequential:
    """
    :param stem: `imagenet` halves the image twice before the first block; `cifar` keeps its size.
    """
    if stem == "imagenet":
        layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers.append(nn.MaxPool2d(3, 2, 1))
    else:
        layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for stage, times in enumerate(WIDTHS):
        for block in range(BLOCKS):
            layers.append(ResidualBlock(inputs, width * times, stride=2 if stage and not block else 1))
            inputs = width * times
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            # A count of batches that nobody reads would be one launch on the GPU for each layer.
            module.num_batches_tracked = None
    return model
