"""Against the real avalanche-lib: `make test-avalanche` installs it in an environment of its own and runs this file."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from autorecall import (
    ARM,
    PRESETS,
    SLDA,
    ARMConfig,
    ConfigError,
    InputError,
    LagConfig,
    Naive,
    Stream,
    load_dataset,
    run,
)
from autorecall.config import RunConfig
from autorecall.data import Dataset, Split
from autorecall.runs.loop import few_of_each_class
from autorecall.stream import as_batch
from autorecall.torch_state import limited_threads, own_random_state

INSTALLED = find_spec("avalanche") is not None
needs_avalanche = pytest.mark.skipif(not INSTALLED, reason="needs avalanche-lib, which make test-avalanche installs")
# Avalanche and what it imports warn of much that is not ours.
pytestmark = pytest.mark.filterwarnings("default")

if INSTALLED:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Ours first: beside a torch for the CPU, it makes torchvision importable, which Avalanche imports.
        from autorecall.integrations.avalanche import Recall, as_strategy  # isort: skip
        from avalanche.benchmarks import (
            benchmark_from_datasets,
            split_online_stream,
            with_classes_timeline,
        )
        from avalanche.benchmarks.utils import as_classification_dataset
        from avalanche.evaluation.metrics import accuracy_metrics
        from avalanche.models import IncrementalClassifier, MTSimpleMLP
        from avalanche.training import Naive as NaiveStrategy
        from avalanche.training.plugins import (
            EvaluationPlugin,
            EWCPlugin,
            ReplayPlugin,
            SynapticIntelligencePlugin,
        )

ONCE = {"train_mb_size": 10, "train_epochs": 1}
TESTED = 500  # images, where all would take long


class Labelled(TensorDataset):
    """Tensors as Avalanche wants them: with `targets`."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y)
        self.targets = y.tolist()


def labelled(split: Split, rows: Any) -> Any:
    return as_classification_dataset(Labelled(*as_batch(split, rows)))


def benchmark_of(stream: Stream, tested: Split) -> Any:
    """The same tasks in the same order; one test experience for each class, since we average over classes."""
    tests = [labelled(tested, np.flatnonzero(tested.labels == label)) for label in np.unique(tested.labels)]
    train = [labelled(task.split, task.order) for task in stream]
    return with_classes_timeline(benchmark_from_datasets(train=train, test=tests))


def matrix_of(strategy: Any, benchmark: Any, stream: Stream) -> list[list[float]]:
    """Train on every experience, test after each."""
    matrix = []
    for experience in benchmark.streams["train"]:
        strategy.train(experience, shuffle=False)
        found = strategy.eval(benchmark.streams["test"])
        share = [100 * found[name] for name in sorted(name for name in found if name.startswith("Top1_Acc_Exp/eval"))]
        matrix.append([float(np.mean([share[label] for label in task.classes])) for task in stream])
    return matrix


def evaluator() -> Any:
    return EvaluationPlugin(accuracy_metrics(minibatch=True, experience=True), loggers=[])


def world(name: str, fraction: float) -> tuple[RunConfig, Dataset, Stream]:
    config = replace(PRESETS[name].config, fraction=fraction, threads=1, curve_points=0)
    data = load_dataset(config.dataset)
    return config, data, Stream(data, config.stream, fraction, config.seed)


def learner_of(config: RunConfig, data: Dataset, stream: Stream) -> Any:
    network = config.network.build(data.input_shape, len(data.classes))
    return config.learner.for_stream(stream.task_lengths).build(network, config.seed)


