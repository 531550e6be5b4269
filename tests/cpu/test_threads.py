"""A model that several threads call at the same time."""

from __future__ import annotations

import gc
import os
import signal
import threading
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dnc
from dnc.compiler import compile_model
from dnc.diagnostics import DiagnosticError
from dnc.runtime.worker_thread import Task, WorkerThread
from tests.support.models import EXAMPLES

THREADS, TIMES = 3, 4


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("threads") / "build"
    compile_model(EXAMPLES / "treelstm.dn", path, ("cpu",), {"embed": 16, "hidden": 16})
    return path


def chain(length: int) -> dict[str, Any]:
    tree: dict[str, Any] = {"word": "good", "label": 3}
    for at in range(length):
        tree = {"left": tree, "right": {"word": ("bad", "so", "good")[at % 3], "label": 4}, "label": at % 5}
    return tree


DATA = [chain(length) for length in range(60)]
BATCHES = [[at, at + 1] for at in range(0, 60, 2)]
CALLS: dict[str, Callable[[dnc.Model], Any]] = {
    "predict": lambda model: [model.predict([sample])["p"][0] for sample in DATA],
    "predictions": lambda model: [p for found in model.predictions(BATCHES) for p in found["p"]],
    "evaluate": lambda model: [np.float32(model.evaluate(DATA[at:]).loss) for at in range(0, 40, 4)],
}


def at_once(call: Callable[[], None]) -> None:
    """Some threads make a call several times each; what one of them raises."""
    problems: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(TIMES):
                call()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for problem in problems:
        raise problem


@pytest.mark.parametrize("name", [*CALLS, "all"])
def test_threads_do_not_mix(build: Path, name: str) -> None:
    model = dnc.load(build, "cpu")
    model.attach(DATA)
    wanted = CALLS if name == "all" else {name: CALLS[name]}
    expected = {each: call(model) for each, call in wanted.items()}

    def check() -> None:
        for each, call in wanted.items():
            assert all(map(np.array_equal, call(model), expected[each])), each

    at_once(check)


def test_steps_of_threads_are_all_made(build: Path) -> None:
    model = dnc.load(build, "cpu")
    model.attach(DATA)
    found: list[float] = []
    at_once(lambda: found.extend(model.steps(BATCHES)))
    assert len(found) == model.session.steps_done == len(BATCHES) * THREADS * TIMES
    assert np.isfinite(found).all()


def test_others_have_their_turn_while_a_stream_waits_for_a_batch(build: Path) -> None:
    model = dnc.load(build, "cpu")
    model.attach(DATA)
    expected = model.predict([3])["p"][0]

    def batches() -> Any:
        for batch in BATCHES:
            answers = list[Any]()
            other = threading.Thread(target=lambda: answers.append(model.predict([3])["p"][0]), daemon=True)  # noqa: B023
            other.start()
            other.join(60)
            assert np.array_equal(answers, [expected])
            yield batch

    assert len(list(model.predictions(batches()))) == len(BATCHES)


