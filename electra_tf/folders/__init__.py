"""Run folders: the only readers and writers of their files."""
