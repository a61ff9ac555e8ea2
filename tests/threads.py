"""For folders of tests with products of small matrices: `from threads import one_thread` in their conftest."""

import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    """Products of small matrices are slower on several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
