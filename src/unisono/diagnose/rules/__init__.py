"""One rule a class, one class a file; `RULES` holds them in order of their codes."""

from unisono.diagnose.rules.shared.rule import Rule
from unisono.diagnose.rules.un001_monitor_degraded import MonitorDegraded
from unisono.diagnose.rules.un002_ranks_disagree import RanksDisagree
from unisono.diagnose.rules.un101_duplicated_data import DuplicatedData
from unisono.diagnose.rules.un102_overlapping_shards import OverlappingShards
from unisono.diagnose.rules.un103_stale_shuffle import StaleShuffle
from unisono.diagnose.rules.un104_toxic_batch import ToxicBatch
from unisono.diagnose.rules.un105_uneven_shards import UnevenShards
from unisono.diagnose.rules.un106_sampler_misconfigured import SamplerMisconfigured
from unisono.diagnose.rules.un201_identical_randomness import IdenticalRandomness
from unisono.diagnose.rules.un202_unequal_initialisation import UnequalInitialisation
from unisono.diagnose.rules.un301_replicas_diverged import ReplicasDiverged
from unisono.diagnose.rules.un302_gradients_not_synchronised import GradientsNotSynchronised
from unisono.diagnose.rules.un303_optimizer_differs import OptimizerDiffers
from unisono.diagnose.rules.un304_buffers_differ import BuffersDiffer
from unisono.diagnose.rules.un305_parameters_not_optimised import ParametersNotOptimised
from unisono.diagnose.rules.un401_gradient_explosion import GradientExplosion
from unisono.diagnose.rules.un402_gradient_vanishing import GradientVanishing
from unisono.diagnose.rules.un403_gradient_oscillation import GradientOscillation
from unisono.diagnose.rules.un404_non_finite import NonFinite
from unisono.diagnose.rules.un405_noise_dominated import NoiseDominated
from unisono.diagnose.rules.un406_consistency_drop import ConsistencyDrop
from unisono.diagnose.rules.un407_consistency_decline import ConsistencyDecline
from unisono.diagnose.rules.un408_dispersion_spike import DispersionSpike
from unisono.diagnose.rules.un409_dispersion_rise import DispersionRise
from unisono.diagnose.rules.un410_walk_of_averages import WalkOfAverages
from unisono.diagnose.rules.un411_norm_dispersion import NormDispersion
from unisono.diagnose.rules.un412_validation_stalls import ValidationStalls
from unisono.diagnose.rules.un501_outlier_worker import OutlierWorker
from unisono.diagnose.rules.un502_missing_worker import MissingWorker
from unisono.diagnose.rules.un503_slow_worker import SlowWorker
from unisono.diagnose.rules.un601_worker_rejected import WorkerRejected
from unisono.diagnose.rules.un602_guard_acted import GuardActed

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
    ValidationStalls,
    OutlierWorker,
    MissingWorker,
    SlowWorker,
    WorkerRejected,
    GuardActed,
)

__all__ = ["RULES", "Rule"]
