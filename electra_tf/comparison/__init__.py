"""Compares systems at equal FLOPs over several seeds, with significance tests.

``compare`` is the command. ``plan`` resolves systems, probes and jobs, ``worker`` runs
a job in its own process, and ``store`` holds the results. ``report`` shows the scores,
with the tests of ``statistics``.
"""
