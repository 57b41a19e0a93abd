"""A fair fight: systems at equal FLOPs, over several seeds, probed and tested.

``compare.py`` is the command. ``ladder`` says what is compared, ``store`` what is
done, ``runner`` and ``worker`` do the rest, ``report`` and ``picture`` show it.
"""
