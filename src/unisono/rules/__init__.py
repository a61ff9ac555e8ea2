"""One rule a class, one class a file; `RULES` holds them in order of their codes."""

from unisono.rules._rule import Rule
from unisono.rules.un001_monitor_degraded import MonitorDegraded
from unisono.rules.un002_ranks_disagree import RanksDisagree
from unisono.rules.un101_duplicated_data import DuplicatedData
from unisono.rules.un102_overlapping_shards import OverlappingShards
from unisono.rules.un103_stale_shuffle import StaleShuffle
from unisono.rules.un104_toxic_batch import ToxicBatch
from unisono.rules.un105_uneven_shards import UnevenShards
from unisono.rules.un106_sampler_misconfigured import SamplerMisconfigured
from unisono.rules.un201_identical_randomness import IdenticalRandomness
from unisono.rules.un202_unequal_initialisation import UnequalInitialisation
from unisono.rules.un301_replicas_diverged import ReplicasDiverged
from unisono.rules.un302_gradients_not_synchronised import GradientsNotSynchronised
from unisono.rules.un303_optimizer_differs import OptimizerDiffers
from unisono.rules.un304_buffers_differ import BuffersDiffer
from unisono.rules.un305_parameters_not_optimised import ParametersNotOptimised
from unisono.rules.un401_gradient_explosion import GradientExplosion
from unisono.rules.un402_gradient_vanishing import GradientVanishing
from unisono.rules.un403_gradient_oscillation import GradientOscillation
from unisono.rules.un404_non_finite import NonFinite
from unisono.rules.un405_noise_dominated import NoiseDominated
from unisono.rules.un406_consistency_drop import ConsistencyDrop
from unisono.rules.un407_consistency_decline import ConsistencyDecline
from unisono.rules.un408_dispersion_spike import DispersionSpike
from unisono.rules.un409_dispersion_rise import DispersionRise
from unisono.rules.un410_walk_of_averages import WalkOfAverages
from unisono.rules.un411_norm_dispersion import NormDispersion
from unisono.rules.un501_outlier_worker import OutlierWorker
from unisono.rules.un502_missing_worker import MissingWorker
from unisono.rules.un503_slow_worker import SlowWorker
from unisono.rules.un601_worker_rejected import WorkerRejected
from unisono.rules.un602_guard_acted import GuardActed

RULES: tuple[type[Rule], ...] = (
    MonitorDegraded,
    RanksDisagree,
    DuplicatedData,
    OverlappingShards,
    StaleShuffle,
    ToxicBatch,
    UnevenShards,
    SamplerMisconfigured,
    IdenticalRandomness,
    UnequalInitialisation,
    ReplicasDiverged,
    GradientsNotSynchronised,
    OptimizerDiffers,
    BuffersDiffer,
    ParametersNotOptimised,
    GradientExplosion,
    GradientVanishing,
    GradientOscillation,
    NonFinite,
    NoiseDominated,
    ConsistencyDrop,
    ConsistencyDecline,
    DispersionSpike,
    DispersionRise,
    WalkOfAverages,
    NormDispersion,
    OutlierWorker,
    MissingWorker,
    SlowWorker,
    WorkerRejected,
    GuardActed,
)

__all__ = ["RULES", "Rule"]
