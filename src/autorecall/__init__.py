"""autorecall: continual learning that keeps no data.

    learner = ARM(network, ARMConfig(...))   # any nn.Module that maps a batch to logits
    numbers = learner.observe(x, y)          # one online step: learn, recall, learn again
    logits = learner.predict(x)

The public names are listed in __init__.pyi. Each is imported on first use, so `autorecall --help` does not wait for
torch.
"""

import lazy_loader

__version__ = "0.1.0"  # the only place: pyproject.toml and `autorecall --version` read it here

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
