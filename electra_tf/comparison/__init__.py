"""Comparisons of systems at equal FLOPs, over several seeds, with statistics.

``compare`` is the command. ``plan`` resolves systems, probes and the jobs that are
left, ``store`` holds the results; ``runner`` starts a ``worker`` for each run;
``report`` and ``picture`` show the scores, with the tests of ``statistics`` and the
``threshold``.
"""
