"""Waits of CPU workers, as the kernels make barriers of them: counters that every worker adds one to."""

import threading

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from dnc import cpu_code
from dnc.codegen import cpu_sync
from tests.support.cpu_functions import build

COUNTER = 64  # a word of the synchronisation words; word 0 says that a worker gave up


def barrier(words, ordinal, parties, yield_limit):
    """Counts this worker and waits for the others."""
    cpu_sync.fetch_add(words, COUNTER, 1)
    cpu_sync.emit_wait(
        words,
        until=lambda: cpu_sync.load_acquire(words, COUNTER) >= ordinal * parties,
        abort_at=0,
        yield_limit=yield_limit,
        on_timeout=lambda: cpu_sync.store_release(words, 0, 1),
    )


def barrier_kernel(yield_limit):
    """words: 0 worker, 1 parties, 2 rounds. Each round checks what the other workers wrote."""

    def emit(pool, lists, words):
        with cpu_sync.primitives(), T.serial(0, words[2]) as step:
            T.buffer_store(pool, tirx.Cast("float32", step), [words[0] * 16])
            barrier(lists, 2 * step + 1, words[1], yield_limit)
            with T.serial(0, words[1]) as other:
                wrong = pool[other * 16] != tirx.Cast("float32", step)
                with T.If(wrong), T.Then():
                    T.buffer_store(words, words[3] + 1, [3])
            barrier(lists, 2 * step + 2, words[1], yield_limit)

    return build(emit)


def test_barrier_with_more_workers_than_cores():
    kernel = barrier_kernel(1 << 22)
    parties, rounds = 4, 300
    pool = cpu_code.vector(cpu_code.aligned_zeros(256))
    lists = cpu_code.aligned_zeros(256, "int32")
    words = [cpu_code.aligned_zeros(16, "int32") for _ in range(parties)]
    threads = []
    for i, w in enumerate(words):
        w[:3] = i, parties, rounds
        arguments = (pool, cpu_code.vector(lists), cpu_code.vector(w))
        threads.append(threading.Thread(target=kernel, args=arguments))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert lists[0] == 0
    assert lists[COUNTER] == 2 * rounds * parties
    assert [int(w[3]) for w in words] == [0] * parties


def test_a_barrier_that_nobody_joins_aborts():
    kernel = barrier_kernel(yield_limit=100)
    lists, words = cpu_code.aligned_zeros(256, "int32"), cpu_code.aligned_zeros(16, "int32")
    words[:3] = 0, 2, 1
    kernel(*(cpu_code.vector(a) for a in (cpu_code.aligned_zeros(256), lists, words)))
    assert lists[0] == 1
