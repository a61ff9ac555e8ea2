"""Places besides the run file for the numbers and findings of a run: TensorBoard, W&B, MLflow and others."""

from unisono.show.sinks.mlflow import MLflow
from unisono.show.sinks.opentelemetry import OpenTelemetry
from unisono.show.sinks.prometheus import Prometheus
from unisono.show.sinks.tensorboard import TensorBoard
from unisono.show.sinks.wandb import WandB
from unisono.show.sinks.webhook import Webhook

__all__ = ["MLflow", "OpenTelemetry", "Prometheus", "TensorBoard", "WandB", "Webhook"]
