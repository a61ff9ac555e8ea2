"""What the training thread hands over becomes a signal."""

import torch

from unisono.listen.clock import clock_for
from unisono.listen.evidence.raw_evidence import RawEvidence
from unisono.listen.handover import Handover
from unisono.listen.messages import Steered

CPU = torch.device("cpu")


def signal(**fields):
    values = {"step": 3, "time": 1.0, "due": True, "window": 0, "skipped": False, "cost": 0.0, "clock": clock_for(CPU)}
    values |= {"began": 0.0, "backward": None, "ended": 0.5, "readout": None, "raw_evidence": RawEvidence()}
    numbers = dict.fromkeys(("loss", "scale", "clip_norm", "finite_sum", "reduced_share"))
    return Handover(**values | numbers | fields).send(CPU).signal()


def test_what_steering_decided_is_in_the_signal():
    found = signal(steered=Steered((0.5, 0.0, 0.5), (0.1, 1.9, 0.2)), skipped=True)
    assert (found.weight_W, found.distance_W, found.skipped) == ((0.5, 0.0, 0.5), (0.1, 1.9, 0.2), True)


def test_without_steering_nothing_is_said_of_it():
    found = signal()
    assert (found.weight_W, found.distance_W, found.skipped) == ((), (), False)
