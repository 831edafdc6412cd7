"""nbgrader's settings for the workshop. A course folder made by `python -m labkit assignments` loads them, and so does each
learner's server, by JUPYTER_CONFIG_PATH.
"""

import os
import sys
from pathlib import Path

from labkit.starters import STUB

c = get_config()  # noqa: F821
WORKSHOP = str(Path(__file__).resolve().parent)

c.CourseDirectory.course_id = "kernel-to-gradient"

# The folder through which assignments go out and answers come in. It has to be there, and open to all (mode 1777): nbgrader
# makes one inside that nobody but its owner can list, and gives each answer a name that nobody can guess.
c.Exchange.root = os.environ.get("WORKSHOP_EXCHANGE", "/srv/nbgrader/exchange")

# All can write there, so what is collected is looked at first.
sys.path.append(WORKSHOP)
c.ExchangeFactory.collect = "collecting.Collect"
c.ExchangeCollect.update = True  # the last answer counts; by nbgrader's own rule it is the first that was collected

# The cells are Python's, but what they write is C++, so the stub that takes a solution's place is that of labkit.starters.
c.ClearSolutions.code_stub = {"python": STUB}

# The first run of a cell compiles, and all kernels of a class may do so at once. nbgrader's own limit is 30 s.
c.Execute.timeout = 600

# An answer is code, and autograde runs it. As root it would run with all rights: so root runs it in the kernel beside this
# file, which first gives all of them up. Anybody else who grades runs answers with the rights that he has himself.
if os.geteuid() == 0:
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, [WORKSHOP, os.environ.get("JUPYTER_PATH")]))
    c.Execute.kernel_name = "graded"
    # What it prints goes through a port of the machine, where all who are logged in can listen; a jupyter_client that knows no
    # encryption passes over this.
    c.KernelManager.transport_encryption = "auto"
