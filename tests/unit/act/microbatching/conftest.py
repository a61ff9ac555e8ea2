import pytest

from threads import one_thread  # noqa: F401 (a fixture for all tests of this folder)
from unisono.act.microbatching import routes


@pytest.fixture(params=["host", "device"])
def route(request, monkeypatch):
    """Sums as they are made on a GPU, too: that works anywhere, it is only slower on a CPU."""
    monkeypatch.setattr(routes, "fits", lambda gradients: request.param == "device")
