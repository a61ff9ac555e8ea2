"""Places besides the run file for the numbers and findings of a run: TensorBoard, W&B, MLflow and others."""

from unisono.sinks.mlflow import MLflow
from unisono.sinks.opentelemetry import OpenTelemetry
from unisono.sinks.prometheus import Prometheus
from unisono.sinks.tensorboard import TensorBoard
from unisono.sinks.wandb import WandB
from unisono.sinks.webhook import Webhook

__all__ = ["MLflow", "OpenTelemetry", "Prometheus", "TensorBoard", "WandB", "Webhook"]
