import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/gpu" in str(item.path):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def gpu_ceilings():
    """Every ceiling of the first GPU, measured once for all tests (half a minute)."""
    import torch

    from roofprobe.ceilings import measure_gpu_roofs

    return measure_gpu_roofs(torch.device("cuda", 0))
