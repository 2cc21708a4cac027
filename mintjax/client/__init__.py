"""Tinker's client surface in this process: a service, and its training, sampling and REST clients."""

from mintjax.client.base_models import BaseModel
from mintjax.client.errors import RequestErrorCategory, RequestFailedError, TinkerError
from mintjax.client.futures import Future
from mintjax.client.rest import RestClient
from mintjax.client.sampling import SamplingClient
from mintjax.client.service import ServiceClient
from mintjax.client.training import TrainingClient

__all__ = [
    "BaseModel",
    "Future",
    "RequestErrorCategory",
    "RequestFailedError",
    "RestClient",
    "SamplingClient",
    "ServiceClient",
    "TinkerError",
    "TrainingClient",
]
