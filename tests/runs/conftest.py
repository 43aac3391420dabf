from __future__ import annotations

import pytest

from autorecall.data import Dataset, from_arrays
from autorecall.runs.run import run

from .worlds import bars, config, contents


@pytest.fixture(scope="session")
def data() -> Dataset:
    return from_arrays(train=bars(20, 0), val=bars(5, 1), test=bars(8, 2), name="bars")


@pytest.fixture(scope="session")
def whole(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What a run of ARM leaves that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    run("own/bars", config("arm"), data, folder)
    return contents(folder)
