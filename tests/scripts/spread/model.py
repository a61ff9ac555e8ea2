from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(24, 2)

    def forward(self, x):
        return self.head(self.body(x))
