import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/gpu" in str(item.path):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def gpu_ceilings():
    """Every ceiling of the first GPU: those that ``roofprobe ceilings`` has kept, or measured."""
    import torch

    from roofprobe.ceilings import cache, measure_gpu_roofs
    from roofprobe.environment import collect

    device = torch.device("cuda", 0)
    conditions = cache.conditions_of(collect(device))
    kept = cache.load(conditions) if conditions is not None else None
    return kept if kept is not None and kept.complete else measure_gpu_roofs(device)
