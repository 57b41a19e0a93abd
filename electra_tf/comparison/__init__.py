"""Compares systems at equal FLOPs over several seeds, with significance tests.

``compare`` is the command. ``plan`` resolves systems, probes and jobs. ``runner``
starts one ``worker`` per run, and ``store`` holds the results. ``report`` shows the
scores, with the tests of ``statistics`` and the ``threshold``.
"""
