"""The one MirroredStrategy of the test process.

A second object over the same devices makes collective operations of the two meet
("Shape mismatch in the collective instance"), so every test has to ask here.
"""

import functools

import tensorflow as tf


@functools.cache
def two_cpus():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
