"""One pass over a worker's gradients: squared norms and a short random-sign sketch of their direction."""

from unisono.sketch.fold import Fold, Target, real_elements, wrap
from unisono.sketch.gpu.total_norm import total_square
from unisono.sketch.hashing import window_seed
from unisono.sketch.length import default_length, narrow
from unisono.sketch.model_sketch import ModelSketch, compile_kernels
from unisono.sketch.norm import measure_norm, squared_norm
from unisono.sketch.quantise import dequantise, quantise

__all__ = [
    "Fold",
    "ModelSketch",
    "Target",
    "compile_kernels",
    "default_length",
    "dequantise",
    "measure_norm",
    "narrow",
    "quantise",
    "real_elements",
    "squared_norm",
    "total_square",
    "window_seed",
    "wrap",
]
