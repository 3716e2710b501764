"""Models whose layers are explained: a small residual network, and layers in every known layout."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, channels: int, out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.downsample = nn.Conv2d(channels, out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.downsample(x) + self.conv2(torch.relu(self.bn1(self.conv1(x)))))


class ResNet(nn.Module):
    """A tiny residual network with torchvision's names of layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.maxpool = nn.MaxPool2d(2)
        self.layer1 = nn.Sequential(Block(4, 4, 1), Block(4, 6, 2))
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer1(self.maxpool(self.conv1(x))).mean((2, 3)))


class Wrapped(nn.Module):
    """A model that passes its arguments to one layer."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, *args, **kwargs):
        return self.layer(*args, **kwargs)


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x


def resnet() -> ResNet:
    """Return a residual network, with the same weights at every call."""
    torch.manual_seed(0)
    return ResNet()


module_object = nn.Sequential(nn.Conv1d(1, 2, 3))


def no_module() -> int:
    return 3
