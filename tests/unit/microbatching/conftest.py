import pytest
import torch

from unisono.microbatching import routes


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    """Products of small matrices are slower on several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["host", "device"])
def route(request, monkeypatch):
    """Sequential agreement as it is done on a GPU, too: it works anywhere, it is only slower on a CPU."""
    monkeypatch.setattr(routes, "fits", lambda gradients: request.param == "device")
