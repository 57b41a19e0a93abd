"""MirroredStrategies of the test process, one per number of devices.

Collective operations of two strategies over the same devices collide ("Shape mismatch
in the collective instance"), so all tests share these objects.
"""

import functools
import socket

import tensorflow as tf


@functools.cache
def cpus(count):
    """Returns a strategy of `count` CPUs; the default strategy for one."""
    if count == 1:
        return tf.distribute.get_strategy()
    # Two devices use collectives, as GPUs do; more strategies of that kind collide.
    sums = None if count == 2 else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)], sums)


def two_cpus():
    return cpus(2)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