def test_modules_of_pytorch(build: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install dnc[torch])")
    import dnc.torch

    net = dnc.torch.Module(build, DATA, device="cpu", encoders=0)

    def gradients(batch: Any) -> list[Any]:
        parameters = list(net.parameters())
        return [each.clone() for each in torch.autograd.grad(net(batch)["loss"], parameters)]

    expected = [gradients(batch) for batch in BATCHES]

    def check() -> None:
        for batch, values in zip(net.batches(BATCHES), expected, strict=True):
            assert all(map(torch.equal, gradients(batch), values))

    at_once(check)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_model_goes_on_in_a_process_that_was_forked(build: Path) -> None:
    """The threads stayed in the other process, so that a launch would wait for ever for them."""
    model = dnc.load(build, "cpu", workers=2)
    model.attach(DATA)
    samples = list(range(5))
    expected = model.predict(samples)["p"]
    if not (child := os.fork()):
        signal.alarm(60)  # in place of waiting for ever
        same = False
        try:
            same = bool(np.array_equal(model.predict(samples)["p"], expected))
        finally:
            os._exit(7 if same else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert np.array_equal(model.predict(samples)["p"], expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_was_forked_while_another_thread_predicts(build: Path) -> None:
    """That thread has the lock of the model, and is not there: the call is right, or refused."""
    model = dnc.load(build, "cpu", workers=2)
    model.attach(DATA)
    samples, goes_on = list(range(20)), [True]
    expected = model.predict(samples)["p"]

    def predict() -> None:
        while goes_on:
            model.predict(samples)

    others = [threading.Thread(target=predict, daemon=True) for _ in range(2)]
    for other in others:
        other.start()
    codes = []
    for _ in range(8):
        if not (child := os.fork()):
            signal.alarm(60)  # in place of waiting for ever
            code = 1
            try:
                code = 7 if np.array_equal(model.predict(samples)["p"], expected) else 1
            except DiagnosticError as error:
                code = 8 if "forked while launches were under way" in str(error) else 1
            finally:
                os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    goes_on.clear()
    for other in others:
        other.join()
    assert set(codes) <= {7, 8}, codes


def test_a_process_that_was_forked_in_a_launch(build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dnc.load(build, "cpu", workers=2)
    model.attach(DATA)
    model.predict([0])
    backend: Any = model.backend
    backend._slots[0] = SimpleNamespace(tasks=(SimpleNamespace(done=False),))
    monkeypatch.setattr(backend, "_process", -1)
    with pytest.raises(DiagnosticError, match="forked while launches were under way"):
        model.predict([0])


@pytest.mark.parametrize("name", ["predict", "evaluate"])
def test_an_interrupt_leaves_no_worker_that_waits(build: Path, name: str, monkeypatch) -> None:
    """It comes when some workers have been told to begin, and others have not: those would wait in vain."""
    model = dnc.load(build, "cpu", replicas=1, workers=2)
    model.attach(DATA)
    call = CALLS[name]
    expected, backend = call(model), model.backend
    worker = backend._threads[1]
    submit, told = worker.submit, list[bool]()

    def interrupted(*arguments: Any) -> Task:
        told.append(True)
        if name == "predict" or len(told) > 1:  # the caller's own part comes last
            found = submit(*arguments)
        if len(told) == 1:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(worker, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            call(model)
    assert all(map(np.array_equal, call(model), expected))


def interrupted_once(method: Callable[[Task], None], struck: list[bool]) -> Callable[[Task], None]:
    """The method of a task, which an interrupt strikes the first time."""

    def interrupted(task: Task) -> None:
        if not struck:
            struck.append(True)
            raise KeyboardInterrupt
        method(task)

    return interrupted


@pytest.mark.parametrize("name", ["predict", "evaluate"])
def test_an_interrupt_while_others_end(build: Path, name: str, monkeypatch) -> None:
    """The next call overwrote what a worker still read, and both waited for ever."""
    model = dnc.load(build, "cpu", replicas=1, workers=2)
    model.attach(DATA)
    call = CALLS[name]
    expected = call(model)
    for method in ("wait", "result"):
        struck = list[bool]()
        with monkeypatch.context() as patch:
            patch.setattr(Task, method, interrupted_once(getattr(Task, method), struck))
            with pytest.raises(KeyboardInterrupt):
                call(model)
        assert struck and all(map(np.array_equal, call(model), expected))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there is no such timer here")
@pytest.mark.parametrize(
    "call",
    [
        lambda model: [model.predict([sample])["p"][0] for sample in DATA[:9]],
        lambda model: [np.float32(model.evaluate(DATA[52:]).loss)],
    ],
    ids=["predict", "evaluate"],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that struck a finalizer
def test_interrupts_at_random_moments(build: Path, call: Callable[[dnc.Model], Any]) -> None:
    """One struck within a lock of Python's executors, and stayed there."""
    model = dnc.load(build, "cpu", replicas=1, workers=2)
    model.attach(DATA)
    expected = call(model)
    took = min(timeit.repeat(lambda: call(model), number=1, repeat=5))  # as if nobody else were there
    generator, hits = np.random.default_rng(5), 0
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    callbacks, gc.callbacks[:] = gc.callbacks[:], []  # others', in which an interrupt would be lost
    try:
        for _ in range(150):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, took * 1.2 * generator.random() + 3e-5)
                    call(model)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    for _ in range(100):
                        pass  # a signal is noticed at the end of a loop
            except KeyboardInterrupt:
                hits += 1
            assert all(map(np.array_equal, call(model), expected))
    finally:
        signal.signal(signal.SIGALRM, before)
        gc.callbacks[:] = callbacks
    assert hits > 20


def test_a_thread_runs_what_it_is_given_in_order_and_tells_how_it_ended() -> None:
    thread, found = WorkerThread("a test"), list[int]()

    def fails() -> None:
        raise ValueError("no")

    tasks = [thread.submit(partial(found.append, number)) for number in range(3)]
    failed = thread.submit(fails)
    thread.wait()
    assert found == [0, 1, 2] and all(task.done for task in tasks)
    failed.wait()
    with pytest.raises(ValueError, match="no"):
        failed.result()


def test_a_thread_ends_with_the_last_reference() -> None:
    thread = WorkerThread("one that ends")
    thread.wait()
    [own] = [each for each in threading.enumerate() if each.name == "one that ends"]
    del thread
    own.join(10)
    assert not own.is_alive()
