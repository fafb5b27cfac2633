"""What needs a GPU is skipped, and seen to be, where there is none. Drawn examples are the same
in every run: what passed for one person passes for the next. ``--hypothesis-profile=default`` draws
others. How long one takes depends on who else uses the computer: that is no test's business.
A shell that starts them in the background has them ignore Ctrl-C, and so whatever they start, to
which they send it: they listen to it again."""

import signal

import pytest
from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")


def pytest_collection_modifyitems(items):
    needs = {
        item: max(
            1 if item.get_closest_marker("gpu") else 0,
            2 if item.get_closest_marker("multi_gpu") else 0,
        )
        for item in items
    }
    if not any(needs.values()):
        return  # torch takes more than a second to load
    import torch

    found = torch.cuda.device_count()
    for item, wanted in needs.items():
        if found < wanted:
            item.add_marker(pytest.mark.skip(reason=f"needs {wanted} CUDA device(s), has {found}"))
