"""A fair fight: systems at equal FLOPs, over several seeds, probed and tested.

``compare`` is the command. ``plan`` says what is compared and what is left to do,
``store`` what is done; ``runner`` starts a ``worker`` for each run; ``report`` and
``picture`` show the scores, with the tests of ``statistics``; ``dry_run`` says what it
would take.
"""
