"""The MirroredStrategies of the test process, one for each number of devices.

A second object over the same devices makes collective operations of the two meet
("Shape mismatch in the collective instance"), so every test has to ask here.
"""

import functools
import socket

import tensorflow as tf


@functools.cache
def cpus(count):
    """The default strategy for one."""
    if count == 1:
        return tf.distribute.get_strategy()
    # Two have collective operations, as on GPUs; those of others would meet these.
    sums = None if count == 2 else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)], sums)


def two_cpus():
    return cpus(2)


def free_ports(count):
    """Ports of this machine that nothing listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
