"""How nbgrader takes answers out of the exchange: as the file system's owner says, and nothing but plain files.

All learners can write into the folder that answers come to, and whoever collects reads more than they do. nbgrader's own way
only warns of an answer in another's name, follows links, so that root would fetch a learner the solutions or a neighbour's
answer, and stops for all at a name that it cannot read.
"""

from __future__ import annotations

import os
import pwd
import stat

from nbgrader.exchange import ExchangeError
from nbgrader.exchange.default.collect import ExchangeCollect
from nbgrader.utils import parse_utc

MOST = 20 * 2**20  # bytes of one file; a notebook with its outputs is far below
NOBODY = ""


class Collect(ExchangeCollect):
    """Leaves out what is not its owner's, and of the rest copies the files of the folder itself."""

    def init_src(self):
        super().init_src()
        self.src_records = [record for record in self.src_records if record["username"] != NOBODY]

    def _path_to_record(self, path):
        try:
            facts = os.lstat(path)
            owner = pwd.getpwuid(facts.st_uid).pw_name if stat.S_ISDIR(facts.st_mode) else None
            record = super()._path_to_record(path)
            if record["username"] == owner:
                return record
            why = f"it is owned by {owner}" if owner else "it is no folder"
        except (KeyError, OSError, ValueError, OverflowError, ExchangeError) as error:
            why = str(error)
        self.log.warning("Left out %s: %s", path, why)
        return {"username": NOBODY, "filename": os.path.basename(path), "timestamp": parse_utc("1970-01-01")}

    def do_copy(self, src, dest, log=None):
        """Copies out of the folder as it is opened, once: its owner may put a link in its place meanwhile."""
        try:
            folder = os.open(src, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            self.log.warning("Left out %s: %s", src, error.strerror)
            return
        try:
            os.makedirs(dest)
            with open(os.path.join(dest, "timestamp.txt"), "x", encoding="utf-8") as file:
                file.write(os.path.basename(src).rsplit("+", 3)[2])  # as was read above; the learner's may be no time at all
            for name in {*os.listdir(folder)} - {"timestamp.txt"}:
                try:
                    content = _plain(name, folder)
                except OSError as error:
                    self.log.warning("Left out %s of %s: %s", name, src, error.strerror)
                    continue
                with open(os.path.join(dest, name), "xb") as file:
                    file.write(content)
        finally:
            os.close(folder)


def _plain(name: str, folder: int) -> bytes:
    """What a file holds that is the folder's owner's, and no link; OSError where it is anything else, or larger than MOST."""
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1 or facts.st_uid != os.fstat(folder).st_uid:
            raise OSError(0, "it is no file of its owner's alone")
        content = file.read(MOST + 1)
    if len(content) > MOST:
        raise OSError(0, f"it has more than {MOST:,} bytes")
    return content
