"""Worker processes."""

import concurrent.futures
import multiprocessing
import os
import signal
import threading


def pool(workers: int) -> concurrent.futures.ProcessPoolExecutor:
    """Returns worker processes."""
    # A forked child of a process that has run TensorFlow hangs.
    context = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(workers, context, _start_process)


def cores() -> int:
    """Returns the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _start_process() -> None:
    # The parent handles Ctrl-C. Workers must exit if the parent is killed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # A worker that imports TensorFlow must not allocate GPU memory.
    os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_NUM_INTRAOP_THREADS="1")


def _exit_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)
