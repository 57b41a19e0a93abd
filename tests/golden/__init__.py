"""Files of earlier versions, written at commit 1e4ff67 by its tests/golden/make.py.

They are fixed. If a test of tests/test_golden.py fails, files of users cannot be read
or resumed as before.
"""