@needs_avalanche
def test_naive_with_recall_ends_with_the_matrix_of_our_run() -> None:
    """The whole of MNIST-5k: Avalanche takes the real step, the plugin recalls."""
    config, data, stream = world("mnist/arm", 1.0)
    expected = run("mnist/arm", config, data)
    with own_random_state(config.seed), limited_threads(1):
        network = config.network.build(data.input_shape, len(data.classes))
        settings = config.learner.for_stream(stream.task_lengths)
        assert isinstance(settings, ARMConfig)
        recall = Recall(settings, config.seed)
        optimizer = torch.optim.SGD(network.parameters(), lr=settings.learning_rate)
        strategy = NaiveStrategy(
            model=network, optimizer=optimizer, plugins=[recall], evaluator=evaluator(), eval_mb_size=50, **ONCE
        )
        found = matrix_of(strategy, benchmark_of(stream, data.test), stream)
    np.testing.assert_allclose(found, expected.accuracy_matrix, rtol=0, atol=1e-9)
    assert recall.learner is not None
    assert recall.learner.memory().parameters == expected.memory.parameters
    assert recall.numbers["objective"] == recall.numbers["objective"]


@needs_avalanche
@pytest.mark.parametrize("name", ["arm", "er-50", "lwf", "slda", "mean-shift"])
def test_a_learner_as_a_strategy_ends_with_the_matrix_of_our_run(name: str) -> None:
    config, data, stream = world(f"mnist/{name}", 0.2)
    config = replace(config, test_images=TESTED)
    expected = run(f"mnist/{name}", config, data)
    with own_random_state(config.seed), limited_threads(1):
        strategy = as_strategy(learner_of(config, data, stream), evaluator=evaluator())
        found = matrix_of(strategy, benchmark_of(stream, few_of_each_class(data.test, TESTED)), stream)
    np.testing.assert_allclose(found, expected.accuracy_matrix, rtol=0, atol=1e-9)


def small(lag: LagConfig) -> ARMConfig:
    return ARMConfig(recalled_images=5, ascent_steps=2, learning_rate=0.05, lag=lag)


def trained(stream_of: Any, plugins: Sequence[Any], network: nn.Module | None = None, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    network = network or nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    strategy = NaiveStrategy(
        model=network, optimizer=optimizer, plugins=list(plugins), evaluator=evaluator(), **ONCE, **options
    )
    for experience in stream_of:
        strategy.train(experience, shuffle=False)
    model: nn.Module = strategy.model
    return model


def tiny() -> Any:
    _, data, stream = world("mnist/arm", 0.1)
    return benchmark_of(stream, few_of_each_class(data.test, 10))


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@needs_avalanche
@pytest.mark.parametrize("policy", ["novel", "boundary"])
def test_a_stream_of_minibatches_is_learned_as_the_ordinary_one(policy: Any) -> None:
    ordinary, online = Recall(small(LagConfig(policy))), Recall(small(LagConfig(policy)))
    benchmark = tiny()
    expected = trained(benchmark.streams["train"], [ordinary])
    minibatches = split_online_stream(
        benchmark.streams["train"], experience_size=10, shuffle=False, access_task_boundaries=policy == "boundary"
    )
    assert same(trained(minibatches, [online]), expected)
    assert online.learner is not None
    assert online.learner.boundaries.tasks == 5
    assert not same(trained(tiny().streams["train"], []), expected)


@needs_avalanche
def test_recall_goes_with_other_plugins() -> None:
    """One that reads gradients after the step, one that adds a loss, one that adds images."""
    for other in (SynapticIntelligencePlugin(0.1), EWCPlugin(1.0), ReplayPlugin(50)):
        recall = Recall(small(LagConfig()))
        trained(list(tiny().streams["train"])[:2], [other, recall])
        assert np.isfinite(recall.numbers["objective"])


@needs_avalanche
def test_outputs_that_avalanche_adds_are_recalled_too() -> None:
    recall = Recall(small(LagConfig()))
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.ReLU(), IncrementalClassifier(20, 2))
    model = trained(tiny().streams["train"], [recall], network)
    assert model(torch.zeros(1, 1, 28, 28)).shape == (1, 10)
    assert recall.learner is not None
    assert recall.learner.boundaries.tasks == 5
    assert recall.learner.teacher.network is not None
    assert recall.learner.teacher.network(torch.zeros(1, 1, 28, 28)).shape == (1, 10)
    assert sum(name.startswith("recalled_class_") for name in recall.numbers) == 10


