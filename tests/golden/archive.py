"""Folders in one small file each, which a test cannot change by accident."""

import tarfile
from pathlib import Path

HERE = Path(__file__).parent


def pack(folder, name):
    """Packs a folder into NAME.tar.xz beside this file."""

    def plain(member):
        member.mtime, member.uid, member.gid = 0, 0, 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(HERE / f"{name}.tar.xz", "w:xz", preset=9) as tar:
        for path in sorted(Path(folder).rglob("*")):
            tar.add(path, path.relative_to(folder), recursive=False, filter=plain)


def unpack(name, folder):
    """Unpacks NAME.tar.xz; returns the folder."""
    with tarfile.open(HERE / f"{name}.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    return Path(folder)
