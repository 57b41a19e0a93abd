"""Files of earlier versions, made at commit 1e4ff67 by tests/golden/make.py of then.

They are never made again: a test of tests/test_golden.py that fails says that files of
users are not read, or not continued, as they were.
"""