@needs_avalanche
@pytest.mark.parametrize("change", ["optimizer", "outputs"])
def test_the_teacher_stays_if_the_optimizer_or_outputs_change_within_a_task(change: str) -> None:
    """Some strategies make a new optimizer every epoch, and online streams add outputs whenever a class is new."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    strategy = SimpleNamespace(model=network, optimizer=torch.optim.SGD(network.parameters(), 0.1), experience=None)
    recall = Recall(small(LagConfig("every", every=100, start=0)))
    x = torch.rand(10, 1, 4, 4)

    def iteration() -> None:
        strategy.mb_x, strategy.mb_y = x, torch.arange(10) % 4
        recall.before_training_iteration(strategy)
        recall.after_update(strategy)

    iteration()
    assert recall.learner is not None
    assert recall.learner.teacher.network is not None
    before = recall.learner.teacher.network(x)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.1)
    if change == "outputs":
        last, more = network[-1], nn.Linear(8, 6)
        assert isinstance(last, nn.Linear)
        more.weight.data[:4] = last.weight.data
        network[-1] = more
    strategy.optimizer = torch.optim.SGD(network.parameters(), 0.05)
    iteration()
    assert recall.learner.optimizer is strategy.optimizer
    assert recall.learner.boundaries.batches == 2
    torch.testing.assert_close(recall.learner.teacher.network(x)[:, :4], before)


@needs_avalanche
@pytest.mark.parametrize("method", ["naive", "slda"])
def test_a_learner_that_grows_is_evaluated_on_classes_yet_to_come(method: str) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 2))
    learner = Naive(network) if method == "naive" else SLDA(network)
    learner.grows = True
    strategy = as_strategy(learner, evaluator=evaluator())
    benchmark = tiny()
    for experience in benchmark.streams["train"]:
        strategy.train(experience, shuffle=False)
        found = strategy.eval(benchmark.streams["test"])
        assert np.isfinite([value for value in found.values() if isinstance(value, float)]).all()
    assert learner.network(torch.zeros(1, 1, 28, 28)).shape == (1, 10)


@needs_avalanche
def test_a_network_that_wants_task_labels_is_refused() -> None:
    strategy = SimpleNamespace(model=MTSimpleMLP(), optimizer=None, experience=None)
    with pytest.raises(InputError, match="MTSimpleMLP chooses its outputs by task labels"):
        Recall().before_training_exp(strategy)


@needs_avalanche
def test_a_learner_that_waits_for_boundaries_is_told() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    learner = ARM(network, small(LagConfig("boundary")))
    strategy = as_strategy(learner, evaluator=evaluator())
    for experience in tiny().streams["train"]:
        strategy.train(experience, shuffle=False)
    assert learner.boundaries.tasks == 5
    learner = ARM(network, small(LagConfig()))
    online = as_strategy(learner, evaluator=evaluator())
    for experience in split_online_stream(tiny().streams["train"], experience_size=10, shuffle=False):
        online.train(experience, shuffle=False)
    assert learner.boundaries.tasks == 5


@needs_avalanche
def test_metrics_see_the_outputs_from_before_the_step() -> None:
    learner = Naive(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)))
    strategy = as_strategy(learner, evaluator=evaluator())
    first = next(iter(tiny().streams["train"]))
    before = learner.predict(first.dataset[0][0].unsqueeze(0))
    outputs: list[Tensor] = []

    class Spy(Recall):
        """Notes outputs, and recalls nothing."""

        before_training_exp = before_training_iteration = lambda *_, **__: None

        def after_update(self, strategy: Any, *_: object, **__: object) -> None:
            outputs.append(strategy.mb_output)

    strategy.plugins.insert(0, Spy())
    found = strategy.train(first, shuffle=False)
    torch.testing.assert_close(outputs[0][:1], before)
    assert any(name.startswith("Top1_Acc_MB/train") for name in found)


def test_without_avalanche_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "avalanche", None)
    monkeypatch.setitem(sys.modules, "avalanche.benchmarks", None)
    monkeypatch.delitem(sys.modules, "autorecall.integrations.avalanche", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'autorecall\[avalanche\]'"):
        import autorecall.integrations.avalanche  # noqa: F401
